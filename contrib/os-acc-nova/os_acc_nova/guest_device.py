# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""A device of a guest whose XML os-acc has made."""

from __future__ import annotations

from lxml import etree
from nova.virt.libvirt import config


class GuestDevice(config.LibvirtConfigGuestDevice):
    """One element of <devices>, put into the domain's XML as it is.

    Nova's own classes for hostdevs lose the alias, the driver and the ROM of
    an element when they format it again.

    :param xml: the text of the element, such as a VAN's guest_config
    """

    def __init__(self, xml: str) -> None:
        self._element = etree.fromstring(xml)
        super().__init__(root_name=self._element.tag)

    def format_dom(self) -> etree._Element:
        # A copy: lxml moves an element that is added to another document.
        return etree.fromstring(etree.tostring(self._element))

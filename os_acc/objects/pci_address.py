# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""How PCI addresses are written. It loads nothing, for the root process."""

from __future__ import annotations

import re

_PCI = re.compile(
    r'(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([01][0-9a-f])\.([0-7])', re.I
)


def parse(text: str) -> tuple[int, int, int, int] | None:
    """Split a PCI address.

    :param text: ``[dddd:]bb:ss.f`` in hex digits of any case; the domain may
        have up to 8 digits, as the kernel prints it with %04x (see
        drivers/pci/probe.c)
    :returns: (domain, bus, slot, function); None if text is not a PCI address
    """
    match = _PCI.fullmatch(text)
    if match is None:
        return None
    domain, bus, slot, function = match.groups()
    return int(domain or '0', 16), int(bus, 16), int(slot, 16), int(function)

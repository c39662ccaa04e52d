# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""The libvirt plugin: the domain's XML for PCI functions and mdevs."""

from __future__ import annotations

import platform

from oslo_config import cfg

from os_acc import exception
from os_acc import objects
from os_acc import plugin

OPTS = (
    cfg.BoolOpt(
        'managed',
        default=True,
        help='Whether libvirt binds a PCI function to VFIO and back, where '
        'the handle does not say.',
    ),
    cfg.StrOpt(
        'vfio_driver',
        default='',
        help='Name of a VFIO variant driver for PCI functions, as in <driver '
        "name='vfio' model='...'/>. Needs libvirt 10.0: an older one drops "
        'it without a word. Empty: libvirt chooses.',
    ),
    cfg.BoolOpt(
        'iommufd',
        help='Whether PCI functions are opened through iommufd, as in '
        "<driver iommufd='...'/> (libvirt 12.1). Unset: libvirt decides.",
    ),
    cfg.BoolOpt(
        'rom_bar',
        help='Whether the guest sees the PCI ROM of functions. Unset: the '
        'hypervisor decides.',
    ),
    cfg.BoolOpt(
        'display',
        default=False,
        help='Show vGPUs (vfio-pci mdevs) on the graphical console.',
    ),
    cfg.BoolOpt(
        'ramfb',
        default=False,
        help='Show the boot of the guest on that display too.',
    ),
    cfg.ListOpt(
        'guest_addresses',
        default=[],
        help='Where guests see particular devices: HANDLE=ADDRESS, the '
        "handle's PCI address or mdev UUID, and the guest's PCI address.",
    ),
)


class LibvirtPlugin(plugin.PluginBase):
    """guest_config is one <hostdev> element.

    Its alias is ``ua-acc-<VAN uuid>``: libvirt keeps aliases that begin with
    ua- (https://libvirt.org/formatdomain.html#devices), and names them in
    its events.
    """

    CONFIG_OPTS = OPTS
    supports_live = False

    def describe(self) -> objects.HostPluginInfo:
        # TestHandle: Nova's CI boots guests with Cyborg's fake driver.
        names = ('PCIHandle', 'MdevHandle', 'TestHandle')
        return objects.HostPluginInfo(
            plugin_name=self.name,
            handle_info=[objects.HostHandleInfo.of(name) for name in names],
        )

    def plug(
        self,
        van: objects.VAN,
        instance_info: objects.InstanceInfo,
        live: bool,
    ) -> None:
        """Set guest_config to the <hostdev>; None for a TestHandle.

        On a Power host, where it is known already, driver_data gets the
        drc_index that the guest will know the device by.
        """
        # lxml loads only here.
        from acc_plug_libvirt import hostdev

        self._refuse_live(live)
        text = van.guest_config = hostdev.build(van, self.config)
        if text is not None and platform.machine().startswith('ppc64'):
            from acc_plug_libvirt import drc

            index = drc.drc_index_before(text)
            if index is not None:
                van.driver_data['drc_index'] = index

    def unplug(
        self,
        van: objects.VAN,
        instance_info: objects.InstanceInfo,
        live: bool,
    ) -> None:
        """Nothing to do: the caller undefines the guest, or edits it."""
        self._refuse_live(live)

    def _refuse_live(self, live: bool) -> None:
        if live:
            raise exception.LiveNotSupported(plugin=self.name)

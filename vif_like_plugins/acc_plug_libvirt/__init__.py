# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""The libvirt plugin: the domain's XML for PCI functions and mdevs."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
import platform
import threading
from typing import TYPE_CHECKING
from typing import Any

from oslo_config import cfg

from os_acc import finding
from os_acc import objects
from os_acc import plugin

if TYPE_CHECKING:
    from acc_plug_libvirt import connection

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
    cfg.StrOpt(
        'connection_uri',
        default='qemu:///system',
        help='The libvirt that the guests of this host run under.',
    ),
    cfg.FloatOpt(
        'connect_timeout',
        default=30.0,
        min=0,
        help='Seconds to wait for a libvirtd that is not there, or restarts.',
    ),
    cfg.FloatOpt(
        'attach_timeout',
        default=120.0,
        min=1,
        help='Seconds for libvirt to attach one device.',
    ),
    cfg.IntOpt(
        'detach_attempts',
        default=8,
        min=1,
        help='How often a running guest is asked to let go of a device.',
    ),
    cfg.FloatOpt(
        'detach_attempt_timeout',
        default=20.0,
        min=0.1,
        help='Seconds to wait for the guest each time.',
    ),
    cfg.FloatOpt(
        'detach_timeout',
        default=160.0,
        min=0.1,
        help='Seconds for all attempts together. Then unplug fails, and the '
        'device stays with the guest until it is called again.',
    ),
)


class LibvirtPlugin(plugin.PluginBase):
    """guest_config is one <hostdev> element.

    Its alias is ``ua-acc-<VAN uuid>``: libvirt keeps aliases that begin with
    ua- (https://libvirt.org/formatdomain.html#devices), and names them in
    its events.
    """

    CONFIG_OPTS = OPTS

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._connection: connection.Connection | None = None
        self._making = threading.Lock()

    def check_live(self) -> None:
        """:raises HypervisorError: libvirt-python is not installed"""
        from acc_plug_libvirt import connection

        connection.module()

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

        text = van.guest_config = hostdev.build(van, self.config)
        if text is not None and platform.machine().startswith('ppc64'):
            from acc_plug_libvirt import drc

            index = drc.drc_index_before(text)
            if index is not None:
                van.driver_data['drc_index'] = index
        if live and text is not None:
            from acc_plug_libvirt import attach

            attach.attach(self._libvirt(), van, self.config.attach_timeout)

    def unplug(
        self,
        van: objects.VAN,
        instance_info: objects.InstanceInfo,
        live: bool,
    ) -> None:
        """Cold: nothing to do, the caller undefines the guest, or edits it.

        Live: out of its definition, then out of the running guest.
        """
        if not live or isinstance(van.handle, objects.TestHandle | None):
            return
        from acc_plug_libvirt import detach
        from acc_plug_libvirt import hostdev

        conf = self.config
        xml = van.guest_config or hostdev.build(van, conf)
        if xml is None:
            return
        detach.detach(
            self._libvirt(),
            van,
            xml,
            conf.detach_timeout,
            conf.detach_attempts,
            conf.detach_attempt_timeout,
        )

    def diagnose(self) -> Iterator[finding.Finding]:
        from acc_plug_libvirt import report

        conf = self.config
        return report.findings(conf.connection_uri, conf.connect_timeout)

    def _libvirt(self) -> connection.Connection:
        from acc_plug_libvirt import connection

        with self._making:
            uri = self.config.connection_uri
            if self._connection is None or self._connection.uri != uri:
                self._connection = connection.Connection(
                    uri, self.config.connect_timeout
                )
            return self._connection


def update_domain_xml(
    xml: str,
    old_vans: Sequence[objects.VAN],
    new_vans: Sequence[objects.VAN],
) -> str:
    """Rewrite a domain's hostdevs for another host's VANs.

    See domain_xml.update_domain_xml, which loads only here.
    """
    from acc_plug_libvirt import domain_xml

    return domain_xml.update_domain_xml(xml, old_vans, new_vans)

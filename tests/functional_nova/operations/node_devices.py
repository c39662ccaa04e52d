# SPDX-License-Identifier: Apache-2.0

"""libvirt's node devices of type mdev, which Nova's stand-in lacks."""

from __future__ import annotations

import pathlib

from lxml import etree
from nova.tests.fixtures import libvirt as fakelibvirt

from os_acc.testing.kernel import Kernel


class NodeDevices:
    """libvirt's node devices of type mdev, which outlive a service.

    :ivar defined: the names of those with a persistent definition
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.defined: set[str] = set()

    def nodeDeviceCreateXML(self, xml: str, flags: int) -> None:
        parent, kind, uuid = self._parse(xml)
        self.kernel.write(
            f'{self.kernel.pci}/devices/{parent}/mdev_supported_types/{kind}'
            '/create',
            uuid,
        )

    def nodeDeviceDefineXML(self, xml: str, flags: int) -> NodeDevice:
        parent, _kind, uuid = self._parse(xml)
        place = parent.replace(':', '_').replace('.', '_')
        name = f'mdev_{uuid.replace("-", "_")}_{place}'
        self.defined.add(name)
        return NodeDevice(self, name)

    def nodeDeviceLookupByName(self, name: str) -> NodeDevice:
        found = NodeDevice(self, name)
        if found.isPersistent() or found.isActive():
            return found
        raise fakelibvirt.make_libvirtError(
            fakelibvirt.libvirtError,
            'no node device',
            error_code=fakelibvirt.VIR_ERR_NO_NODE_DEVICE,
        )

    @staticmethod
    def _parse(xml: str) -> tuple[str, str, str]:
        root = etree.fromstring(xml)
        parts = root.findtext('parent').removeprefix('pci_').split('_')
        return (
            '{}:{}:{}.{}'.format(*parts),
            root.find('capability/type').get('id'),
            root.findtext('capability/uuid'),
        )


class NodeDevice:
    def __init__(self, devices: NodeDevices, name: str) -> None:
        self._devices = devices
        self._name = name

    def name(self) -> str:
        return self._name

    def setAutostart(self, autostart: bool) -> int:
        return 0

    def isPersistent(self) -> bool:
        return self._name in self._devices.defined

    def isActive(self) -> bool:
        return self._path.exists()

    def destroy(self) -> None:
        self._devices.kernel.write(f'{self._path}/remove', '1')

    def undefine(self) -> None:
        self._devices.defined.remove(self._name)

    @property
    def _path(self) -> pathlib.Path:
        uuid = self._name[5:41].replace('_', '-')
        return self._devices.kernel.mdev / uuid

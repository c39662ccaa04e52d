# SPDX-License-Identifier: Apache-2.0

"""What this node offers to Kubernetes, with names that Kubernetes accepts.

The name of a device must be a DNS label, and the identity of an attach handle
is not one. A name says which device it is, and is the same after a reboot.
"""

from __future__ import annotations

from collections.abc import Iterable
import dataclasses
import hashlib
import logging
import re

from os_acc import objects

LOG = logging.getLogger(__name__)

#: The handles that the plugin cdi gives to containers, and their names.
KINDS = {
    objects.PCIHandle: 'pci',
    objects.MdevHandle: 'mdev',
    objects.DeviceFileHandle: 'file',
    objects.BlockHandle: 'block',
}

# For these a name without a digest is unique.
_FUNCTION = re.compile(r'pci/[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]')
_LABEL = 63
_DIGEST = 10


@dataclasses.dataclass(frozen=True)
class Offer:
    """A device of Kubernetes: one attach handle of a device of os-acc."""

    name: str
    device: objects.Device
    info: objects.DeviceHandleInfo

    @property
    def handle(self) -> objects.AttachHandle:
        return self.info.handle

    @property
    def driver(self) -> str:
        """The driver of os-acc that has the device."""
        return self.device.driver


def name_of(identity: str) -> str:
    """Make a DNS label from the identity of a handle.

    >>> name_of('pci/0000:3b:00.1')
    'pci-0000-3b-00-1'
    >>> name_of('file/virtual+mem+zero')
    'file-virtual-mem-zero-7dc5a5d1ae'
    """
    plain = re.sub('[^a-z0-9]+', '-', identity.lower()).strip('-')
    if _FUNCTION.fullmatch(identity):
        return plain
    digest = hashlib.sha256(identity.encode()).hexdigest()[:_DIGEST]
    return f'{plain[: _LABEL - _DIGEST - 1].rstrip("-")}-{digest}'


def offers(devices: Iterable[objects.Device]) -> list[Offer]:
    """What can be given to containers, whether or not it is free now."""
    return [
        Offer(name_of(info.handle.identity), device, info)
        for device in devices
        for info in device.handles
        if type(info.handle) in KINDS and info.state != 'absent'
    ]


def by_name(devices: Iterable[objects.Device]) -> dict[str, Offer]:
    """The offers by their names, without those that share a name."""
    found: dict[str, Offer] = {}
    twice = set()
    for each in offers(devices):
        if each.name in found:
            LOG.error(
                'Two devices have the name %s: %s and %s. Neither is offered',
                each.name,
                found[each.name].handle.identity,
                each.handle.identity,
            )
            twice.add(each.name)
        found[each.name] = each
    return {name: each for name, each in found.items() if name not in twice}

# SPDX-License-Identifier: Apache-2.0

"""The signs that the host uses a PCI function, apart from disks and NICs."""

from __future__ import annotations

import re

from os_acc.availability.host_signs import mounts
from os_acc.availability.host_signs import sign
from os_acc.availability.host_signs import ways
from os_acc.availability.host_signs.snapshot import Snapshot
from os_acc.kernel import configfs
from os_acc.kernel import pci
from os_acc.kernel import sysfs
from os_acc.kernel import vfio
from os_acc.kinds.idxd import use as idxd_use
from os_acc.refusals import host_refusals
from os_acc.refusals import refusals
from os_acc.refusals.reasons import Reason

# Of an NVMe controller: storage, and for NVMe over Fabrics network cards and
# Fibre Channel.
_ON_THE_WAY = (pci.CLASS_STORAGE, pci.CLASS_NETWORK, pci.CLASS_SERIAL)

_UUID = re.compile('[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}')


def _has_mdev(host: Snapshot, function: pci.Function) -> Reason | None:
    if function.driver is None or vfio.is_bound(function):
        return None
    for entry in sorted(function.entries):
        if _UUID.fullmatch(entry):
            return refusals.HAS_MDEV.reason(uuid=entry)
    return None


def _has_queues(host: Snapshot, function: pci.Function) -> Reason | None:
    return idxd_use.use_of(function)


def _has_vgpu(host: Snapshot, function: pci.Function) -> Reason | None:
    kind = None
    if 'nvidia' in function.entries:
        kind = sysfs.read_int(f'{function.path}/nvidia/current_vgpu_type')
    return refusals.HAS_VGPU.reason(number=kind) if kind else None


def _vdpa_devices(host: Snapshot) -> dict[str, Reason]:
    directory = f'{sysfs.SYS}/bus/vdpa/devices'
    return {
        address: host_refusals.HAS_VDPA.reason(name=name)
        for name in sysfs.names(directory)
        for address in ways.functions_in(sysfs.place(f'{directory}/{name}'))
    }


def _for_guest(host: Snapshot, function: pci.Function) -> Reason | None:
    for address in function.behind:
        found = pci.find(address)
        if found is not None and vfio.is_bound(found):
            return host_refusals.BEHIND_IT.reason(
                address=address, driver=found.driver
            )
    return None


def _controllers(host: Snapshot) -> dict[str, Reason]:
    """By function: the exported controller that needs it."""
    directory = f'{sysfs.SYS}/class/nvme'
    known = sysfs.names(directory)
    return {
        address: refusals.EXPORTED_CONTROLLER.reason(
            name=name, subsystem=subsystem
        )
        for name, subsystem in host.once(configfs.exported).items()
        if name in known
        for way in host.finder.of_controller(
            sysfs.place(f'{directory}/{name}')
        )
        for address in ways.functions_in(way)
    }


def _shares(host: Snapshot, function: pci.Function) -> Reason | None:
    if any(entry.startswith('virtio') for entry in function.entries):
        return host.once(_shared).get(function.address)
    return None


def _shared(host: Snapshot) -> dict[str, Reason]:
    return sign.by_function(
        (path, host_refusals.SHARED.reason(tag=tag, place=place))
        for path, tag, place in mounts.shared(host)
    )


def _scsi_devices(host: Snapshot) -> dict[str, Reason]:
    directory = f'{sysfs.SYS}/class/scsi_device'
    return sign.by_function(
        (
            sysfs.place(f'{directory}/{name}'),
            host_refusals.EXPORTED_SCSI.reason(name=name, store=store),
        )
        for name, store in configfs.scsi_devices().items()
    )


SIGNS = (
    sign.FunctionSign(
        '/sys/bus/pci/devices/ADDRESS/UUID',
        'It has a mediated device, which a guest may have.',
        'Linux 4.10',
        _has_mdev,
    ),
    sign.FunctionSign(
        '/sys/bus/dsa/devices/wqN.M/state',
        'It has work queues that are enabled.',
        'Linux 5.6',
        _has_queues,
    ),
    sign.FunctionSign(
        '/sys/bus/pci/devices/ADDRESS/nvidia/current_vgpu_type',
        'It is set up for a vGPU.',
        'vGPU 17 of NVIDIA',
        _has_vgpu,
    ),
    sign.HostSign(
        '/sys/bus/vdpa/devices/NAME',
        'It has a vDPA device, which the host or a guest (vhost) has.',
        'Linux 5.7',
        _vdpa_devices,
    ),
    sign.FunctionSign(
        '/sys/bus/pci/devices/ADDRESS/pciDOMAIN:BUS',
        'A function of the PCI domain of a VMD endpoint is bound to VFIO: a '
        'guest may have it.',
        'Linux 4.5',
        _for_guest,
    ),
    sign.FunctionSign(
        '/sys/kernel/config/nvmet/subsystems/NQN/passthru/device_path',
        'The NVMe target passes its controller through.',
        'Linux 5.9',
        sign.on_the_way(_controllers, *_ON_THE_WAY),
    ),
    sign.FunctionSign(
        '/sys/kernel/config/target/core/pscsi_N/NAME/info, with '
        '/sys/class/scsi_device/H:C:T:L',
        'The SCSI target (LIO) passes a SCSI device of it through, such as a '
        'tape drive, which is not a block device.',
        'Linux 2.6.38',
        sign.on_the_way(_scsi_devices, *_ON_THE_WAY),
    ),
    sign.FunctionSign(
        '/sys/fs/virtiofs/N/tag and device, '
        '/sys/bus/virtio/drivers/9pnet_virtio/NAME/mount_tag, with '
        '/proc/PID/mountinfo',
        'A directory that it shares with this virtual machine is mounted.',
        'Linux 6.9, 2.6.24',
        _shares,
    ),
)

# SPDX-License-Identifier: Apache-2.0

"""Misuses of the privileged calls, for tests/unit and tests/lab.

Every call here must be refused and change nothing. The caller may be any
program that can start the daemon, so the daemon checks everything again.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from typing import Any

from os_acc import exception
from os_acc import objects
from os_acc.privileged import container_specs
from os_acc.privileged import device_users
from os_acc.privileged import migratable
from os_acc.privileged.devfile import device_files
from os_acc.privileged.devfile import partitions
from os_acc.privileged.fpga import amd
from os_acc.privileged.fpga import command as programming
from os_acc.privileged.fpga import dfl
from os_acc.privileged.fpga import reenumeration
from os_acc.privileged.idxd import devices as idxd_devices
from os_acc.privileged.idxd import queues as idxd
from os_acc.privileged.mdev import devices as mdev
from os_acc.privileged.npu import devices as npu
from os_acc.privileged.nvme_of import namespaces as nvme_of
from os_acc.privileged.pci import functions as pci
from os_acc.privileged.pci import network
from os_acc.privileged.pci import storage_calls
from os_acc.privileged.pci import vfs

INSTANCE = '3b0a6bb0-1111-4222-8333-444455556666'
NAMESPACE = 'uuid.3b0a6bb0-1111-4222-8333-444455559999'
NEW_MDEV = '3b0a6bb0-1111-4222-8333-444455557777'
MAC = 'fa:16:3e:00:00:01'
MEMORY = ['/dev/mem', 'c', 1, 1]


@dataclasses.dataclass(frozen=True)
class Place:
    """The devices of a host, by what they are used for.

    :ivar bound: a function that an administrator has bound to vfio-pci
    :ivar disk: the controller of a mounted disk
    :ivar nic: a network function whose interface is up
    :ivar pf: a PF that is an NVMe drive, on which an administrator has made 2
        VFs; its num_vfs is 4
    :ivar shared: a function that shares its IOMMU group with shared_nic,
        which is bound to a driver of the host and is up
    :ivar unnamed: a function that device_spec does not name
    :ivar mdev: a mediated device that an administrator has made
    """

    bound: str
    bound_ids: str
    disk: str
    disk_ids: str
    nic: str
    nic_ids: str
    bridge: str
    pf: str
    pf_ids: str
    shared: str
    shared_nic: str
    unnamed: str
    unnamed_ids: str
    mdev: str
    mdev_parent: str
    mdev_type: str


def _take(
    address: Any,
    driver: Any = 'vfio-pci',
    siblings: Any = (),
    instance: Any = INSTANCE,
    seconds: Any = 5.0,
) -> Any:
    return pci.take(address, driver, list(siblings), instance, seconds)


def _pci_handle(address: str) -> dict[str, Any]:
    made: dict[str, Any] = objects.PCIHandle(
        address=address
    ).obj_to_primitive()
    return made


def _files_handle(files: list[list[Any]]) -> dict[str, Any]:
    made: dict[str, Any] = objects.DeviceFileHandle(
        name='c1:1',
        share=None,
        files=[
            objects.DeviceFile(path=path, type=kind, major=major, minor=minor)
            for path, kind, major, minor in files
        ],
    ).obj_to_primitive()
    return made


Invalid = exception.InvalidRequest
InUse = exception.DeviceInUseByHost
Busy = exception.DeviceBusy
Missing = exception.DeviceNotFound

# What the misuse is, how the call is made, and what comes of it: an error, or
# the value that says that nothing was done.
MISUSES: dict[str, tuple[Callable[[Place], Any], Any]] = {
    'bind to a driver that gives its memory to programs': (
        lambda p: _take(p.bound, 'uio_pci_generic'),
        Invalid,
    ),
    'bind to a stub driver': (lambda p: _take(p.bound, 'pci-stub'), Invalid),
    'a driver by a path': (lambda p: _take(p.bound, '../../x'), Invalid),
    'a driver that is a number': (lambda p: _take(p.bound, 7), Invalid),
    'take a mounted disk': (lambda p: _take(p.disk), InUse),
    'take a network card that is up': (lambda p: _take(p.nic), InUse),
    'take a bridge': (lambda p: _take(p.bridge), exception.DeviceError),
    'take a PF that is offered for its VFs': (lambda p: _take(p.pf), Missing),
    'take a member of a group that the host uses': (
        lambda p: _take(p.shared),
        InUse,
    ),
    'call what the host uses a sibling': (
        lambda p: _take(p.shared, siblings=[p.shared_nic]),
        InUse,
    ),
    'bind for the host what has no host_driver': (
        lambda p: pci.take_for_host(p.bound, 'nvme', INSTANCE, 5.0),
        Invalid,
    ),
    'bind for the host what device_spec does not name': (
        lambda p: pci.take_for_host(p.unnamed, 'nvme', INSTANCE, 5.0),
        Missing,
    ),
    'bind for the host by a path': (
        lambda p: pci.take_for_host(f'../{p.bound}', 'nvme', INSTANCE, 5.0),
        Invalid,
    ),
    'siblings that are paths': (
        lambda p: _take(p.bound, siblings=['../x']),
        Invalid,
    ),
    'take by a path': (lambda p: _take(f'../devices/{p.bound}'), Invalid),
    'take by a glob': (lambda p: _take('*'), Invalid),
    'take nothing': (lambda p: _take(None), Invalid),
    'take what is not there': (lambda p: _take('0000:7f:1f.7'), Missing),
    'take what device_spec does not name': (
        lambda p: _take(p.unnamed),
        Missing,
    ),
    'a deadline in the past': (lambda p: _take(p.bound, seconds=-1), Invalid),
    'a deadline that never comes': (
        lambda p: _take(p.bound, seconds=1e9),
        Invalid,
    ),
    'an instance that is no UUID': (
        lambda p: _take(p.bound, instance='x'),
        Invalid,
    ),
    'give back a disk that was not taken': (
        lambda p: pci.give_back(p.disk, p.disk_ids, 5.0),
        False,
    ),
    'give back what an administrator bound': (
        lambda p: pci.give_back(p.bound, p.bound_ids, 5.0),
        False,
    ),
    'give back by a path': (
        lambda p: pci.give_back(f'../devices/{p.disk}', p.disk_ids, 5.0),
        Invalid,
    ),
    'give back with a deadline that is no number': (
        lambda p: pci.give_back(p.bound, p.bound_ids, 'vfio-pci'),
        Invalid,
    ),
    'give back what device_spec does not name': (
        lambda p: pci.give_back(p.unnamed, p.unnamed_ids, 5.0),
        False,
    ),
    'give back another device': (
        lambda p: pci.give_back(p.bound, 'ffff:ffff', 5.0),
        Missing,
    ),
    'partitions of a disk': (
        lambda p: partitions.set_mode(p.disk, 'CPX', 5.0),
        exception.DeviceError,
    ),
    'partitions of a path': (
        lambda p: partitions.set_mode(f'../devices/{p.disk}', 'CPX', 5.0),
        Invalid,
    ),
    'ask what partitions of a path were': (
        lambda p: partitions.restores(f'../devices/{p.disk}'),
        exception.InvalidRequest,
    ),
    'ask what a work queue of a path would lose': (
        lambda p: idxd_devices.lets_go(f'../devices/{p.disk}'),
        exception.InvalidRequest,
    ),
    'ask what a mediated device of a path was': (
        lambda p: mdev.lets_go('../x', p.mdev_parent, p.mdev_type),
        Invalid,
    ),
    "ask whether an administrator's mediated device would go": (
        lambda p: mdev.lets_go(p.mdev, p.mdev_parent, p.mdev_type),
        False,
    ),
    'restore partitions that were not set': (
        lambda p: partitions.let_go(p.disk, 5.0),
        False,
    ),
    'make another number of VFs': (
        lambda p: vfs.create_vfs(p.pf, 3, 5.0),
        Invalid,
    ),
    'make more VFs than the PF can have': (
        lambda p: vfs.create_vfs(p.pf, 65535, 5.0),
        Invalid,
    ),
    'make no VFs': (lambda p: vfs.create_vfs(p.pf, 0, 5.0), Invalid),
    "replace an administrator's VFs": (
        lambda p: vfs.create_vfs(p.pf, 4, 5.0),
        Busy,
    ),
    'change the VFs to more than device_spec says': (
        lambda p: vfs.change_vfs(p.pf, 3, 5.0),
        Invalid,
    ),
    'change the VFs of a disk': (
        lambda p: vfs.change_vfs(p.disk, 1, 5.0),
        Invalid,
    ),
    "change an administrator's VFs": (
        lambda p: vfs.change_vfs(p.pf, 4, 5.0),
        ['os-acc has no record of creating them'],
    ),
    'make VFs on a disk': (lambda p: vfs.create_vfs(p.disk, 1, 5.0), Invalid),
    "remove an administrator's VFs": (
        lambda p: vfs.remove_vfs(p.pf, 5.0),
        ['os-acc has no record of creating them'],
    ),
    'reset a mounted disk': (
        lambda p: pci.clean(p.disk, p.disk_ids, 'required', 0, 5.0),
        InUse,
    ),
    'reset a network card that is up': (
        lambda p: pci.clean(p.nic, p.nic_ids, 'auto', 0, 5.0),
        InUse,
    ),
    'reset a PF that is offered for its VFs': (
        lambda p: pci.clean(p.pf, p.pf_ids, 'auto', 0, 5.0),
        Missing,
    ),
    'reset what device_spec does not name': (
        lambda p: pci.clean(p.unnamed, p.unnamed_ids, 'auto', 0, 5.0),
        Missing,
    ),
    'reset another device': (
        lambda p: pci.clean(p.bound, 'ffff:ffff', 'auto', 0, 5.0),
        Missing,
    ),
    'a way to reset that is none': (
        lambda p: pci.clean(p.bound, p.bound_ids, 'bus;reboot', 0, 5.0),
        Invalid,
    ),
    'hold what device_spec does not name': (
        lambda p: pci.hold(p.unnamed),
        Missing,
    ),
    'hold by a path': (lambda p: pci.hold('../x'), Invalid),
    'let go by a path': (lambda p: pci.let_go('../x', p.bound_ids), Invalid),
    'let go by a glob': (lambda p: pci.let_go('*', p.bound_ids), Invalid),
    'read the driver_override by a path': (
        lambda p: pci.override_of(f'../devices/{p.bound}', 5.0),
        Invalid,
    ),
    'ask for the VFs of what device_spec does not name': (
        lambda p: vfs.made_vfs(p.unnamed, 5.0),
        Missing,
    ),
    'ask for the settings of VFs by a path': (
        lambda p: vfs.settings_of_vfs(f'../devices/{p.bound}'),
        Invalid,
    ),
    "remove an administrator's mediated device": (
        lambda p: mdev.remove(p.mdev, p.mdev_parent, p.mdev_type, 0, 5.0),
        False,
    ),
    "make an administrator's mediated device again": (
        lambda p: mdev.create(p.mdev, p.mdev_parent, p.mdev_type, 5.0),
        Busy,
    ),
    "claim to make an administrator's mediated device": (
        lambda p: mdev.announce(p.mdev, p.mdev_parent, p.mdev_type, 5.0),
        Busy,
    ),
    'claim to make a mediated device where device_spec names nothing': (
        lambda p: mdev.announce(NEW_MDEV, p.unnamed, p.mdev_type, 5.0),
        Missing,
    ),
    'claim to make a mediated device of a type that there is not': (
        lambda p: mdev.announce(NEW_MDEV, p.mdev_parent, 'x', 5.0),
        Missing,
    ),
    'hold a mediated device that is not there': (
        lambda p: mdev.hold(NEW_MDEV),
        Missing,
    ),
    'keep a mediated device that an administrator has made': (
        lambda p: mdev.keep(p.mdev, p.mdev_parent, p.mdev_type, 5.0),
        Busy,
    ),
    'keep a mediated device of a parent that is not offered': (
        lambda p: mdev.keep(NEW_MDEV, p.unnamed, p.mdev_type, 5.0),
        Missing,
    ),
    'let a mediated device go that an administrator has made': (
        lambda p: mdev.let_go(p.mdev, p.mdev_parent, p.mdev_type, 5.0),
        False,
    ),
    'let a mediated device go by a path': (
        lambda p: mdev.let_go('../x', p.mdev_parent, p.mdev_type, 5.0),
        Invalid,
    ),
    'hold a mediated device by a path': (lambda p: mdev.hold('../x'), Invalid),
    'release a mediated device by a path': (
        lambda p: mdev.released('../x', 0),
        Invalid,
    ),
    'a release of a mediated device that never ends': (
        lambda p: mdev.released(p.mdev, 1e9),
        Invalid,
    ),
    'a parent by a path': (
        lambda p: mdev.create(NEW_MDEV, '../mdev_bus', p.mdev_type, 5.0),
        Invalid,
    ),
    'an mdev type by a path': (
        lambda p: mdev.create(NEW_MDEV, p.mdev_parent, '../x', 5.0),
        Invalid,
    ),
    'a mediated device by a path': (
        lambda p: mdev.create('../x', p.mdev_parent, p.mdev_type, 5.0),
        Invalid,
    ),
    'a vGPU type on what has none': (
        lambda p: mdev.set_vgpu_type(p.bound, 558, 5.0),
        Missing,
    ),
    'clear a vGPU type that is none': (
        lambda p: mdev.clear_vgpu_type(p.bound, 0, 0, 5.0),
        Invalid,
    ),
    'release a mounted disk as a vGPU': (
        lambda p: mdev.released_vgpu(p.disk, 0),
        exception.DeviceError,
    ),
    'release a vGPU that device_spec does not name': (
        lambda p: mdev.released_vgpu(p.unnamed, 0),
        Missing,
    ),
    'a release of a vGPU that never ends': (
        lambda p: mdev.released_vgpu(p.bound, float('inf')),
        Invalid,
    ),
    'ask whether what device_spec does not name moves live': (
        lambda p: migratable.function(p.unnamed, 5.0),
        Missing,
    ),
    'ask for ever whether a function moves live': (
        lambda p: migratable.function(p.bound, float('inf')),
        Invalid,
    ),
    'ask whether a mediated device by a path moves live': (
        lambda p: migratable.mediated('../x', 5.0),
        Invalid,
    ),
    'look for a bitstream without a command': (
        lambda p: programming.check(p.disk, '', '/etc/shadow'),
        Invalid,
    ),
    'ask how far the programming of what has no command is': (
        lambda p: programming.percent(p.disk, ''),
        Invalid,
    ),
    'look for a user image for what is no AMD card': (
        lambda p: amd.check(p.disk, '/etc/shadow'),
        Invalid,
    ),
    'load a user image into what is no AMD card': (
        lambda p: amd.program(p.disk, '/etc/shadow', '0' * 64, 5.0),
        Invalid,
    ),
    'load a user image into what device_spec does not name': (
        lambda p: amd.program(p.unnamed, '/etc/shadow', '0' * 64, 5.0),
        Missing,
    ),
    'clear by a path': (
        lambda p: programming.clear('../fpga0', '', 5.0),
        Invalid,
    ),
    'clear what has no command': (
        lambda p: programming.clear(p.disk, '', 5.0),
        Invalid,
    ),
    'program what has no command': (
        lambda p: programming.program(
            p.disk, '', '/etc/shadow', '0' * 64, None, 5.0
        ),
        Invalid,
    ),
    'remove a device that is not programmed from the bus': (
        lambda p: reenumeration.reenumerate(p.disk, 5.0),
        Invalid,
    ),
    'remove a path from the bus': (
        lambda p: reenumeration.reenumerate(f'../devices/{p.disk}', 5.0),
        Invalid,
    ),
    'remove from the bus what device_spec does not name': (
        lambda p: reenumeration.reenumerate(p.unnamed, 5.0),
        Missing,
    ),
    'look for an image of what is no DFL card': (
        lambda p: dfl.check(p.disk, '', '/etc/shadow', 5.0),
        Invalid,
    ),
    'look for an image of a DFL card that device_spec does not name': (
        lambda p: dfl.check(p.unnamed, '', '/etc/shadow', 5.0),
        Missing,
    ),
    'program as a DFL card what is none': (
        lambda p: dfl.program(p.pf, '0', '/etc/shadow', '0' * 64, None, 5.0),
        Invalid,
    ),
    'program a DFL card that device_spec does not name': (
        lambda p: dfl.program(
            p.unnamed, '0', '/etc/shadow', '0' * 64, None, 5.0
        ),
        Missing,
    ),
    'bind a disk again as if it were a DFL card': (
        lambda p: dfl.heal(p.disk, '', 5.0),
        Invalid,
    ),
    'bind a DFL card again by a path': (
        lambda p: dfl.heal(f'../devices/{p.pf}', '', 5.0),
        Invalid,
    ),
    'bind DFL cards again with a deadline in the past': (
        lambda p: dfl.recover(-1),
        Invalid,
    ),
    'ask for an instance that is no UUID': (
        lambda p: device_users.of_function(p.bound, '../x', False),
        Invalid,
    ),
    'ask for guests of what is no address': (
        lambda p: device_users.of_functions(['../x']),
        Invalid,
    ),
    'ask who has a path': (
        lambda p: device_users.of_mdev('../x', INSTANCE),
        Invalid,
    ),
    'read the port of what device_spec does not name': (
        lambda p: network.read_port(p.unnamed, 5.0),
        Missing,
    ),
    'set up the port of a network card that is up': (
        lambda p: network.set_port(p.nic, {'mac_address': MAC}, 5.0),
        InUse,
    ),
    'set up the port of what is no VF of a network card': (
        lambda p: network.set_port(p.bound, {'vlan': [7, 0]}, 5.0),
        exception.DeviceError,
    ),
    'set up the port of what device_spec does not name': (
        lambda p: network.set_port(p.unnamed, {'vlan': [7, 0]}, 5.0),
        Missing,
    ),
    'trust what device_spec does not trust': (
        lambda p: network.set_port(p.bound, {'trusted': True}, 5.0),
        Invalid,
    ),
    "a group's MAC address": (
        lambda p: network.set_port(
            p.bound, {'mac_address': '01:00:5e:00:00:01'}, 5.0
        ),
        Invalid,
    ),
    'a setting of a port that is none': (
        lambda p: network.set_port(p.bound, {'rate': 5}, 5.0),
        Invalid,
    ),
    'restore a port by a path': (
        lambda p: network.restore_port(f'../devices/{p.bound}', {}, 5.0),
        Invalid,
    ),
    'restore a port to what the caller says': (
        lambda p: network.restore_port(p.bound, {'before': 'x'}, 5.0),
        Invalid,
    ),
    'hand out a mounted disk': (
        lambda p: storage_calls.hand_out(p.disk, INSTANCE, 5.0),
        exception.DeviceError,
    ),
    'hand out what device_spec does not name': (
        lambda p: storage_calls.hand_out(p.unnamed, INSTANCE, 5.0),
        Missing,
    ),
    "give a container the host's memory": (
        lambda p: container_specs.write(
            INSTANCE, INSTANCE, _files_handle([MEMORY])
        ),
        Missing,
    ),
    'give a container what device_spec does not name': (
        lambda p: container_specs.write(
            INSTANCE, INSTANCE, _pci_handle(p.unnamed)
        ),
        Missing,
    ),
    'a spec of a VAN that is a path': (
        lambda p: container_specs.write(
            '../x', INSTANCE, _pci_handle(p.bound)
        ),
        Invalid,
    ),
    'a spec with a handle that is none': (
        lambda p: container_specs.write(INSTANCE, INSTANCE, {'a': 1}),
        Invalid,
    ),
    'look for a spec by a path': (
        lambda p: container_specs.is_written('../x', _pci_handle(p.bound)),
        Invalid,
    ),
    'withdraw a spec by a path': (
        lambda p: container_specs.withdraw('../../etc/passwd', 1.0),
        Invalid,
    ),
    'a release of a container that never ends': (
        lambda p: container_specs.withdraw(INSTANCE, 1e9),
        Invalid,
    ),
    'the containers of a path': (
        lambda p: container_specs.users_of('../x'),
        Invalid,
    ),
    "take the host's memory": (
        lambda p: device_files.take('c1:1', '', [MEMORY], 5.0),
        Missing,
    ),
    'take a file by a path that leaves /dev': (
        lambda p: device_files.take(
            'x', '', [['/dev/../etc/shadow', 'c', 1, 3]], 5.0
        ),
        Invalid,
    ),
    'take files by a name that is a path': (
        lambda p: device_files.take('../x', '', [MEMORY], 5.0),
        Invalid,
    ),
    'give back files that were not taken': (
        lambda p: device_files.give_back('c1:1', '', [], 0, 5.0),
        [],
    ),
    'give back files by a name that is a path': (
        lambda p: device_files.give_back('../x', '', [], 0, 5.0),
        Invalid,
    ),
    'ask who has a file open that is no device': (
        lambda p: device_files.users([['/etc/shadow', 'x', 1, 3]]),
        Invalid,
    ),
    'ask for the shares of a path': (
        lambda p: device_files.shares_of_others('../x'),
        Invalid,
    ),
    'say for nobody who has a device': (
        lambda p: device_users.adopt([[INSTANCE, INSTANCE, p.disk]]),
        None,
    ),
    'keep work queues of what device_spec does not name': (
        lambda p: idxd_devices.keep(p.unnamed, 5.0),
        Missing,
    ),
    'keep work queues by a path': (
        lambda p: idxd_devices.keep(f'../devices/{p.bound}', 5.0),
        Invalid,
    ),
    'let work queues go that os-acc has not set up': (
        lambda p: idxd_devices.let_go(p.bound, 5.0),
        False,
    ),
    'let work queues go by a path': (
        lambda p: idxd_devices.let_go(f'../devices/{p.bound}', 5.0),
        Invalid,
    ),
    'enable a work queue that device_spec does not name': (
        lambda p: idxd.enable(p.unnamed, 0, INSTANCE, 5.0),
        Missing,
    ),
    'enable a work queue by a path': (
        lambda p: idxd.enable(f'../devices/{p.bound}', 0, INSTANCE, 5.0),
        Invalid,
    ),
    'enable a work queue of a negative number': (
        lambda p: idxd.enable(p.bound, -1, INSTANCE, 5.0),
        Invalid,
    ),
    'disable a work queue that no VAN has': (
        lambda p: idxd.disable(p.bound, 0, INSTANCE, 1.0, 5.0),
        True,
    ),
    'disable a work queue for a VAN that is a path': (
        lambda p: idxd.disable(p.bound, 0, '../x', 1.0, 5.0),
        Invalid,
    ),
    'take an NPU that device_spec does not name': (
        lambda p: npu.take(p.unnamed, [['/dev/null', 'c', 1, 3]], 5.0),
        Missing,
    ),
    'take a function that is no NPU': (
        lambda p: npu.take(p.bound, [['/dev/null', 'c', 1, 3]], 5.0),
        Missing,
    ),
    'take an NPU by a path': (
        lambda p: npu.take(f'../devices/{p.bound}', [], 5.0),
        Invalid,
    ),
    'give back an NPU that no VAN has': (
        lambda p: npu.give_back(p.bound, INSTANCE, 0, 5.0),
        [],
    ),
    'give back an NPU by a path': (
        lambda p: npu.give_back(f'../devices/{p.bound}', INSTANCE, 0, 5.0),
        Invalid,
    ),
    'give back an NPU for an instance that is a path': (
        lambda p: npu.give_back(p.bound, '../x', 0, 5.0),
        Invalid,
    ),
    'connect a namespace that device_spec does not name': (
        lambda p: nvme_of.connect(NAMESPACE, INSTANCE, 5.0, 0),
        Missing,
    ),
    'connect a namespace by a path': (
        lambda p: nvme_of.connect('../../x', INSTANCE, 5.0, 0),
        Invalid,
    ),
    'connect as a host of any name': (
        lambda p: nvme_of.connect(NAMESPACE, 'nqn.x', 5.0, 0),
        Invalid,
    ),
    'release a namespace that nobody has': (
        lambda p: nvme_of.release(NAMESPACE, INSTANCE, 1.0, 5.0),
        True,
    ),
    'release a block device by its path': (
        lambda p: nvme_of.release('/dev/sda', INSTANCE, 1.0, 5.0),
        Invalid,
    ),
    'ask for the progress of what device_spec does not name': (
        lambda p: storage_calls.cleaning_progress(p.unnamed),
        Missing,
    ),
}


def outcome(name: str, place: Place) -> Any:
    """Try a misuse.

    :returns: the class of the error, or what the call returned
    """
    call, _ = MISUSES[name]
    try:
        return call(place)
    except exception.ExceptionBase as err:
        return type(err)

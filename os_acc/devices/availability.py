# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""May a PCI function be taken now, and if not, why?

Discovery, selection, the check before a VAN takes a function, the privileged
half and os-acc doctor all ask obstacles(), so that they agree. The caller
passes what the journal knows as plain data, see allocated.Holder.

This module does not check which processes and libvirt domains have the
function open, because only root can see it. See privileged.device_users.
"""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
import enum
import itertools

from os_acc import exception
from os_acc.devices import allocated
from os_acc.devices import device_spec
from os_acc.devices import host_use
from os_acc.devices import open_files
from os_acc.devices import pci
from os_acc.devices import sriov
from os_acc.devices import vfio
from os_acc.devices import vgpu

NO_IOMMU_GROUP = (
    'it is in no IOMMU group: enable the IOMMU in the firmware, and boot with '
    'intel_iommu=on or the equivalent of the platform'
)


class Kind(enum.Enum):
    """Why a function cannot be taken."""

    NOT_OFFERED = enum.auto()  # device_spec does not offer it for this use
    UNSUITABLE = enum.auto()  # no guest can use it, or not as it is set up
    NO_IOMMU_GROUP = enum.auto()
    HAS_VFS = enum.auto()
    ALLOCATED = enum.auto()  # a VAN has it, a part of it, or all of its PF
    HOST_USE = enum.auto()
    GROUP_HOST_USE = enum.auto()  # the host uses a member of its IOMMU group
    GROUP_ALLOCATED = enum.auto()  # another instance has one of its group
    OPEN = enum.auto()  # somebody has opened it or set it up for a guest
    NO_CAPACITY = enum.auto()  # the other parts of its device need the room


@dataclasses.dataclass(frozen=True)
class Obstacle:
    """One reason why a device cannot be taken.

    :ivar device: what it is about, such as 'PCI function 0000:3b:00.0'
    :ivar text: a whole clause, such as 'it has 2 VFs'
    """

    kind: Kind
    device: str
    text: str

    def error(self) -> exception.ExceptionBase:
        """The error to raise if the device is needed."""
        if self.kind is Kind.NOT_OFFERED:
            return exception.DeviceNotFound(
                wanted=self.device, reason=self.text
            )
        if self.kind in (Kind.UNSUITABLE, Kind.NO_IOMMU_GROUP):
            return exception.DeviceError(device=self.device, reason=self.text)
        if self.kind in (Kind.HOST_USE, Kind.GROUP_HOST_USE):
            return exception.DeviceInUseByHost(
                device=self.device, by=self.text
            )
        return exception.DeviceBusy(device=self.device, reason=self.text)


def obstacles(
    function: pci.Function,
    spec: device_spec.Spec | None,
    bind: str,
    taker: allocated.Taker = allocated.ANYONE,
    holders: allocated.Holders | None = None,
    snapshot: host_use.Snapshot | None = None,
    as_root: bool = False,
    alone: bool = False,
) -> Iterator[Obstacle]:
    """Say why a PCI function cannot be taken as a whole.

    :param spec: the entry of device_spec for it; None if there is none
    :param bind: who is to bind it to VFIO, one of device_spec.BINDS
    :param holders: what the journal knows; None if the journal is unavailable
    :param snapshot: pass one when asking about many functions
    :param as_root: this process is root: also find block devices that the
        host has opened exclusively
    :param alone: the caller knows that it is alone in its IOMMU group
    :returns: all obstacles, the most important one first; nothing if the
        function is free
    """
    holders = holders or allocated.Holders()
    whole = holders.of_function(function.address)
    # The VAN has the function since before a reboot, or its claim was checked
    # before root was asked.
    claimed = as_root or (
        whole is not None
        and whole.device is not None
        and whole.van_uuid == taker.van_uuid
    )
    for kind, text in itertools.chain(
        _unsuitable(function, spec, claimed),
        _allocated(function, taker, holders) if holders else (),
        _host_uses(function, snapshot, as_root),
        () if alone else _group(function, taker, holders, snapshot),
        _not_bound(function) if bind == device_spec.BIND_NONE else (),
    ):
        yield Obstacle(kind, f'PCI function {function.address}', text)


def _not_bound(function: pci.Function) -> Iterator[tuple[Kind, str]]:
    if not vfio.is_bound(function):
        yield (
            Kind.UNSUITABLE,
            f'it is bound to {function.driver or "no driver"}, and with '
            'bind = none someone else has to bind it to VFIO first',
        )


def _unsuitable(
    function: pci.Function, spec: device_spec.Spec | None, claimed: bool
) -> Iterator[tuple[Kind, str]]:
    if is_vgpu_place(function):
        now = vgpu.current(function.address)
        kind = f'vGPU type {now} is set on it' if now else 'it has no type now'
        yield (
            Kind.UNSUITABLE,
            f"it is a VF that NVIDIA's driver keeps for a vGPU ({kind}), not "
            'a whole GPU: the driver nvidia_vgpu gives it out if device_spec '
            'sets vgpu_type for it',
        )
    if spec is None:
        yield Kind.NOT_OFFERED, '[os_acc] device_spec does not name it'
    elif spec.mdev_types or spec.vgpu_type:
        yield (
            Kind.NOT_OFFERED,
            '[os_acc] device_spec offers it for mdevs or vGPUs only',
        )
    elif (
        not claimed
        and function.is_pf
        and spec.num_vfs is not None
        and not sriov.future_addresses(function.address, spec.num_vfs)
    ):
        yield (
            Kind.UNSUITABLE,
            f'device_spec sets num_vfs to {spec.num_vfs}, but it can have '
            f'{sriov.total(function.address)} VFs, or the kernel does not '
            'tell their addresses',
        )
    if function.is_bridge:
        yield Kind.UNSUITABLE, 'it is a bridge, which no guest can use'
    if function.is_pf and (number := sriov.count(function.address)):
        yield Kind.HAS_VFS, f'it is a PF that has {number} VFs'


def _allocated(
    function: pci.Function,
    taker: allocated.Taker,
    holders: allocated.Holders,
) -> Iterator[tuple[Kind, str]]:
    """The VANs that have a function, a part of it, or all of its PF."""
    whole = holders.of_function(function.address)
    if whole is not None and whole.van_uuid != taker.van_uuid:
        yield Kind.ALLOCATED, _has(whole, 'it')
    for part in holders.on(function.address):
        if part is not whole and part.van_uuid != taker.van_uuid:
            yield Kind.ALLOCATED, _has(part, part.handle or 'it')
    if (pf := function.physfn) is not None:
        for found in whole_obstacles(pf, f'PF {pf}', taker, holders):
            yield found.kind, f'its PF is taken: {found.text}'


def whole_obstacles(
    address: str,
    device: str,
    taker: allocated.Taker,
    holders: allocated.Holders,
) -> Iterator[Obstacle]:
    """Say which VAN has the whole of a device, when a part of it is wanted.

    :param address: of the device
    :param device: the device, for the error
    """
    whole = holders.of_function(address)
    if whole is None or whole.van_uuid == taker.van_uuid:
        return
    # A VAN that only requests the device does not have it yet. Both claim
    # under the lock of the device, so one of them sees the other.
    if whole.device is not None:
        yield Obstacle(Kind.ALLOCATED, device, _has(whole, 'it'))


def _has(holder: allocated.Holder, what: str) -> str:
    return (
        f'instance {holder.instance_uuid} has {what} (VAN {holder.van_uuid})'
    )


def host_obstacles(
    function: pci.Function,
    snapshot: host_use.Snapshot | None = None,
    as_root: bool = False,
) -> Iterator[Obstacle]:
    """Say what the host itself uses a function for. See obstacles()."""
    for kind, text in _host_uses(function, snapshot, as_root):
        yield Obstacle(kind, f'PCI function {function.address}', text)


def _host_uses(
    function: pci.Function, snapshot: host_use.Snapshot | None, as_root: bool
) -> Iterator[tuple[Kind, str]]:
    if as_root and snapshot is None:
        snapshot = host_use.Snapshot.read()
    if (use := host_use.by_host(function, snapshot)) is not None:
        yield Kind.HOST_USE, use
    if as_root and snapshot is not None:
        names = snapshot.below(function.path)
        for text in open_files.exclusively_used(names):
            yield Kind.HOST_USE, text


def _group(
    function: pci.Function,
    taker: allocated.Taker,
    holders: allocated.Holders,
    snapshot: host_use.Snapshot | None,
) -> Iterator[tuple[Kind, str]]:
    """Check the IOMMU group, which VFIO gives to one guest as a whole."""
    group = function.iommu_group
    if group is None:
        yield Kind.NO_IOMMU_GROUP, NO_IOMMU_GROUP
        return
    for member, use in host_use.in_group(function, snapshot):
        if isinstance(member, str) or member.address not in taker.functions:
            yield Kind.GROUP_HOST_USE, use
    for other in _group_holders(function, holders):
        if other.instance_uuid != taker.instance_uuid:
            text = f'{other.handle} of the same IOMMU group {group}'
            yield Kind.GROUP_ALLOCATED, _has(other, text)


def _group_holders(
    function: pci.Function, holders: allocated.Holders
) -> Iterator[allocated.Holder]:
    """The VANs that have claimed the other functions of an IOMMU group."""
    for name in pci.group_members(function.iommu_group or ''):
        other = holders.of_function(name)
        if name != function.address and other and other.device is not None:
            yield other


def shares_group(
    function: pci.Function, instance_uuid: str, holders: allocated.Holders
) -> bool:
    """Whether an instance has another function of an IOMMU group."""
    return any(
        other.instance_uuid == instance_uuid
        for other in _group_holders(function, holders)
    )


def is_alone(function: pci.Function) -> bool:
    """Whether a function is in an IOMMU group that has no other member."""
    group = function.iommu_group
    return group is not None and pci.group_members(group) == [function.address]


def vfs_obstacles(
    pf: pci.Function,
    taker: allocated.Taker = allocated.ANYONE,
    holders: allocated.Holders | None = None,
) -> Iterator[Obstacle]:
    """Say why VFs cannot be created on a PF that has none."""
    device = f'PF {pf.address}'
    yield from whole_obstacles(
        pf.address, device, taker, holders or allocated.Holders()
    )
    if vfio.is_bound(pf):
        yield Obstacle(
            Kind.OPEN, device, f'it is bound to the VFIO driver {pf.driver}'
        )
    if pf.driver is None:
        yield Obstacle(
            Kind.UNSUITABLE, device, 'it has no driver that could make VFs'
        )
    if pf.iommu_group is None:
        yield Obstacle(Kind.NO_IOMMU_GROUP, device, NO_IOMMU_GROUP)


def is_vgpu_place(function: pci.Function) -> bool:
    """Whether a function is a VF that can have a vGPU type of NVIDIA's.

    The VF stays bound to NVIDIA's driver, also without a type. Bound to
    vfio-pci it would be useless to a guest.
    """
    return 'nvidia' in function.entries and vgpu.is_vgpu_function(
        function.address
    )


def offers_vgpus(spec: device_spec.Spec) -> bool:
    """Whether an entry of device_spec offers the VFs that it names as vGPUs.

    Without vgpu_type it offers those that have a type, if its bind is none:
    the operator has set the types, as in Nova's documentation.
    """
    return spec.vgpu_type is not None or spec.bind == device_spec.BIND_NONE


def vgpu_obstacles(
    vf: pci.Function,
    spec: device_spec.Spec,
    taker: allocated.Taker = allocated.ANYONE,
    holders: allocated.Holders | None = None,
    card: vgpu.Card | None = None,
) -> Iterator[Obstacle]:
    """Say why a VF cannot be given out with the vGPU type of its entry.

    The type may be set already, by the operator.

    :param spec: the entry of device_spec for it
    :param card: pass one when asking about many VFs of a PF
    """
    address, device = vf.address, f'VF {vf.address}'
    if not offers_vgpus(spec):
        yield Obstacle(
            Kind.NOT_OFFERED,
            device,
            '[os_acc] device_spec has no vgpu_type for it',
        )
        return
    card = card or vgpu.Card.read(pci.get(vf.parent))
    now = card.current.get(address)
    if now is None:
        yield Obstacle(
            Kind.NOT_OFFERED,
            device,
            'it has no file nvidia/current_vgpu_type: install the vGPU '
            'manager and run sriov-manage',
        )
        return
    for kind, text in _allocated(vf, taker, holders or allocated.Holders()):
        yield Obstacle(kind, device, text)
    wanted = spec.vgpu_type
    if now != vgpu.NONE:
        if wanted is not None and card.number_of(wanted) != now:
            yield Obstacle(
                Kind.OPEN,
                device,
                f'vGPU type {vgpu.label(now)} is already set on it, not '
                f'{wanted}',
            )
    elif wanted is None:
        yield Obstacle(
            Kind.UNSUITABLE,
            device,
            'no vGPU type is set on it, and [os_acc] device_spec has no '
            'vgpu_type for it',
        )
    else:
        yield from _vgpu_capacity(address, wanted, spec.max_instances, card)


def _vgpu_capacity(
    address: str, wanted: str, limit: int | None, card: vgpu.Card
) -> Iterator[Obstacle]:
    number = card.number_of(wanted)
    if number is None or number not in card.possible[address]:
        yield Obstacle(
            Kind.NOT_OFFERED,
            f'vGPU type {wanted} on VF {address}',
            f'the VF can have these types: {vgpu.types_text(address)}',
        )
    elif not card.left(number, limit):
        yield Obstacle(
            Kind.NO_CAPACITY,
            f'vGPU type {wanted} on VF {address}',
            'its card has as many vGPUs as fit into it: at most '
            f'{card.places(number, limit)} of this type',
        )


def vf_users(pf: pci.Function) -> list[str]:
    """Say who uses the VFs of a PF, so that they cannot be removed now.

    The VFs that os-acc created are bound to no driver once they are given
    back. If one is bound, somebody else has bound it.

    :returns: a clause for each VF that is used
    """
    snapshot = host_use.Snapshot.read()
    found = []
    for address in pf.vf_addresses:
        vf = pci.find(address)
        if vf is None:
            continue
        used = next(host_obstacles(vf, snapshot), None)
        if used is not None:
            found.append(f'VF {address}: {used.text}')
        elif vf.driver is not None:
            found.append(f'VF {address}: it is bound to {vf.driver}')
    return found

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

Only root can see which processes and libvirt domains have a function open. A
caller that can find out passes a function that does so, see
privileged.device_users.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import enum
import itertools

from os_acc import exception
from os_acc.devices import allocated
from os_acc.devices import companions
from os_acc.devices import device_spec
from os_acc.devices import host_use
from os_acc.devices import open_files
from os_acc.devices import pci
from os_acc.devices import sriov
from os_acc.devices import storage
from os_acc.devices import vfio
from os_acc.devices import vfio_rules
from os_acc.devices import vgpu


class Kind(enum.Enum):
    """Why a function cannot be taken."""

    NOT_OFFERED = enum.auto()  # device_spec does not offer it for this use
    UNSUITABLE = enum.auto()  # no guest can use it, or not as it is set up
    NO_IOMMU_GROUP = enum.auto()
    HAS_VFS = enum.auto()
    RESERVED = enum.auto()  # until an operator frees it
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
    refused: Iterable[str] | None = None,
    held: bool = False,
    users: Callable[[], Sequence[str]] | None = None,
) -> Iterator[Obstacle]:
    """Say why a PCI function cannot be taken as a whole.

    :param spec: the entry of device_spec for it; None if there is none
    :param bind: who is to bind it to VFIO, one of device_spec.BINDS
    :param holders: what the journal knows; None if the journal is unavailable
    :param snapshot: pass one when asking about many functions
    :param as_root: this process is root: also find block devices that the
        host has opened exclusively
    :param alone: the caller knows that it is alone in its IOMMU group
    :param refused: what vfio_refusals() says of it, or of a VF of the same PF,
        and vfio_rules.of_host(); None: they are called here
    :param held: the caller knows that a VAN has had it since before, so that
        device_spec does not matter
    :param users: finds who has the function open: a clause for each user.
        Called last. None: do not check this
    :returns: all obstacles, the most important one first
    """
    if holders is None:
        holders = allocated.Holders()
    whole = holders.of_function(function.address)
    if refused is None:
        refused = _refusals(function, spec)
    along = companions.of(function, spec, bind)
    with_them = taker
    if along:
        addresses = taker.functions | {each.address for each in along}
        with_them = dataclasses.replace(taker, functions=addresses)
    # The VAN has had the function since before a reboot. It keeps it, even if
    # device_spec no longer offers it.
    held = held or (
        whole is not None
        and whole.device is not None
        and whole.van_uuid == taker.van_uuid
    )
    for kind, text in itertools.chain(
        () if held else _not_offered(function, spec, as_root),
        _unsuitable(function),
        _cannot_be_emptied(function, spec, bind),
        _texts(reserved_obstacles(function.address, holders)),
        ((Kind.UNSUITABLE, text) for text in refused),
        taken_by_others(function, taker, holders) if holders else (),
        _host_uses(function, snapshot, as_root),
        _companions(along, taker, holders, snapshot, as_root),
        () if alone else _group(function, with_them, holders, snapshot),
        _not_bound(function) if bind == device_spec.BIND_NONE else (),
        () if users is None else _open(users),
    ):
        yield Obstacle(kind, f'PCI function {function.address}', text)


def _cannot_be_emptied(
    function: pci.Function, spec: device_spec.Spec | None, bind: str
) -> Iterator[tuple[Kind, str]]:
    text = storage.refusal(function, bind, storage.has_command(spec))
    if text is not None:
        yield Kind.UNSUITABLE, text


def _open(users: Callable[[], Sequence[str]]) -> Iterator[tuple[Kind, str]]:
    if found := users():
        yield Kind.OPEN, '; '.join(found)


def vfio_refusals(
    function: pci.Function, spec: device_spec.Spec | None
) -> Iterator[str]:
    """Say why the kernel would refuse a function for a guest.

    The answer is the same for all VFs of a PF, unless VFIO has one already.
    vfio_rules.of_host() is not included, because it is the same for all.

    :returns: a clause for each reason
    """
    if vfio_rules.is_listed(function.ids) and not vfio.is_bound(function):
        driver = vfio.driver_for(function, spec or device_spec.Spec())
        text = vfio_rules.denied(function.ids, driver)
        if text is not None:
            yield text
    if (text := vfio_rules.of_group(function)) is not None:
        yield text


def _refusals(
    function: pci.Function, spec: device_spec.Spec | None
) -> Iterator[str]:
    yield from vfio_refusals(function, spec)
    if (text := vfio_rules.of_host()) is not None:
        yield text


def _texts(found: Iterable[Obstacle]) -> Iterator[tuple[Kind, str]]:
    return ((each.kind, each.text) for each in found)


def _not_bound(function: pci.Function) -> Iterator[tuple[Kind, str]]:
    if not vfio.is_bound(function):
        yield (
            Kind.UNSUITABLE,
            f'it is bound to {function.driver or "no driver"}, and with '
            'bind = none someone else has to bind it to VFIO first',
        )


def _not_offered(
    function: pci.Function, spec: device_spec.Spec | None, as_root: bool
) -> Iterator[tuple[Kind, str]]:
    if spec is None:
        yield Kind.NOT_OFFERED, device_spec.not_offered(function.address)
    elif spec.mdev_types or spec.vgpu_type:
        yield (
            Kind.NOT_OFFERED,
            '[os_acc] device_spec offers it for mdevs or vGPUs only',
        )
    elif spec.names_interface_of(function):
        yield (
            Kind.NOT_OFFERED,
            f'[os_acc] device_spec names it by its interface {spec.devname}, '
            'which it loses when it is bound to VFIO: name it by its address',
        )
    elif (
        # Root is asked after a claim, which was checked for this.
        not as_root
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
    elif (main := companions.main_of(function, spec)) is not None:
        yield (
            Kind.NOT_OFFERED,
            f'it is a companion of {main} in [os_acc] device_spec and is '
            'offered only with it',
        )


def _unsuitable(function: pci.Function) -> Iterator[tuple[Kind, str]]:
    if vgpu.is_place(function):
        now = vgpu.current(function.address)
        kind = f'vGPU type {now} is set on it' if now else 'it has no type now'
        yield (
            Kind.UNSUITABLE,
            f"it is a VF that NVIDIA's driver keeps for a vGPU ({kind}), not "
            'a whole GPU: the driver nvidia_vgpu gives it out if device_spec '
            'sets vgpu_type for it',
        )
    if function.is_bridge:
        yield Kind.UNSUITABLE, 'it is a bridge, which no guest can use'
    if function.is_pf and (number := sriov.count(function.address)):
        yield Kind.HAS_VFS, f'it is a PF that has {number} VFs'


def reserved_obstacles(
    address: str, holders: allocated.Holders
) -> Iterator[Obstacle]:
    """Say why a function, which need not exist, is kept back."""
    if (reason := holders.reserved(address)) is not None:
        yield Obstacle(
            Kind.RESERVED,
            f'PCI function {address}',
            f'it is reserved: {reason}. To free it: os-acc device free '
            f'{address}',
        )


def taken_by_others(
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


def _companions(
    along: Sequence[pci.Function],
    taker: allocated.Taker,
    holders: allocated.Holders,
    snapshot: host_use.Snapshot | None,
    as_root: bool,
) -> Iterator[tuple[Kind, str]]:
    """Check the functions that are bound to VFIO along with a function."""
    for each in along:
        whole = holders.of_function(each.address)
        if whole is not None and whole.instance_uuid != taker.instance_uuid:
            what = f'its companion {each.address}'
            yield Kind.ALLOCATED, _has(whole, what)
        for kind, text in _host_uses(each, snapshot, as_root):
            yield kind, f'its companion {each.address}: {text}'


def _group(
    function: pci.Function,
    taker: allocated.Taker,
    holders: allocated.Holders,
    snapshot: host_use.Snapshot | None,
) -> Iterator[tuple[Kind, str]]:
    """Check the IOMMU group, which VFIO gives to one guest as a whole."""
    group = function.iommu_group
    if group is None:
        yield Kind.NO_IOMMU_GROUP, vfio.NO_IOMMU_GROUP
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

# SPDX-License-Identifier: Apache-2.0

"""May a PCI function be taken now, and if not, why?

Discovery, selection, the check before a VAN takes a function, the privileged
half and os-acc doctor all ask obstacles(), so that they agree. The caller
passes what the journal knows as plain data, see vans.Holder.

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
import functools
import itertools

from os_acc import exception
from os_acc.availability import companions
from os_acc.availability import host_use
from os_acc.availability import storage
from os_acc.availability import vfio_rules
from os_acc.claims import vans
from os_acc.kernel import modules
from os_acc.kernel import open_files
from os_acc.kernel import pci
from os_acc.kernel import sriov
from os_acc.kernel import vfio
from os_acc.kernel import vgpu
from os_acc.refusals import offer_refusals
from os_acc.refusals import reasons
from os_acc.refusals import refusals
from os_acc.refusals.reasons import Reason
from os_acc.spec import device_spec
from os_acc.spec import parts as spec_parts

Category = reasons.Category


@dataclasses.dataclass(frozen=True)
class Obstacle:
    """One reason why a device cannot be taken: see reasons.Reason."""

    category: Category
    device: str  # what it is about, such as 'PCI function 0000:3b:00.0'
    text: str
    remedy: str = ''

    @classmethod
    def of(cls, device: str, reason: Reason) -> Obstacle:
        return cls(reason.category, device, reason.text, reason.remedy)

    def error(self) -> exception.ExceptionBase:
        """The error to raise if the device is needed."""
        if self.category is Category.NOT_OFFERED:
            return exception.DeviceNotFound(
                wanted=self.device, reason=self.text
            )
        if self.category in (Category.UNSUITABLE, Category.NO_IOMMU_GROUP):
            return exception.DeviceError(device=self.device, reason=self.text)
        if self.category in (Category.HOST_USE, Category.GROUP_HOST_USE):
            return exception.DeviceInUseByHost(
                device=self.device, by=self.text
            )
        if self.category is Category.UNHEALTHY:
            return exception.DeviceUnhealthy(
                device=self.device, reason=self.text
            )
        return exception.DeviceBusy(device=self.device, reason=self.text)


def obstacles(
    function: pci.Function,
    spec: device_spec.Spec | None,
    bind: str,
    holders: vans.Vans | None = None,
    snapshot: host_use.Snapshot | None = None,
    as_root: bool = False,
    alone: bool = False,
    refused: Iterable[Reason] | None = None,
    held: bool = False,
    users: Callable[[], Sequence[str]] | None = None,
) -> Iterator[Obstacle]:
    """Say why a PCI function cannot be taken as a whole.

    :param spec: the entry of device_spec for it; None if there is none
    :param bind: who is to bind it, one of device_spec.BINDS. With BIND_HOST,
        os-acc binds it to the entry's host_driver. If it is bound to that
        already, nothing is changed, and its users are no obstacle
    :param holders: the VANs of the journal, and who wants the function; None
        if the journal is unavailable
    :param snapshot: pass one when asking about many functions
    :param as_root: this process is root: also find block devices that the
        host has opened exclusively
    :param alone: the caller knows that it is alone in its IOMMU group
    :param refused: what vfio_refusals() says of it, or of a VF of the same PF,
        and vfio_rules.of_host(); None: they are called here
    :param held: the caller knows that the VAN already has it, so that
        device_spec and the device's health do not matter
    :param users: finds who has the function open: a clause for each user.
        Called last. None: do not check this
    :returns: all obstacles, the most important one first
    """
    if holders is None:
        holders = vans.Vans()
    vfio_bound = bind != device_spec.BIND_HOST
    kept = not vfio_bound and has_host_driver(function, spec)
    if refused is None:
        refused = _refusals(function, spec) if vfio_bound else ()
    accompanying = companions.of(function, spec, bind)
    own = holders.taker.functions
    if accompanying:
        own = own.union(each.address for each in accompanying)
    find_vans = functools.cache(lambda: in_the_way(function, holders))
    # The VAN has had the function since before a reboot. It keeps it, even if
    # device_spec no longer offers it, or if it has failed since.
    held = held or holders.has(holders.taker.van_uuid, function.address)
    for reason in itertools.chain(
        () if held else _not_offered(function, spec),
        _unsuitable(function),
        _cannot_be_emptied(function, spec, bind),
        _reserved(function.address, holders),
        refused,
        _met(find_vans, close=True),
        () if held else _unhealthy(function, holders),
        () if kept else _host_uses(function, snapshot, as_root),
        _companions(accompanying, holders, snapshot, as_root),
        ()
        if alone or not vfio_bound
        else host_use.group_obstacles(function, own, snapshot),
        _met(find_vans, close=False),
        _not_bound(function) if bind == device_spec.BIND_NONE else (),
        () if users is None or kept else _open(users),
    ):
        yield Obstacle.of(f'PCI function {function.address}', reason)


def _met(
    find_vans: Callable[[], Sequence[vans.Met]], close: bool
) -> Iterator[Reason]:
    """The VANs that exclude a function.

    :param close: whether those that have it, a part of it, the device that it
        is a part of, or its FPGA; or the others, which may have another member
        of its IOMMU group
    """
    for each in find_vans():
        if each.is_close is close:
            yield each.reason


def in_the_way(
    function: pci.Function, holders: vans.Vans
) -> Sequence[vans.Met]:
    """The VANs that keep a function from being given out as a whole."""
    return holders.in_the_way(f'pci/{function.address}', function.parent)


def has_host_driver(
    function: pci.Function, spec: device_spec.Spec | None
) -> bool:
    """Whether a function is bound to the host_driver of its entry."""
    return (
        spec is not None
        and spec.host_driver is not None
        and modules.same(function.driver or '', spec.host_driver)
    )


def part_obstacles(
    device: str, label: str, holders: vans.Vans
) -> Iterator[Obstacle]:
    """Say which VANs keep the parts of a device from being given out.

    :param device: the PF of the VF, or the parent of the mediated device
    :param label: the device, for the error
    """
    for each in holders.in_the_way(f'mdev/of-{device}', device):
        yield Obstacle.of(label, each.reason)


def offer_obstacles(
    function: pci.Function, spec: device_spec.Spec | None
) -> Iterator[Obstacle]:
    """Say why device_spec does not offer a function as a whole."""
    for reason in _not_offered(function, spec):
        yield Obstacle.of(f'PCI function {function.address}', reason)


def _cannot_be_emptied(
    function: pci.Function, spec: device_spec.Spec | None, bind: str
) -> Iterator[Reason]:
    command = storage.has_command(spec)
    if (reason := storage.refusal(function, bind, command)) is not None:
        yield reason


def _open(users: Callable[[], Sequence[str]]) -> Iterator[Reason]:
    if found := users():
        yield refusals.opened(found)


def vfio_refusals(
    function: pci.Function, spec: device_spec.Spec | None
) -> Iterator[Reason]:
    """Say why the kernel would refuse a function for a guest.

    The answer is the same for all VFs of a PF, unless VFIO has one already.
    vfio_rules.of_host() is not included, because it is the same for all.
    """
    if vfio_rules.is_listed(function.ids) and not vfio.is_bound(function):
        driver = vfio_rules.driver_for(function, spec or device_spec.Spec())
        reason = vfio_rules.denied(function.ids, driver)
        if reason is not None:
            yield reason
    if (reason := vfio_rules.of_group(function)) is not None:
        yield reason


def _refusals(
    function: pci.Function, spec: device_spec.Spec | None
) -> Iterator[Reason]:
    yield from vfio_refusals(function, spec)
    if (reason := vfio_rules.of_host()) is not None:
        yield reason


def _not_bound(function: pci.Function) -> Iterator[Reason]:
    if not vfio.is_bound(function):
        yield refusals.NOT_BOUND.reason(driver=function.driver or 'no driver')


def _not_offered(
    function: pci.Function, spec: device_spec.Spec | None
) -> Iterator[Reason]:
    if spec is None:
        yield device_spec.not_offered(function.address)
    elif not spec_parts.offers_whole(spec, function):
        yield offer_refusals.FOR_PARTS_ONLY.reason(parts=spec_parts.text(spec))
    elif spec.names_interface_of(function):
        yield refusals.OWN_INTERFACE.reason(interface=spec.devname)
    elif (main := companions.main_of(function, spec)) is not None:
        yield refusals.COMPANION_ONLY.reason(main=main)


def _unsuitable(function: pci.Function) -> Iterator[Reason]:
    if vgpu.is_place(function):
        now = vgpu.current(function.address)
        is_set = f'vGPU type {now} is set on it'
        state = is_set if now else 'it has no type now'
        yield offer_refusals.FOR_VGPU.reason(state=state)
    if function.is_bridge:
        yield refusals.BRIDGE.reason()
    if function.is_pf and (number := sriov.count(function.address)):
        yield refusals.HAS_VFS.reason(number=number)


def reserved_obstacles(address: str, holders: vans.Vans) -> Iterator[Obstacle]:
    """Say why a function, which need not exist, is kept back."""
    for reason in _reserved(address, holders):
        yield Obstacle.of(f'PCI function {address}', reason)
    if (why := holders.unhealthy.of_device(address)) is not None:
        yield Obstacle.of(f'PCI function {address}', why)


def _reserved(address: str, holders: vans.Vans) -> Iterator[Reason]:
    if (reason := holders.reserved(address)) is not None:
        yield refusals.RESERVED.reason(reason=reason, address=address)


def unhealthy_obstacles(
    function: pci.Function, holders: vans.Vans
) -> Iterator[Obstacle]:
    """Say whether a function, or its device, has failed."""
    for reason in _unhealthy(function, holders):
        yield Obstacle.of(f'PCI function {function.address}', reason)


def _unhealthy(function: pci.Function, holders: vans.Vans) -> Iterator[Reason]:
    if (reason := holders.unhealthy.of_function(function)) is not None:
        yield reason


def answer_obstacles(function: pci.Function) -> Iterator[Obstacle]:
    """Say whether a function no longer responds."""
    if not pci.answers(function.address):
        yield Obstacle.of(
            f'PCI function {function.address}', refusals.NO_ANSWER.reason()
        )


def host_obstacles(
    function: pci.Function,
    snapshot: host_use.Snapshot | None = None,
    as_root: bool = False,
) -> Iterator[Obstacle]:
    """Say what the host itself uses a function for. See obstacles()."""
    for reason in _host_uses(function, snapshot, as_root):
        yield Obstacle.of(f'PCI function {function.address}', reason)


def _host_uses(
    function: pci.Function, snapshot: host_use.Snapshot | None, as_root: bool
) -> Iterator[Reason]:
    if as_root and snapshot is None:
        snapshot = host_use.Snapshot.read()
    if (use := host_use.by_host(function, snapshot)) is not None:
        yield use
    if as_root and snapshot is not None:
        names = snapshot.below(function.path)
        for name in open_files.exclusively_used(names):
            yield refusals.OPEN_EXCLUSIVELY.reason(name=name)


def _companions(
    accompanying: Sequence[pci.Function],
    holders: vans.Vans,
    snapshot: host_use.Snapshot | None,
    as_root: bool,
) -> Iterator[Reason]:
    """Check the functions that are bound to VFIO together with a function."""
    for each in accompanying:
        for found in holders.in_the_way(f'pci/{each.address}', None):
            if found.other.instance_uuid != holders.taker.instance_uuid:
                yield found.taken(f'its companion {each.address}')
        for use in _host_uses(each, snapshot, as_root):
            yield refusals.COMPANION_USED.reason(
                address=each.address, use=use.text
            )

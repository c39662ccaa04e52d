# SPDX-License-Identifier: Apache-2.0

"""Which VAN has which device, and the checks before another VAN takes one."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib

from oslo_config import cfg

from os_acc import driver as driver_base
from os_acc import health
from os_acc import objects
from os_acc.availability import functions as availability
from os_acc.claims import allocated
from os_acc.claims import facts
from os_acc.drivers import given_files
from os_acc.journal import health as health_rows
from os_acc.kernel import chip
from os_acc.kernel import pci
from os_acc.kinds.fpga import ids as fpga_ids
from os_acc.objects import van as van_states
from os_acc.refusals import refusals
from os_acc.spec import device_spec

CONF = cfg.CONF


def holders(
    driver: driver_base.DriverBase,
    van: objects.VAN | None = None,
    slots: Mapping[str, facts.Slot] | None = None,
) -> allocated.Holders:
    """The VANs of this host that have or request handles, by the journal.

    :param van: the VAN that wants something; None: any
    :param slots: as allocated.Holders
    """
    rows = driver.handles()
    found = allocated.Holders(
        rows,
        {
            each.address: f'{each.reason} (since {each.since[:19]})'
            for each in driver.journal.reservations()
        },
        health.View(driver.journal),
        [each.device for each in driver.journal.programs()],
        lambda: given_files.claimed(driver.journal, rows, _specs()),
        _specs,
        lambda: driver.journal.devices_of('work_queues'),
        many=van is None,
        slots=slots,
    )
    if van is None:
        return found
    return found.asked_by(allocated.Taker(van.uuid, van.instance_uuid))


def _specs() -> device_spec.Specs:
    return device_spec.load_for_vans(CONF)


@contextlib.contextmanager
def group_lock(
    driver: driver_base.DriverBase, function: pci.Function
) -> Iterator[None]:
    """Lock a function's IOMMU group, if other devices are in it."""
    group = function.iommu_group
    if group is None or len(pci.group_members(group)) < 2:
        yield
        return
    with driver.lock(f'iommu-group-{group}'):
        yield


@contextlib.contextmanager
def shared_locks(
    driver: driver_base.DriverBase,
    function: pci.Function,
    spec: device_spec.Spec | None,
) -> Iterator[None]:
    """Lock what a function shares with others: its FPGA, its IOMMU group.

    The caller holds the function's lock. The lock of the FPGA is not held
    while it is programmed.

    :param spec: the entry of device_spec for it
    """
    with contextlib.ExitStack() as stack:
        if fpga_ids.is_fpga(function, spec) or holders(driver).is_programmed(
            function.parent
        ):
            parents = chip.parents(function)
            if len(parents) > 1:
                stack.enter_context(driver.lock(f'{parents[0]}/chip'))
        stack.enter_context(group_lock(driver, function))
        yield


def check_function(
    driver: driver_base.DriverBase,
    van: objects.VAN,
    function: pci.Function,
    spec: device_spec.Spec | None,
    bind: str,
    new: bool,
    companions: Iterable[str] = (),
) -> None:
    """Check that a VAN can take a PCI function.

    The caller holds the function's lock and shared_locks().

    :param spec: the entry of device_spec for it
    :param bind: who is to bind it, one of device_spec.BINDS
    :param new: whether it is a VF that os-acc has just made, so that nobody
        can have it open
    :param companions: the addresses of functions that are bound to VFIO with
        it
    """
    own = functions_of(driver.requests_of(van.instance_uuid))
    known = holders(driver, van).asked_by(
        allocated.Taker(
            van.uuid, van.instance_uuid, frozenset(own.union(companions))
        )
    )

    def users() -> Sequence[str]:
        return _users(function, van.instance_uuid, known)

    check(
        availability.obstacles(
            function, spec, bind, known, users=None if new else users
        )
    )
    check(availability.answer_obstacles(function))


def check_nobody_has_open(
    function: pci.Function, instance_uuid: str, known: allocated.Holders
) -> None:
    """Check that no other instance and no process has a function open."""
    check_open(
        f'PCI function {function.address}',
        _users(function, instance_uuid, known),
    )


def _users(
    function: pci.Function, instance_uuid: str, known: allocated.Holders
) -> Sequence[str]:
    from os_acc.privileged import device_users

    shares = shares_group(function, instance_uuid, known)
    return device_users.of_function(function.address, instance_uuid, shares)


def check_healthy(
    driver: driver_base.DriverBase, van: objects.VAN, address: str
) -> None:
    """Check that a device may be given to a VAN, unless the VAN has it.

    A VAN that is plugged and is prepared again keeps its device, even if the
    device has failed since.

    :param address: of the device, which need not be a PCI function
    """
    if van.state not in van_states.WHOLE:
        health.check(driver.journal, address)


def check_not_whole(
    driver: driver_base.DriverBase, van: objects.VAN, address: str, device: str
) -> None:
    """Check that a shared device is healthy and not held whole.

    :param device: what errors call it
    """
    check_healthy(driver, van, address)
    check(availability.part_obstacles(address, device, holders(driver, van)))


def check_no_file(
    driver: driver_base.DriverBase, van: objects.VAN, uuid: str
) -> None:
    """Check that no other VAN has a mediated device, or its device file."""
    check(
        availability.Obstacle.of(f'mdev {uuid}', each.reason)
        for each in holders(driver, van).in_the_way(f'mdev/{uuid}', None)
    )


def check(obstacles: Iterable[availability.Obstacle]) -> None:
    """Raise the error of the first obstacle, if there is one."""
    for obstacle in obstacles:
        raise obstacle.error()


def check_open(device: str, users: Sequence[str]) -> None:
    """Check that nobody has a device open."""
    if users:
        check([availability.Obstacle.of(device, refusals.opened(users))])


def address_of(van: objects.VAN) -> str:
    """The address of the PCI function that a VAN has."""
    assert isinstance(van.handle, objects.PCIHandle)
    address: str = van.handle.address
    return address


def functions_of(
    found: Iterable[objects.VAN | objects.AcceleratorRequest],
) -> set[str]:
    """The addresses of the PCI functions that VANs have or requests name."""
    handles = [each.handle for each in found]
    return {
        handle.address
        for handle in handles
        if isinstance(handle, objects.PCIHandle)
    }


def selector(request: objects.AcceleratorRequest) -> str:
    """The resource class, traits and port of a request, for a message."""
    traits = ', '.join(request.traits) or '(any)'
    text = f'{request.resource_class} with the traits {traits}'
    if request.physical_network is not None:
        text += f', on physical network {request.physical_network}'
    if request.port is not None and request.port.trusted:
        text += ', which may be trusted'
    return text


def shares_group(
    function: pci.Function, instance_uuid: str, holders: allocated.Holders
) -> bool:
    """Whether an instance has another function of an IOMMU group."""
    for name in pci.group_members(function.iommu_group or ''):
        other = holders.of_function(name)
        if (
            name != function.address
            and other is not None
            and other.device is not None
            and other.instance_uuid == instance_uuid
        ):
            return True
    return False


def reserve_later(
    van: objects.VAN, specs: device_spec.Specs, function: pci.Function
) -> None:
    """Save that a function of one-time use is reserved at its release."""
    spec = specs.known(function)
    if spec is not None and spec.one_time_use:
        van.driver_data = {
            **van.driver_data,
            health_rows.RESERVE: 'device_spec has one_time_use, and '
            f'instance {van.instance_uuid} had it',
        }
        van.save()

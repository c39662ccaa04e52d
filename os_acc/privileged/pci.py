# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Taking, cleaning and giving back PCI functions and VFs, as root."""

from __future__ import annotations

from collections.abc import Sequence

from os_acc import exception
from os_acc.devices import allocated
from os_acc.devices import availability
from os_acc.devices import device_spec
from os_acc.devices import modules
from os_acc.devices import operation_lock
from os_acc.devices import pci
from os_acc.devices import sriov
from os_acc.devices import vfio
from os_acc.devices import waiting
from os_acc.privileged import arguments
from os_acc.privileged import cleaning
from os_acc.privileged import context
from os_acc.privileged import device_users
from os_acc.privileged import held
from os_acc.privileged import offers


@context.entry
def take(
    address: str, driver: str, siblings: Sequence[str], seconds: float
) -> str:
    """Bind a function that nobody uses to a VFIO driver.

    :param driver: the VFIO driver's module
    :param siblings: addresses of the functions that go to the same guest
    :param seconds: for the whole operation
    :returns: the driver's name as the kernel spells it
    :raises DeviceInUseByHost, DeviceBusy: if it is used
    :raises DeviceError: if no guest can use it, or the kernel refuses
    :raises Timeout: if it is not bound in time
    """
    function = arguments.function(address)
    allowed = arguments.addresses(siblings)
    seconds = arguments.seconds(seconds)
    expected = vfio.driver_for(function, offers.entry(function))
    if not modules.same(driver, expected):
        arguments.refuse('driver', driver, expected)

    def act() -> str:
        with operation_lock.held(function.path, seconds / 2):
            _check_available(address, allowed)
            name = modules.load_driver(driver, seconds)
            held.note_function(function)
            vfio.bind(address, name, seconds)
            return name

    return waiting.at_most(
        act, seconds, f'PCI function {address} to be bound to {driver}'
    )


def _check_available(address: str, siblings: Sequence[str]) -> None:
    """Check again, under the lock, that a function can be taken.

    The privileged half has no journal; the calling driver has checked it.
    """
    function = pci.get(address)
    since_before = held.has(function)
    for obstacle in availability.obstacles(
        function,
        None if since_before else offers.entry(function),
        device_spec.BIND_OS_ACC,
        allocated.Taker(functions=frozenset(siblings)),
        as_root=True,
        held=since_before,
    ):
        raise obstacle.error()


@context.entry
def clean(
    address: str,
    ids: str,
    reset_mode: str,
    release_seconds: float,
    seconds: float,
    shares: bool = False,
) -> None:
    """Clean a function, once its guest has closed it. It stays bound.

    :param ids: vendor:product of the function when it was taken
    :param reset_mode: one of reset.MODES
    :param release_seconds: how long the guest may take to close it
    :param seconds: for the reset
    :param shares: whether the guest keeps other functions of its IOMMU group
    :raises DeviceBusy: if a guest still has it open
    :raises DeviceInUseByHost: if the host uses it by now: a reset would harm
        the host
    :raises CleaningFailed: if it could not be cleaned
    """
    function = arguments.function(address)
    seconds = arguments.seconds(seconds)
    # The lock is held from the first check to the end of the cleaning, even
    # if the caller dies meanwhile.
    with operation_lock.held(function.path, seconds / 2) as lock:
        function = _same(address, ids)
        device_users.wait_until_closed(
            function.path, f'PCI function {address}', release_seconds, shares
        )
        if not vfio.is_bound(function):
            for obstacle in availability.host_obstacles(
                function, as_root=True
            ):
                raise obstacle.error()
        cleaning.clean(function, reset_mode, seconds, lock)


@context.entry
def give_back(
    address: str,
    ids: str,
    driver: str | None,
    override: str | None,
    seconds: float,
    shares: bool = False,
) -> None:
    """Bind a function to its earlier driver again. It must be clean.

    :param ids: vendor:product of the function when it was taken
    :param driver: the driver that it had before; None if it had none
    :param override: its driver_override before; None if it was unset
    :param seconds: for the whole operation
    :param shares: whether the guest keeps other functions of its IOMMU group
    :raises DeviceBusy: if a guest has it open, or somebody else has bound it
    :raises DeviceError, Timeout: if its driver could not be bound again
    """
    function = arguments.there(address)
    to = vfio.Binding(driver, override)
    _check_names(to)
    seconds = arguments.seconds(seconds)
    device = f'PCI function {address}'

    def act() -> None:
        with operation_lock.held(function.path, seconds / 2):
            now = _same(address, ids)
            if vfio.Binding.of(now) == to:
                # It was given back before, and may not be offered any more.
                held.forget(held.PCI, address)
                return
            offers.check(now)
            foreign = now.driver not in (None, to.driver)
            if foreign and not vfio.is_bound(now):
                raise exception.DeviceBusy(
                    device=device, reason=f'it is bound to driver {now.driver}'
                )
            if now.driver != to.driver:
                device_users.wait_until_closed(now.path, device, 0, shares)
            if to.driver and modules.loaded_driver(to.driver) is None:
                raise exception.DeviceError(
                    device=device,
                    reason=f'its earlier driver {to.driver} is not loaded '
                    'any more: load it',
                )
            vfio.restore(address, to, seconds)
            held.forget(held.PCI, address)

    waiting.at_most(
        act,
        seconds,
        f'PCI function {address} to be given back to {driver or "no driver"}',
    )


@context.entry
def hold(address: str) -> None:
    """Note that a VAN has a function that others bind to VFIO and back.

    :raises DeviceNotFound: if device_spec does not offer it
    """
    held.note_function(arguments.function(address))


@context.entry
def let_go(address: str) -> None:
    """Delete the note of hold(), once the function is clean."""
    arguments.addresses([address])
    held.forget(held.PCI, address)


def _same(address: str, ids: str) -> pci.Function:
    """Read a function again, under the lock.

    :raises DeviceNotFound: if another device is at the address
    """
    function = pci.get(address)
    if function.ids != ids:
        raise exception.DeviceNotFound(
            wanted=f'PCI function {address}, {ids}',
            reason=f'{function.ids} is at that address now',
        )
    return function


def _check_names(binding: vfio.Binding) -> None:
    for field, value in (
        ('driver', binding.driver),
        ('override', binding.override),
    ):
        if value is not None and not modules.is_name(value):
            arguments.refuse(field, value, 'the name of a driver, or None')


@context.entry
def create_vfs(pf: str, number: int, seconds: float) -> None:
    """Create VFs on a PF that has none.

    :raises DeviceBusy: if the PF has VFs already
    :raises DeviceError, Timeout: as sriov.create
    """
    function = arguments.function(pf)
    arguments.whole(number, 'number', sriov.total(pf), least=1)
    seconds = arguments.seconds(seconds)

    def act() -> None:
        with operation_lock.held(function.path, seconds / 2):
            if there := sriov.count(pf):
                raise exception.DeviceBusy(
                    device=f'PF {pf}', reason=f'it has {there} VFs'
                )
            held.note(held.VFS, pf, function.ids)
            sriov.create(pf, number, seconds)

    waiting.at_most(act, seconds, f'{number} VFs of PF {pf} to be made')


@context.entry
def remove_vfs(
    pf: str, autoprobe_before: str | None, seconds: float
) -> list[str]:
    """Remove the VFs of a PF, if nobody uses any of them.

    :param autoprobe_before: '0', '1' or None, see sriov.remove
    :returns: a clause for each VF that is used; empty if they are removed
    :raises DeviceError, Timeout: if they cannot be removed
    """
    function = arguments.there(pf)
    seconds = arguments.seconds(seconds)
    if autoprobe_before not in (None, '0', '1'):
        arguments.refuse('autoprobe_before', autoprobe_before, "'0' or '1'")

    def act() -> list[str]:
        with operation_lock.held(function.path, seconds / 2):
            if not sriov.count(pf) and sriov.autoprobe(pf) == autoprobe_before:
                # They were removed before, and the PF may not be offered.
                held.forget(held.VFS, pf)
                return []
            offers.check(pci.get(pf))
            users = availability.vf_users(pci.get(pf))
            if not users:
                sriov.remove(pf, autoprobe_before)
            held.forget(held.VFS, pf)
            return users

    return waiting.at_most(act, seconds, f'the VFs of PF {pf} to be removed')

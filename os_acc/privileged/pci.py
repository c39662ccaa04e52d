# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""PCI functions and VFs, as root."""

from __future__ import annotations

from collections.abc import Sequence

from os_acc import exception
from os_acc.devices import holders
from os_acc.devices import in_use
from os_acc.devices import modules
from os_acc.devices import pci
from os_acc.devices import sriov
from os_acc.devices import turns
from os_acc.devices import vfio
from os_acc.devices import waiting
from os_acc.privileged import arguments
from os_acc.privileged import cleaning
from os_acc.privileged import context
from os_acc.privileged import holding


@context.entry
def take(
    address: str, driver: str, siblings: Sequence[str], seconds: float
) -> str:
    """Bind a function that nobody uses to a VFIO driver.

    :param driver: the VFIO driver's module
    :param siblings: addresses that go to the same guest
    :param seconds: for all of it
    :returns: the driver's name as the kernel spells it
    :raises DeviceInUseByHost, DeviceBusy, DeviceError, Timeout: as they say
    """
    function = arguments.function(address)
    allowed = arguments.addresses(siblings)
    seconds = arguments.seconds(seconds)
    if not modules.same(driver, modules.vfio_driver(function.modalias)):
        arguments.refuse(
            'driver', driver, modules.vfio_driver(function.modalias)
        )

    def act() -> str:
        with turns.on(function.path, seconds / 2):
            _check_unused(address, allowed)
            name = modules.load_driver(driver, seconds)
            vfio.bind(address, name, seconds)
            return name

    return waiting.at_most(
        act, seconds, f'PCI function {address} to be bound to {driver}'
    )


def _check_unused(address: str, siblings: Sequence[str]) -> None:
    """Look once more, with nothing between the look and the act."""
    function = pci.get(address)
    if function.is_pf and (number := sriov.count(address)):
        raise exception.DeviceBusy(
            device=f'PF {address}', holder=f'its {number} VFs'
        )
    _check_host(function)
    for member, reason in in_use.in_group(function):
        if isinstance(member, str) or member.address not in siblings:
            raise exception.DeviceInUseByHost(
                device=f'PCI function {address}', by=reason
            )


@context.entry
def clean(
    address: str,
    ids: str,
    reset_mode: str,
    release_seconds: float,
    seconds: float,
) -> None:
    """Clean a function that its guest has let go of; it stays as bound.

    :param ids: vendor:product, as it was taken
    :param reset_mode: one of reset.MODES
    :param release_seconds: how long the guest may take to let go
    :param seconds: for the reset
    :raises DeviceBusy: a guest still has it
    :raises DeviceInUseByHost: the host uses it by now: what a reset would do
        to that, nobody wants
    :raises CleaningFailed: it is not clean
    """
    function = arguments.function(address)
    seconds = arguments.seconds(seconds)
    # From the first look to the last act: if the caller dies, this goes on.
    with turns.on(function.path, seconds / 2) as turn:
        function = _same(address, ids)
        holding.wait(function.path, f'PCI function {address}', release_seconds)
        if not vfio.is_bound(function):
            _check_host(function)
        cleaning.clean(function, reset_mode, seconds, turn)


@context.entry
def give_back(
    address: str,
    ids: str,
    driver: str | None,
    override: str | None,
    seconds: float,
) -> None:
    """Give a function back to what had it, once it is clean.

    :param ids: vendor:product, as it was taken
    :param driver: what had it before; None: nothing
    :param override: its driver_override before; None: unset
    :param seconds: for all of it
    :raises DeviceBusy: a guest has it
    :raises DeviceError, Timeout: its driver did not take it again
    """
    function = arguments.function(address)
    to = vfio.Binding(driver, override)
    _check_names(to)
    seconds = arguments.seconds(seconds)

    def act() -> None:
        with turns.on(function.path, seconds / 2):
            now = _same(address, ids)
            foreign = now.driver not in (None, to.driver)
            if foreign and not vfio.is_bound(now):
                raise exception.DeviceBusy(
                    device=f'PCI function {address}',
                    holder=f'driver {now.driver}',
                )
            if now.driver != to.driver:
                holding.wait(now.path, f'PCI function {address}', 0)
            if to.driver and modules.loaded_driver(to.driver) is None:
                raise exception.DeviceError(
                    device=f'PCI function {address}',
                    reason=f'driver {to.driver}, which had it, is not '
                    'loaded any more: load it',
                )
            vfio.restore(address, to, seconds)

    waiting.at_most(
        act, seconds, f'PCI function {address} to go back to {driver}'
    )


def _same(address: str, ids: str) -> pci.Function:
    """Look again, with the turn on it.

    :raises DeviceNotFound: another device is there
    """
    function = pci.get(address)
    if function.ids != ids:
        raise exception.DeviceNotFound(
            wanted=f'PCI function {address}, {ids}',
            reason=f'{function.ids} is at that address now',
        )
    return function


def _check_host(function: pci.Function) -> None:
    """:raises DeviceInUseByHost: it uses it"""
    snapshot = in_use.Snapshot.read()
    use = in_use.by_host(function, snapshot)
    for holder in holders.by_kernel(snapshot.below(function.path)):
        use = use or holder
    if use is not None:
        raise exception.DeviceInUseByHost(
            device=f'PCI function {function.address}', by=use
        )


def _check_names(binding: vfio.Binding) -> None:
    for field, value in (
        ('driver', binding.driver),
        ('override', binding.override),
    ):
        if value is not None and not modules.is_name(value):
            arguments.refuse(field, value, 'the name of a driver, or None')


@context.entry
def create_vfs(pf: str, number: int, seconds: float) -> None:
    """Create the VFs of a PF that has none: all of them, or none.

    :raises DeviceError, Timeout: as sriov.create
    """
    function = arguments.function(pf)
    arguments.whole(number, 'number', sriov.total(pf), least=1)
    seconds = arguments.seconds(seconds)

    def act() -> None:
        with turns.on(function.path, seconds / 2):
            if there := sriov.count(pf):
                raise exception.DeviceBusy(
                    device=f'PF {pf}', holder=f'its {there} VFs'
                )
            sriov.create(pf, number, seconds)

    waiting.at_most(act, seconds, f'{number} VFs of PF {pf}')


@context.entry
def remove_vfs(
    pf: str, autoprobe_before: str | None, seconds: float
) -> list[str]:
    """Remove the VFs of a PF, if nobody uses one of them.

    :param autoprobe_before: '0', '1' or None, see sriov.remove
    :returns: who uses them; empty: they are removed
    :raises DeviceError, Timeout: they cannot be removed
    """
    function = arguments.function(pf)
    seconds = arguments.seconds(seconds)
    if autoprobe_before not in (None, '0', '1'):
        arguments.refuse('autoprobe_before', autoprobe_before, "'0' or '1'")

    def act() -> list[str]:
        with turns.on(function.path, seconds / 2):
            users = _vf_users(pci.get(pf))
            if not users:
                sriov.remove(pf, autoprobe_before)
            return users

    return waiting.at_most(act, seconds, f'the VFs of PF {pf} to be removed')


def _vf_users(pf: pci.Function) -> list[str]:
    snapshot = in_use.Snapshot.read()
    found = []
    for address in pf.vf_addresses:
        vf = pci.find(address)
        if vf is None:
            continue
        if (use := in_use.by_host(vf, snapshot)) is not None:
            found.append(f'VF {address}: {use}')
        elif vf.driver is not None:
            # Ours have none, once they are given back: somebody bound it.
            found.append(f'VF {address}: it is bound to {vf.driver}')
    return found

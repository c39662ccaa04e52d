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
from os_acc.devices import host_use
from os_acc.devices import modules
from os_acc.devices import operation_lock
from os_acc.devices import pci
from os_acc.devices import sriov
from os_acc.devices import storage as storage_functions
from os_acc.devices import vf_availability
from os_acc.devices import vfio
from os_acc.devices import vgpu
from os_acc.devices import vgpu_availability
from os_acc.devices import waiting
from os_acc.privileged import arguments
from os_acc.privileged import bindings
from os_acc.privileged import cleaning
from os_acc.privileged import context
from os_acc.privileged import device_users
from os_acc.privileged import held
from os_acc.privileged import offers
from os_acc.privileged import record
from os_acc.privileged import storage
from os_acc.privileged import unused

# Seconds to wait for an earlier operation on a function.
_HOLD = 5.0


@context.entry
def take(
    address: str,
    driver: str,
    siblings: Sequence[str],
    instance_uuid: str,
    seconds: float,
) -> str:
    """Bind a function that nobody uses to a VFIO driver.

    :param driver: the VFIO driver's module
    :param siblings: addresses of the functions that go to the same guest
    :param instance_uuid: the instance that gets it
    :param seconds: for the whole operation
    :returns: the driver's name as the kernel spells it
    :raises DeviceInUseByHost, DeviceBusy: if it is used, or may hold the data
        of another instance
    :raises DeviceError: if no guest can use it, the kernel refuses, or it
        stores data and cannot be emptied. It is then bound as before, unless
        it may hold the data of an instance
    :raises Timeout: if it is not bound in time
    """
    function = arguments.function(address)
    allowed = arguments.addresses(siblings)
    arguments.uuid(instance_uuid)
    seconds = arguments.seconds(seconds)
    spec = offers.entry(function)
    expected = vfio.driver_for(function, spec)
    if not isinstance(driver, str) or not modules.same(driver, expected):
        arguments.refuse('driver', driver, expected)
    if spec.bind == device_spec.BIND_NONE:
        arguments.refuse(
            'address',
            address,
            'a function that os-acc may bind; device_spec has bind = none',
        )
    deadline = waiting.Deadline(seconds)

    def act() -> str:
        with operation_lock.held(function.path, deadline.left(0.5)):
            _check_available(address, allowed, instance_uuid)
            name = modules.load_driver(driver, deadline.left())
            before = pci.get(address)
            storage.check(before, instance_uuid)
            bindings.remember(before, name)
            vfio.bind(address, name, deadline.left())
            try:
                storage.hand_out(before, instance_uuid)
            except BaseException:
                # No driver of the host may see what an instance has left: it
                # stays on VFIO until clean() has emptied it.
                if not vfio.is_bound(before) and storage.is_empty(before):
                    bindings.restore(address, before.ids, deadline.left(0.9))
                raise
            return name

    return waiting.at_most(
        act, seconds, f'PCI function {address} to be bound to {driver}'
    )


def _check_available(
    address: str, siblings: Sequence[str], instance_uuid: str
) -> None:
    """Check again, under the lock, that a function can be taken.

    The privileged half has no journal; the calling driver has checked it.

    :param siblings: those of them that the host uses, or that device_spec
        does not name, cannot go to a guest, so they count as the host's
    """
    function = pci.get(address)
    others = [pci.find(name) for name in siblings if name != address]
    allowed = [
        other
        for other in others
        if other is not None
        and offers.has(other)
        and host_use.by_host(other) is None
    ]
    group = function.iommu_group
    shares = any(
        other.iommu_group == group and vfio.is_bound(other)
        for other in allowed
    )
    for obstacle in availability.obstacles(
        function,
        offers.entry(function),
        device_spec.BIND_OS_ACC,
        allocated.Taker(
            instance_uuid=instance_uuid,
            functions=frozenset(other.address for other in allowed),
        ),
        as_root=True,
        held=held.is_noted(held.PCI, address, function.ids),
        users=lambda: device_users.find(function, instance_uuid, shares),
    ):
        raise obstacle.error()


@context.entry
def clean(
    address: str,
    ids: str,
    reset_mode: str,
    release_seconds: float,
    seconds: float,
    only_if_used: bool = False,
    shares: bool = False,
    instance_uuid: str | None = None,
) -> bool:
    """Clean a function, once its guest has closed it.

    It stays bound, except that a function that stores data is bound to VFIO
    first, so that no driver of the host sees the data. A function that was
    emptied, and that no guest has had since, is not emptied again.

    A function that is not bound to VFIO, as after a reboot, may be in use by
    now. It is cleaned only if take() could take it, or, if it stores no data,
    if nobody uses it.

    :param ids: vendor:product of the function when it was taken
    :param reset_mode: one of reset.MODES
    :param release_seconds: how long the guest may take to close it
    :param seconds: for the reset
    :param only_if_used: do nothing unless it stores data, and a guest has had
        it since it was last emptied
    :param shares: whether the guest keeps other functions of its IOMMU group
    :param instance_uuid: the instance that had it; its domain may still name
        it, if libvirt has given it back to the host
    :returns: False if there was nothing to clean
    :raises DeviceBusy: if a guest still has it open, or somebody uses a
        function that stores data
    :raises DeviceInUseByHost: if the host uses it by now: a reset would harm
        the host
    :raises CleaningFailed: if it could not be cleaned
    """
    function = arguments.function(address)
    if instance_uuid is not None:
        arguments.uuid(instance_uuid)
    seconds = arguments.seconds(seconds)
    # The lock is held from the first check to the end of the cleaning, even
    # if the caller dies meanwhile.
    with operation_lock.held(function.path, seconds / 2) as lock:
        function = bindings.same(address, ids)
        stores = storage_functions.is_storage(function)
        if only_if_used and not (stores and storage.was_handed_out(function)):
            return False
        device_users.wait_until_closed(
            function.path, f'PCI function {address}', release_seconds, shares
        )
        if stores and storage.is_empty(function):
            return False
        if not vfio.is_bound(function):
            unused.check(function, instance_uuid or '', shares)
            if stores:
                function = _bind_to_clean(function, seconds, lock)
        cleaning.clean(function, reset_mode, seconds, lock)
        return True


def _bind_to_clean(
    function: pci.Function, seconds: float, lock: int
) -> pci.Function:
    """Bind a function that stores data to VFIO, as after a reboot."""
    address = function.address
    module = vfio.driver_for(function, offers.entry(function))

    def act() -> None:
        name = modules.load_driver(module, seconds / 2)
        bindings.remember(function, name)
        vfio.bind(address, name, seconds / 2)

    waiting.at_most(
        operation_lock.kept_until(lock, act),
        seconds,
        f'PCI function {address} to be bound to {module}',
    )
    return pci.get(address)


@context.entry
def give_back(
    address: str, ids: str, seconds: float, shares: bool = False
) -> bool:
    """Bind a function as it was before take(). It must be clean.

    If somebody else has bound it to another driver since, it stays bound to
    that driver, and only what take() wrote to driver_override is undone.

    device_spec need not offer it any more: the record says that take() has
    changed it, which it does only while device_spec offers the function.

    :param ids: vendor:product of the function when it was taken
    :param seconds: for the whole operation
    :param shares: whether the guest keeps other functions of its IOMMU group
    :returns: False if there is no record that take() has changed the
        function; then this changes nothing
    :raises DeviceBusy: if a guest has it open
    :raises CleaningFailed: if it may hold data of a guest
    :raises DeviceError, Timeout: if its driver could not be bound again
    """
    function = arguments.there(address)
    seconds = arguments.seconds(seconds)
    deadline = waiting.Deadline(seconds)

    def act() -> bool:
        with operation_lock.held(function.path, deadline.left(0.5)):
            return bindings.restore(address, ids, deadline.left(), shares)

    return waiting.at_most(
        act, seconds, f'PCI function {address} to be given back'
    )


@context.entry
def hold(address: str) -> None:
    """Note that a VAN has a function that others bind to VFIO and back.

    The note allows what take() would allow, no more: a function that
    device_spec offers for mdevs or vGPUs only is not noted as a whole.

    :raises DeviceNotFound: if device_spec does not offer it
    :raises PrivilegeError: if the note cannot be written
    """
    function = arguments.function(address)
    with operation_lock.held(function.path, _HOLD):
        if held.has(function):
            return
        spec = offers.entry(function)
        if vgpu.is_place(function) and vgpu_availability.offers_vgpus(spec):
            held.note_vgpu(function, None)
            return
        for obstacle in availability.offer_obstacles(function, spec):
            raise obstacle.error()
        held.note_function(function)


@context.entry
def let_go(address: str, ids: str) -> None:
    """Delete the note of hold() or take(), once the function is clean.

    The function may be gone.

    :param ids: vendor:product of the function that the VAN had. The note of
        another device stays
    :raises PrivilegeError: if the note cannot be deleted
    """
    arguments.addresses([address])
    if not isinstance(ids, str):
        arguments.refuse('ids', ids, 'vendor:product')
    held.forget(held.PCI, address, ids)


@context.entry
def override_of(address: str, seconds: float) -> str | None:
    """Read a function's driver_override, for ``os-acc device show``.

    :raises Timeout: if it cannot be read now
    """
    function = pci.get(address)
    return vfio.read_binding(function, arguments.seconds(seconds)).override


@context.entry
def create_vfs(pf: str, number: int, seconds: float) -> None:
    """Create the VFs that device_spec sets for a PF that has none.

    :param number: num_vfs of the PF's entry of device_spec. If it has none
        any more, as many as were made for the VANs that have VFs of the PF
    :raises DeviceNotFound: as offers.vfs_entry
    :raises InvalidRequest: if it is another number
    :raises DeviceBusy: if the PF has VFs already, or is bound to VFIO
    :raises DeviceError, Timeout: as sriov.create
    """
    function = arguments.there(pf)
    spec, possible = offers.vfs_entry(function)
    arguments.whole(number, 'number', sriov.total(pf), least=1)
    seconds = arguments.seconds(seconds)
    if number not in possible:
        wanted = ' or '.join(map(str, sorted(possible))) or None
        arguments.refuse('number', number, f'num_vfs of device_spec, {wanted}')
    deadline = waiting.Deadline(seconds)

    def act() -> None:
        with operation_lock.held(function.path, deadline.left(0.5)):
            if there := sriov.count(pf):
                raise exception.DeviceBusy(
                    device=f'PF {pf}', reason=f'it has {there} VFs'
                )
            for obstacle in vf_availability.vfs_obstacles(
                pci.get(pf), spec=spec
            ):
                raise obstacle.error()
            # An earlier call that was interrupted has set autoprobe already.
            known = record.vfs.read(pf)
            before = known.autoprobe if known else sriov.autoprobe(pf)
            held.note_vfs(function, number)
            record.vfs.write(pf, record.Vfs(number, before))
            sriov.create(pf, number, deadline.left())

    waiting.at_most(act, seconds, f'{number} VFs of PF {pf} to be made')


@context.entry
def made_vfs(pf: str, seconds: float) -> int:
    """How many VFs of a PF os-acc has made in this boot; 0 if none.

    The caller is about to give one of them to a VAN. So this notes that they
    must come back after a reboot, as create_vfs() does.
    """
    function = arguments.function(pf)
    with operation_lock.held(function.path, arguments.seconds(seconds)):
        known = record.vfs.read(pf)
        if known is None or known.number != sriov.count(pf):
            return 0
        held.note_vfs(function, known.number)
        return known.number


@context.entry
def remove_vfs(pf: str, seconds: float) -> list[str]:
    """Remove the VFs that create_vfs() has made, if nobody uses any of them.

    If the VFs stay, sriov_drivers_autoprobe of the PF is still restored.

    :returns: clauses that say why the VFs stay; empty if the PF has none now
    :raises DeviceError, Timeout: if they cannot be removed
    """
    function = arguments.there(pf)
    seconds = arguments.seconds(seconds)
    deadline = waiting.Deadline(seconds)

    def act() -> list[str]:
        with operation_lock.held(function.path, deadline.left(0.5)):
            return _remove_vfs(pci.get(pf))

    return waiting.at_most(act, seconds, f'the VFs of PF {pf} to be removed')


def _remove_vfs(pf: pci.Function) -> list[str]:
    known, there = record.vfs.read(pf.address), sriov.count(pf.address)
    if known is None:
        held.forget(held.VFS, pf.address)
        return ['os-acc has no record that it made them'] if there else []
    if there not in (0, known.number):
        # Somebody else has removed os-acc's VFs and made these.
        sriov.restore_autoprobe(pf.address, known.autoprobe)
        record.vfs.delete(pf.address)
        held.forget(held.VFS, pf.address)
        return [f'somebody else has changed their number to {there}']
    if users := vf_availability.vf_users(pf):
        sriov.restore_autoprobe(pf.address, known.autoprobe)
        if not held.has_vf(pf):
            # No VAN needs them after a reboot. The record stays: os-acc can
            # still remove them in this boot.
            held.forget(held.VFS, pf.address)
        return users
    addresses = pf.vf_addresses
    sriov.remove(pf.address, known.autoprobe)
    for address in addresses:
        record.functions.delete(address)
        record.ports.delete(address)
        held.forget(held.PCI, address)
    record.vfs.delete(pf.address)
    held.forget(held.VFS, pf.address)
    return []

# SPDX-License-Identifier: Apache-2.0

"""Taking, cleaning and giving back PCI functions and VFs, as root."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import logging

from os_acc.availability import functions as availability
from os_acc.availability import storage as storage_functions
from os_acc.availability import vfio_rules
from os_acc.claims import vans
from os_acc.deadlines import waiting
from os_acc.kernel import modules
from os_acc.kernel import pci
from os_acc.kernel import vfio
from os_acc.kernel import vgpu
from os_acc.privileged import arguments
from os_acc.privileged import cleaning
from os_acc.privileged import context
from os_acc.privileged import device_users
from os_acc.privileged import function_notes
from os_acc.privileged import notes
from os_acc.privileged import offers
from os_acc.privileged import operation_lock
from os_acc.privileged import storage
from os_acc.privileged.kernel import module_loading
from os_acc.privileged.kernel import vfio_binding
from os_acc.privileged.pci import bindings
from os_acc.spec import device_spec
from os_acc.spec import parts as spec_parts

LOG = logging.getLogger(__name__)

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

    :param siblings: addresses of the functions that go to the same guest
    :returns: the driver's name as the kernel spells it
    :raises DeviceInUseByHost, DeviceBusy: if it is used, or may hold the data
        of another instance
    :raises DeviceError: if no guest can use it, the kernel refuses, or it
        stores data and cannot be emptied. It is then bound as before, unless
        it may hold the data of an instance
    """
    function = arguments.function(address)
    allowed = arguments.addresses(siblings)
    arguments.uuid(instance_uuid)
    seconds = arguments.seconds(seconds)
    spec = offers.entry(function)
    expected = vfio_rules.driver_for(function, spec)
    if not isinstance(driver, str) or not modules.same(driver, expected):
        arguments.refuse('driver', driver, expected)
    if spec.bind == device_spec.BIND_NONE:
        arguments.refuse(
            'address',
            address,
            'a function that os-acc may bind; device_spec has bind = none',
        )

    def act(deadline: waiting.Deadline) -> str:
        _check_available(address, allowed, instance_uuid)
        name = module_loading.load_driver(driver, deadline.left())
        before = pci.get(address)
        drive = storage.drive_of(before)
        storage.check(before, instance_uuid)
        bindings.remember(before, name, spec)
        vfio_binding.bind(address, name, deadline.left())
        try:
            storage.hand_out(before, instance_uuid, drive)
        except BaseException:
            # No driver of the host may see what an instance has left: it
            # stays on VFIO until clean() has emptied it.
            if not vfio.is_bound(before) and storage.is_empty(before):
                bindings.restore(address, before.ids, deadline.left(0.9))
            raise
        return name

    what = f'PCI function {address} to be bound to {driver}'
    return function_notes.change(function, seconds, what, act)


@context.entry
def take_for_host(
    address: str, driver: str, instance_uuid: str, seconds: float
) -> None:
    """Bind a function to its host_driver, for a service of the host itself.

    It does nothing to a function that is bound to it already.

    :raises DeviceInUseByHost, DeviceBusy: if it is used
    :raises DeviceError: if the kernel refuses, or it stores data
    """
    function = arguments.function(address)
    arguments.uuid(instance_uuid)
    seconds = arguments.seconds(seconds)
    spec = offers.entry(function)
    expected = spec.host_driver
    if expected is None or driver != expected:
        arguments.refuse('driver', driver, expected or 'no host_driver')

    def act(deadline: waiting.Deadline) -> None:
        _check_available(address, (), instance_uuid, device_spec.BIND_HOST)
        name = module_loading.load_driver(driver, deadline.left())
        bindings.remember(pci.get(address), name, spec, for_host=True)
        vfio_binding.bind_to_host(address, name, deadline.left())

    what = f'PCI function {address} to be bound to {driver}'
    function_notes.change(function, seconds, what, act)


def _check_available(
    address: str,
    siblings: Sequence[str],
    instance_uuid: str,
    bind: str = device_spec.BIND_OS_ACC,
) -> None:
    """Check again, under the lock, that a function can be taken.

    The privileged half has no journal; the calling driver has checked it.

    :param siblings: those of them that the host uses, or that device_spec
        does not name, cannot go to a guest, so they count as the host's
    """
    function = pci.get(address)
    allowed = bindings.idle(name for name in siblings if name != address)
    group = function.iommu_group
    shares = any(
        other.iommu_group == group and vfio.is_bound(other)
        for other in allowed
    )
    for obstacle in availability.obstacles(
        function,
        offers.entry(function),
        bind,
        vans.Vans().asked_by(
            vans.Taker(
                instance_uuid=instance_uuid,
                functions=frozenset(other.address for other in allowed),
            )
        ),
        as_root=True,
        held=function_notes.of_function(notes.PCI, function) is not None,
        users=lambda: device_users.find(function, instance_uuid, shares),
    ):
        raise obstacle.error()


@context.entry
@notes.undoes_own(returns=False)
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
    :param seconds: for the reset
    :param only_if_used: do nothing unless it stores data, and a guest has had
        it since it was last emptied
    :param shares: whether the guest keeps other functions of its IOMMU group
    :param instance_uuid: the instance that had it; its domain may still name
        it, if libvirt has given it back to the host
    :returns: False if there was nothing to clean, also because another drive
        is at the address by now
    :raises DeviceBusy: if a guest still has it open, or somebody uses a
        function that stores data
    :raises DeviceInUseByHost: if the host uses it by now: a reset would harm
        the host
    :raises DeviceNotFound: if device_spec does not offer it as a whole, no VAN
        already has it, and take() has not changed it
    :raises CleaningFailed: if it could not be cleaned
    """
    function = arguments.there(address)
    if instance_uuid is not None:
        arguments.uuid(instance_uuid)
    seconds = arguments.seconds(seconds)
    # The lock is held from the first check to the end of the cleaning, even
    # if the caller dies meanwhile.
    with (
        function_notes.locked(function, seconds / 2) as lock,
        _unless_another_drive(function),
    ):
        function = bindings.same(address, ids)
        drive = storage.drive_of(function)
        storage.check_own(function, instance_uuid, drive)
        stores = storage_functions.is_storage(function)
        if only_if_used and not (stores and storage.was_handed_out(function)):
            return False
        was_taken = bindings.functions.of(function) is not None
        if was_taken or storage.was_handed_out(function):
            offers.check_part(function)
        elif offers.has_nothing_to_undo(
            lambda: offers.check(function),
            function_notes.of_whole(
                notes.PCI, function, offers.specs().known(function)
            ),
        ):
            return False
        device_users.wait_until_closed(
            function.path, f'PCI function {address}', release_seconds, shares
        )
        if stores and storage.is_empty(function):
            return False
        if not vfio.is_bound(function):
            bindings.check_unused(function, instance_uuid or '', shares)
            if stores:
                function = _bind_to_clean(function, seconds, lock)
        cleaning.clean(
            function, reset_mode, seconds, lock, instance_uuid, drive
        )
        return True
    return False


@contextlib.contextmanager
def _unless_another_drive(function: pci.Function) -> Iterator[None]:
    """End the block early if the drive of a VAN has another address now."""
    try:
        yield
    except storage.OtherDrive as err:
        LOG.warning(
            'PCI function %s is not cleaned: %s', function.address, err
        )


def _bind_to_clean(
    function: pci.Function, seconds: float, lock: int
) -> pci.Function:
    """Bind a function that stores data to VFIO, as after a reboot."""
    address = function.address
    module = vfio_rules.driver_for(function, offers.entry(function))

    def act() -> None:
        name = module_loading.load_driver(module, seconds / 2)
        bindings.remember(function, name)
        vfio_binding.bind(address, name, seconds / 2)

    what = f'PCI function {address} to be bound to {module}'
    operation_lock.at_most(lock, act, seconds, what)
    return pci.get(address)


@context.entry
@notes.undoes_own(returns=True)
def give_back(
    address: str, ids: str, seconds: float, shares: bool = False
) -> bool:
    """Bind a function as it was before take(). It must be clean.

    If somebody else has bound it to another driver since, it stays bound to
    that driver, and only what take() wrote to driver_override is undone.

    device_spec need not offer it any more: the record says that take() has
    changed it, which it does only while device_spec offers the function.

    :param ids: vendor:product of the function when it was taken
    :param shares: whether the guest keeps other functions of its IOMMU group
    :returns: False if there is no record that take() has changed the
        function; then this changes nothing
    :raises CleaningFailed: if it may hold data of a guest
    """
    function = arguments.there(address)
    seconds = arguments.seconds(seconds)
    return function_notes.change(
        function,
        seconds,
        f'PCI function {address} to be returned',
        lambda deadline: bindings.restore(
            address, ids, deadline.left(), shares
        ),
    )


@context.entry
def hold(address: str) -> None:
    """Note that a VAN has a function that others bind to VFIO and back.

    The note allows what take() would allow, no more: a function that
    device_spec offers for mdevs or vGPUs only is not noted as a whole.

    :raises DeviceBusy: if another VAN has it
    :raises DeviceNotFound: if device_spec does not offer it
    """
    function = arguments.offered(address)
    with function_notes.locked(function, _HOLD):
        if function_notes.renew(function):
            return
        spec = offers.entry(function)
        if vgpu.is_place(function) and spec_parts.offers_vgpus(spec):
            # If os-acc may set a type here, it may set the present type again
            # after a reboot, even if device_spec names another type then.
            sets = spec.vgpu_type is not None
            now = vgpu.current(address) if sets else None
            function_notes.note_vgpu(function, now or None)
            return
        offers.check(function)
        function_notes.note_function(function, spec)


@context.entry
def let_go(address: str, ids: str) -> None:
    """Delete the note of hold() or take(), once the function is clean.

    The function may be gone.

    :param ids: vendor:product of the function that the VAN had. The note of
        another device stays
    """
    arguments.addresses([address])
    if not isinstance(ids, str):
        arguments.refuse('ids', ids, 'vendor:product')
    notes.forget(notes.PCI, address, notes.Cleaned.EARLIER, ids)


@context.entry
def override_of(address: str, seconds: float) -> str | None:
    """Read a function's driver_override, for ``os-acc device show``."""
    function = pci.get(address)
    return vfio_binding.read_binding(
        function, arguments.seconds(seconds)
    ).override

# SPDX-License-Identifier: Apache-2.0

"""Claiming device files for VANs: choose, take, give back."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import itertools
import logging
import re

from oslo_config import cfg

from os_acc import exception
from os_acc import log
from os_acc import objects
from os_acc.claims import allocated
from os_acc.deadlines import waiting
from os_acc.drivers import allocation
from os_acc.drivers import base
from os_acc.drivers import choosing
from os_acc.drivers import given_files
from os_acc.drivers import inventory
from os_acc.drivers import pci_functions
from os_acc.kernel import device_files
from os_acc.kernel import sysfs
from os_acc.kinds.devfile import groups as file_groups
from os_acc.kinds.devfile import rules as file_availability
from os_acc.spec import device_spec

LOG = logging.getLogger(__name__)
CONF = cfg.CONF

#: The prefix of the resource classes of files whose entry sets none.
PREFIX = 'CUSTOM_FILE_'

# Keys of VAN.driver_data.
PENDING = 'pending'  # set until the instance may have got the files
SUBSYSTEM = 'subsystem'  # whose kernel events tell that the device is back


def claim(
    driver: base.Driver,
    van: objects.VAN,
    name: str,
    share: str | None,
) -> None:
    """Give an accelerator that a request names to a VAN.

    :param share: which of its shares; None: it is not shared, or any
    """
    found = file_groups.find(name, driver.specs())
    if found is None:
        raise file_availability.not_named(name).error()
    _claim(driver, van, found, share)


def claim_again(
    driver: base.Driver, van: objects.VAN, handle: objects.DeviceFileHandle
) -> None:
    """Give a VAN the same accelerator again: after a reboot, or if lost.

    The numbers of its files may differ from those that it had. A process may
    still have a file open by its old number.
    """
    data = van.driver_data
    before = file_groups.from_text(data.get(given_files.ENTRY))
    found = waiting.until(
        lambda: file_groups.find(handle.name, driver.specs(), before),
        CONF.os_acc.device_timeout,
        f'device file {handle.name} to come back',
        data.get(SUBSYSTEM) or None,
    )
    known = given_files.own_files(van)
    if (
        van.boot_id == sysfs.boot_id()
        and found.spec.shared is None
        and known != [each.file for each in found.own]
    ):
        allocation.check_open(file_availability.label(found), _users(known))
    _claim(driver, van, found, handle.share, before)


def choose(
    driver: base.Driver,
    van: objects.VAN,
    request: objects.AcceleratorRequest,
) -> None:
    """Give the first accelerator that serves a request to a VAN."""
    holders = allocation.holders(driver)
    choosing.choose(
        van,
        request,
        file_groups.read(driver.specs()),
        lambda found: (
            [found]
            if kind_of(found).serves(request)
            and not (found.spec.shared is None and holders.of_file(found.name))
            else []
        ),
        lambda found: _claim(driver, van, found, None),
        lambda: give_back(van, 0.0),
        'device_spec offers no such device file that is left on this host',
        pci_functions.refused(driver, driver.specs(), request),
    )


def give_back(van: objects.VAN, release_seconds: float) -> None:
    """Undo a claim: restore the files, and let the privileged half forget.

    :param release_seconds: how long the instance may take to close the files
    """
    handle = given_files.held_by(van)
    if handle is None or given_files.ENTRY not in van.driver_data:
        return
    from os_acc.privileged.devfile import device_files as privileged

    # The numbers of an earlier boot are those of other devices now. If the
    # instance never got the files, nobody who has one open is waited for.
    now = (
        van.boot_id == sysfs.boot_id()
        and handle.share is None
        and PENDING not in van.driver_data
    )
    left = privileged.give_back(
        handle.name,
        handle.share or '',
        given_files.arguments(given_files.own_files(van)) if now else [],
        release_seconds,
        CONF.os_acc.device_timeout,
    )
    given_files.warn(van, left)


def is_intact(van: objects.VAN, specs: device_spec.Specs) -> bool:
    """Whether the files of a VAN are there, with numbers, owner and mode."""
    handle = given_files.held_by(van)
    if handle is None or given_files.ENTRY not in van.driver_data:
        return True
    before = file_groups.from_text(van.driver_data[given_files.ENTRY])
    assert before is not None
    found = file_groups.find(handle.name, specs, before)
    if found is None or found.path != handle.files[0].path:
        return False
    if given_files.own_files(van) != [each.file for each in found.own]:
        return False
    return all(
        given_files.belongs(each, before.owner, before.group, before.mode)
        for each in found.own
    )


def _users(
    found: Sequence[device_files.DeviceFile],
) -> Sequence[str]:
    from os_acc.privileged.devfile import device_files as privileged

    return privileged.users(given_files.arguments(found))


@contextlib.contextmanager
def _locks(
    driver: base.Driver, found: file_groups.Accelerator
) -> Iterator[None]:
    """Lock an accelerator, and what is behind its files.

    The driver pci holds the same locks while it claims a PCI function, and
    the driver mdev that of the parent.
    """
    with contextlib.ExitStack() as stack:
        device = file_groups.device_of(found)
        # Files behind no PCI function and no parent of mdevs have one lock:
        # they may be those of a disk and of its partitions.
        stack.enter_context(
            driver.lock('file' if device == found.name else device)
        )
        function = file_groups.function_of(found)
        if function is not None:
            stack.enter_context(
                allocation.shared_locks(driver, function, found.function_spec)
            )
        yield


def _claim(
    driver: base.Driver,
    van: objects.VAN,
    seen: file_groups.Accelerator,
    share: str | None,
    before: device_spec.Spec | None = None,
) -> None:
    """Take an accelerator for a VAN.

    :param before: the entry by which the VAN already has it
    """
    with _locks(driver, seen):
        # The numbers of a file may have changed until now.
        found = file_groups.find(seen.name, driver.specs(), before)
        if found is None:
            raise file_availability.not_named(seen.name).error()
        known = allocation.holders(driver, van)
        if before is None:
            _check_cleaned(found)
        allocation.check(
            file_availability.obstacles(
                found,
                known,
                held=before is not None,
                users=lambda: _users([each.file for each in found.own]),
            )
        )
        _take(van, found, _share(van, found, share, known), before is None)


def check_request(
    handle: objects.AttachHandle, specs: device_spec.Specs
) -> None:
    """Check an accelerator as claim() does. See DriverBase.check_request()."""
    name = allocated.file_in(handle.identity)
    found = None if name is None else file_groups.find(name, specs)
    if found is None:
        raise file_availability.not_named(name or handle.identity).error()
    _check_cleaned(found)


def _check_cleaned(found: file_groups.Accelerator) -> None:
    refusal = file_availability.not_cleaned(
        found, bool(CONF.os_acc.cleaning_command)
    )
    allocation.check(iter([refusal] if refusal else []))


def _share(
    van: objects.VAN,
    found: file_groups.Accelerator,
    wanted: str | None,
    holders: allocated.Holders,
) -> str | None:
    """The share that a VAN gets: the lowest number that no other VAN has."""
    most = found.spec.shared
    taken = {
        (each.handle or '').rpartition('/')[2]
        for each in holders.of_file(found.name)
        if each.van_uuid != van.uuid
    }
    if wanted is None:
        if most is None:
            return None
        from os_acc.privileged.devfile import device_files as privileged

        others = privileged.shares_of_others(found.name)
        taken.update(others)
        numbers = range(most) if most else itertools.count()
        for number in map(str, numbers):
            if number not in taken:
                return number
        raise exception.DeviceBusy(
            device=file_availability.label(found),
            reason=f'all {most} shares are taken, {len(others)} of them by '
            'VANs of other journals of this host',
        )
    if van.handle is None and (
        most is None
        or not wanted.isdigit()
        or str(int(wanted)) != wanted
        or (most and int(wanted) >= most)
    ):
        raise exception.InvalidRequest(
            subject='DeviceFileHandle',
            field='share',
            value=wanted,
            expected='no share, because the file is not shared'
            if most is None
            else f'a number below {most or 10**9}',
        )
    return wanted


def _take(
    van: objects.VAN,
    found: file_groups.Accelerator,
    share: str | None,
    is_new: bool,
) -> None:
    """Let the privileged half give out the files."""
    van.driver_data = {
        **van.driver_data,
        given_files.ENTRY: file_groups.to_text(found.spec),
        given_files.OWN: str(len(found.own)),
        given_files.NAMES: ' '.join(given_files.names_of(found)),
        SUBSYSTEM: found.place.subsystem,
        **({PENDING: 'yes'} if is_new else {}),
    }
    handle = handle_of(found, share)
    van.handle = handle
    van.device = file_groups.device_of(found)
    van.live_migratable = False
    van.save()
    from os_acc.privileged.devfile import device_files as privileged

    privileged.take(
        found.name,
        share or '',
        given_files.arguments(each.file for each in found.own),
        CONF.os_acc.device_timeout,
    )
    van.driver_data = {
        key: value for key, value in van.driver_data.items() if key != PENDING
    }
    van.save()
    log.about(LOG, van.instance_uuid, van.uuid).info(
        'device file %s is assigned as %s', found.path, handle.identity
    )


def kind_of(found: file_groups.Accelerator) -> inventory.Names:
    """Name an accelerator as Placement does.

    Its traits are those of its entry, and those of the PCI function behind
    it.
    """
    traits = found.spec.traits
    function = file_groups.function_of(found)
    if function is not None:
        behind = pci_functions.kind_of(function, device_spec.Spec())
        traits = tuple(dict.fromkeys((*traits, *behind.traits)))
    name = found.spec.resource_class
    if name is None:
        letters = re.sub('[^A-Za-z]', '', found.path.rpartition('/')[2])
        name = PREFIX + (letters.upper() or 'DEVICE')
    return inventory.Names(name, traits)


def handle_of(
    found: file_groups.Accelerator, share: str | None
) -> objects.DeviceFileHandle:
    return objects.DeviceFileHandle(
        name=found.name,
        share=share,
        files=given_files.described(found.files, found.spec.permissions),
    )

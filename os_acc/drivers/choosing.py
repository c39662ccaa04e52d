# SPDX-License-Identifier: Apache-2.0

"""The choice of a device for a request that names none, for every driver.

One rule says after which errors another device is tried: see is_of_device().
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
import contextlib
import errno
import logging
from typing import TypeVar

from os_acc import driver as driver_base
from os_acc import exception
from os_acc import finding
from os_acc import kinds
from os_acc import log
from os_acc import objects
from os_acc.claims import of_handle
from os_acc.drivers import allocation
from os_acc.drivers import inventory
from os_acc.spec import device_spec

LOG = logging.getLogger(__name__)

_Device = TypeVar('_Device')
_Part = TypeVar('_Part')

# Another device would fail, too: the process or the host lacks something.
_OF_PROCESS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)

# Errors of os-acc that are about one device.
_OF_DEVICE = (
    exception.DeviceBusy,
    exception.DeviceError,
    exception.DeviceInUseByHost,
    exception.DeviceNotFound,
    exception.Timeout,
)

#: How many devices may fail to answer in time: the caller waits for each.
MOST_TIMEOUTS = 2


class SearchEnds(Exception):
    """Another device must not be tried: the cause is raised as it is.

    ``take`` raises it, for example after a bitstream could not be programmed:
    one that is wrong would spoil one device after the other.

    :ivar error: what the caller of choose() gets
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class TakenMeanwhile(exception.DeviceBusy):
    """Another VAN has taken a part since it was listed as free."""

    msg_fmt = '%(device)s is busy: another VAN has just got it'


def is_of_device(err: Exception) -> bool:
    """Whether an error is about one device, so that another one may serve.

    These are: the device is busy, in use by the host or gone, has failed, or
    does not answer in time; one of its files cannot be read, or has invalid
    content. Anything else would fail for each device alike: the request is
    invalid, the journal or the privileged half does not work.
    """
    if isinstance(err, exception.ExceptionBase):
        return isinstance(err, _OF_DEVICE) and not isinstance(
            err, exception.JournalError
        )
    if isinstance(err, OSError):
        return err.errno not in _OF_PROCESS
    return isinstance(err, ValueError)


def is_for_kind(
    request: objects.AcceleratorRequest, kind: str, specs: device_spec.Specs
) -> bool:
    """Whether a request is for a kind that has its own key in device_spec.

    A kind without such a key, or with another attach handle, has its own rule.

    :param kind: its key, which is also the name of its directory
    :param specs: its entries serve a request for a resource class
    """
    handle, wanted = request.handle, request.resource_class
    if handle is not None:
        return isinstance(handle, objects.DeviceFileHandle) and (
            of_handle.kind_of(handle.name) == kind
        )
    usual = kinds.module(kind, 'entry').CLASSES
    return any(
        wanted == spec.resource_class
        if spec.resource_class is not None
        else wanted in usual
        for spec in specs.entries
        if spec.settings_of(kind) is not None
    )


def choose(
    van: objects.VAN,
    request: objects.AcceleratorRequest,
    devices: Iterable[_Device],
    parts_of: Callable[[_Device], Iterable[_Part]],
    take: Callable[[_Part], None],
    undo: Callable[[], None],
    none: str,
    refused: Iterable[Exception] = (),
) -> None:
    """Let a VAN take the first part of a device that can be taken.

    Before another part is tried, what the last try did is undone, and the VAN
    is as it was before.

    :param devices: names of devices, the best first; the next one is asked
        for only after the one before has failed
    :param parts_of: lists what of a device serves the request, the best first
    :param take: takes a part: it sets the handle and the device of the VAN
    :param undo: undoes what take() has done until it failed; it is called if
        the VAN has a handle
    :param none: what to say if no device serves the request
    :param refused: why devices that are not in the list cannot be taken; it
        is read at the end
    :raises DeviceNotFound: if no part can be taken; it has the reason of each
    :raises: the error of a take() that is not about one device
    """
    before = dict(van.driver_data)
    errors: list[Exception] = []
    for device in devices:
        try:
            parts = iter(parts_of(device))
        except Exception as err:
            _note(errors, err)
            continue
        while True:
            try:
                part = next(parts)
            except StopIteration:
                break
            except Exception as err:
                _note(errors, err)
                break
            try:
                take(part)
                return
            except SearchEnds as err:
                raise err.error from err.error.__cause__
            except TakenMeanwhile as err:
                # It is one of those that are not free, and no reason.
                _undone(van, undo, before, err)
            except Exception as err:
                _note(errors, err)
                _undone(van, undo, before, err)
    reasons = [*errors, *refused]
    reasons.sort(key=_usefulness)
    raise exception.DeviceNotFound(
        wanted=allocation.selector(request),
        reason='; '.join(dict.fromkeys(map(text_of, reasons))) or none,
    )


def _note(errors: list[Exception], err: Exception) -> None:
    """Keep an error of a device; raise it if it ends the search."""
    if not is_of_device(err):
        raise err
    errors.append(err)
    waited = sum(isinstance(each, exception.Timeout) for each in errors)
    if isinstance(err, exception.Timeout) and waited >= MOST_TIMEOUTS:
        raise err


def _undone(
    van: objects.VAN,
    undo: Callable[[], None],
    before: dict[str, str],
    err: Exception,
) -> None:
    """Undo a try, so that the VAN can take something else.

    If the undo fails, the error of the try is raised, and os-acc undoes the
    VAN as it does after each failure.
    """
    if van.handle is None and van.driver_data == before:
        return
    logger = log.about(LOG, van.instance_uuid, van.uuid)
    logger.info('Another device is tried: %s', exception.describe(err))
    try:
        undo()
    except Exception as failure:
        text = 'The changes to the device were not undone'
        log.error(logger, failure, text)
        raise err from None
    van.handle = van.device = van.function_id = None
    van.live_migratable = None
    van.driver_data = before
    van.save()


def _usefulness(err: Exception) -> int:
    """Sort causes that somebody can fix before those that only need time."""
    if isinstance(err, exception.DeviceBusy):
        return 3
    if isinstance(err, exception.DeviceNotFound):
        return 2
    return int(isinstance(err, exception.DeviceInUseByHost))


def text_of(err: Exception) -> str:
    """Say why a device cannot be taken or read; names file and error."""
    if isinstance(err, exception.ExceptionBase):
        return str(err)
    if isinstance(err, OSError) and err.filename is not None:
        name = errno.errorcode.get(err.errno or 0, str(err.errno))
        return f'{err.filename} cannot be read: {err.strerror} ({name})'
    return f'it cannot be read: {exception.describe(err)}'


def ranked(
    devices: Iterable[_Device], rank: Callable[[_Device], int]
) -> list[_Device]:
    """Sort devices; one whose rank cannot be read comes last."""

    def key(device: _Device) -> tuple[bool, int]:
        try:
            return False, rank(device)
        except Exception as err:
            if not is_of_device(err):
                raise
            return True, 0

    return sorted(devices, key=key)


@contextlib.contextmanager
def noting(
    address: str, unreadable: dict[str, Exception] | None
) -> Iterator[None]:
    """Go on after an error of one device.

    :param unreadable: gets the error, by the address; None: it is logged
    """
    try:
        yield
    except Exception as err:
        if not is_of_device(err):
            raise
        if unreadable is None:
            LOG.warning('Device %s: %s', address, text_of(err))
        else:
            unreadable[address] = err


def report(
    driver: driver_base.DriverBase,
    devices: Iterable[str],
    look: Callable[[str], objects.Device | None],
) -> list[objects.Device]:
    """Report each device; one that cannot be read is reported as failed.

    :param devices: their addresses
    :param look: reports one; None: it is not offered
    """
    found = []
    for address in devices:
        try:
            made = look(address)
        except Exception as err:
            if not is_of_device(err):
                raise
            LOG.warning('Device %s: %s', address, text_of(err))
            made = inventory.failed(address, driver, text_of(err))
        if made is not None:
            found.append(made)
    return found


def findings(
    devices: Iterable[_Device],
    subject: Callable[[_Device], str],
    look: Callable[[_Device], Iterable[finding.Finding]],
) -> Iterator[finding.Finding]:
    """What os-acc doctor says of each device.

    :param subject: what it calls a device
    :param look: looks at one; if it cannot be read, that is said instead
    """
    for each in devices:
        try:
            yield from look(each)
        except Exception as err:
            if not is_of_device(err):
                raise
            yield finding_of(subject(each), err)


def finding_of(subject: str, err: Exception) -> finding.Finding:
    """What os-acc doctor says of a device that cannot be read."""
    return finding.Finding(
        subject,
        finding.ERROR,
        text_of(err),
        'look for the reason in the kernel log (dmesg); the other devices '
        'remain available',
    )

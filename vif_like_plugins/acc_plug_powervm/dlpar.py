# SPDX-License-Identifier: Apache-2.0

"""Adds slots to, and removes them from, an existing LPAR (DLPAR).

A change may take minutes, because the server asks the operating system of a
running LPAR. A client cannot stop it. If the caller gives up, the thread that
waits for the answer goes on, and keeps the LPAR's turn until the server has
answered, or the LPAR shows the change, or the server has ended it for certain.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import Any

from pypowervm import exceptions as pvm_exceptions
from pypowervm import util as pvm_util
from pypowervm.helpers import log_helper
from pypowervm.wrappers import base_partition
from pypowervm.wrappers import logical_partition

from acc_plug_powervm import operation
from os_acc import exception
from os_acc import log
from os_acc import objects
from os_acc import powervm
from os_acc.deadlines import outliving
from os_acc.deadlines import waiting
from os_acc.powervm import inventory

LOG = logging.getLogger(__name__)

_TURNS = outliving.Turns()

_State = base_partition.LPARState
# An LPAR without an RMC connection may get one soon in these states.
_STARTING = (
    _State.STARTING,
    _State.OPEN_FIRMWARE,
    _State.HARDWARE_DISCOVERY,
    _State.RUNNING,
    _State.RESUMING,
)
# With these statuses, somebody between client and server has lost the answer.
_LOST = (408, 502, 504)
_ETAG_MISMATCH, _UNAVAILABLE = 412, 503
# The longest pause between two looks at an LPAR, or two tries, in seconds.
_LONGEST_PAUSE = 10.0


def io_slot(adapter: Any, handle: objects.DRCHandle) -> Any:
    """Build pypowervm's IOSlot for a handle.

    The REST API expects the DRC index as a decimal number. If it got the hex
    digits of the handle, it could take them for the index of another slot.
    """
    return base_partition.IOSlot.bld(
        adapter, bool(handle.bus_grp_required), int(handle.drc_index, 16)
    )


def attach(
    van: objects.VAN, handle: objects.DRCHandle, lpar_uuid: str, config: Any
) -> None:
    """Add a VAN's slot to an LPAR. Does nothing if the LPAR already has it.

    :param handle: the VAN's
    :param config: the values of [os_acc_powervm]
    :raises DeviceBusy: if another partition has the slot, or a slot of its
        bus group
    :raises DeviceNotFound: if the LPAR or the slot does not exist
    :raises HypervisorError: if the LPAR cannot be changed now (RMC, DLPAR),
        or the server refuses
    :raises Timeout: if the server does not answer in time; it may still
        attach the slot
    """
    change = _Change(van, handle, operation.ATTACH, lpar_uuid, config)
    with powervm.errors(change.what):
        if not change.is_made(lpar := change.read()):
            change.make(lpar)
    operation.forget(van)


def detach(
    van: objects.VAN, handle: objects.DRCHandle, lpar_uuid: str, config: Any
) -> None:
    """Remove a VAN's slot from an LPAR. An LPAR without the slot is a success.

    An earlier attach of the VAN must have ended, because the server would
    otherwise attach the slot after the VAN has been released. An LPAR that
    does not exist has released the slot.

    :param handle: the VAN's
    :param config: the values of [os_acc_powervm]
    :raises HypervisorError: if the server may still attach the slot, if the
        LPAR cannot be changed now, or the server refuses
    :raises Timeout: if the server does not answer in time; it may still
        remove the slot
    """
    change = _Change(van, handle, operation.DETACH, lpar_uuid, config)
    earlier = operation.noted(van)
    if earlier is not None:
        try:
            _TURNS.wait(change.thing, config.operation_timeout)
        except exception.Timeout as err:
            raise _unknown(earlier, 'it has not answered yet') from err
    # The errors of pypowervm become DeviceNotFound and others.
    with contextlib.suppress(exception.DeviceNotFound):
        with powervm.errors(change.what):
            if not change.is_made(lpar := change.read()):
                change.make(lpar)
            elif (
                earlier is not None
                and earlier.kind == operation.ATTACH
                and earlier.is_unknown
            ):
                raise _unknown(
                    earlier,
                    'the process that waited for its answer has ended',
                )
    operation.forget(van)


def _unknown(
    earlier: operation.Operation, why: str
) -> exception.HypervisorError:
    return exception.HypervisorError(
        what=f'slot {earlier.drc_index} cannot be released',
        reason=f'the server may still {earlier} until {earlier.end}, because '
        f"{why}. Unplug again, or run 'os-acc recover', when the server has "
        'done so, or after that time',
    )


class _Change:
    """One change of an LPAR: a slot is added or removed.

    Its methods raise the errors of pypowervm, unless they say otherwise.

    :ivar what: the change, for errors
    :ivar thing: the LPAR, for its turn
    """

    def __init__(
        self,
        van: objects.VAN,
        handle: objects.DRCHandle,
        kind: str,
        lpar_uuid: str,
        config: Any,
    ) -> None:
        self._van, self._handle, self._kind = van, handle, kind
        self._lpar_uuid, self._config = lpar_uuid, config
        self._logger = log.about(LOG, van.instance_uuid, van.uuid)
        to = 'to' if kind == operation.ATTACH else 'from'
        self.what = f'{kind} of slot {handle.drc_index} {to} LPAR {lpar_uuid}'
        self.thing = f'LPAR {lpar_uuid}'

    def read(self) -> Any:
        """Read the LPAR; returns a pypowervm LPAR."""
        return logical_partition.LPAR.get(
            powervm.adapter(), uuid=self._lpar_uuid
        )

    def is_made(self, lpar: Any) -> bool:
        """Whether the LPAR shows the change."""
        return bool(self._present(lpar)) == (self._kind == operation.ATTACH)

    def make(self, lpar: Any) -> None:
        """Make the change, and wait until it is made.

        :param lpar: as read() returned it
        :raises HypervisorError, DeviceBusy, Timeout: as attach()
        """
        config = self._config
        self._check_can_modify(self._with_rmc(lpar))
        self._check_slot()
        _TURNS.wait(self.thing, config.operation_timeout)
        begun = operation.Operation.begin(
            self._kind,
            self._handle.drc_index,
            self._lpar_uuid,
            config.operation_timeout + config.operation_limit,
        )
        operation.note(self._van, begun)
        _TURNS.run(
            self.thing,
            lambda abandoned: self._update(abandoned, begun.until),
            config.operation_timeout,
            f'the server to {begun}; it may still do so until {begun.end}',
            logger=self._logger,
        )
        self._logger.info('done: %s', self.what)

    def _update(self, abandoned: threading.Event, until: float) -> None:
        """Send the change to the server, and wait for its end.

        The request is sent again if another client has changed the LPAR since
        it was read (its etag differs), or if the server is busy.

        pypowervm's own retries are not used. Those of entry_transaction (up
        to 60) hold a lock of pypowervm on the LPAR while they wait. Those of
        vios_busy_retry_helper go on after the caller has given up.

        :param abandoned: set when the caller has given up
        :param until: when the server has ended the change for certain
        """
        config, tries = self._config, 0
        deadline = time.monotonic() + config.update_timeout
        while not self.is_made(lpar := self.read()):
            self._check_can_modify(lpar)
            if tries:
                self._check_slot()
            if abandoned.is_set():
                raise exception.HypervisorError(
                    what=self.what,
                    reason='not sent to the server, because the caller has '
                    'given up',
                )
            tries += 1
            self._change(lpar)
            try:
                answer = self._send(lpar, until)
            except pvm_exceptions.HttpError as err:
                if err.response.status in _LOST:
                    self._watch(err, abandoned, until)
                    return
                if not _may_repeat(err):
                    raise
                if tries >= config.update_tries or time.monotonic() > deadline:
                    raise exception.HypervisorError(
                        what=self.what,
                        reason=f'gave up after {tries} tries: another client '
                        'changed the LPAR, or the server was busy, each time '
                        f'({err})',
                    ) from err
            except Exception as err:
                # The connection broke, the time limit has passed, or the
                # answer cannot be read.
                self._watch(err, abandoned, until)
                return
            else:
                self._verify(answer)
                return
            abandoned.wait(min(0.1 * 2**tries, _LONGEST_PAUSE))

    def _change(self, lpar: Any) -> None:
        slots = lpar.io_config.io_slots
        if self._kind == operation.ATTACH:
            slots.append(io_slot(lpar.adapter, self._handle))
        else:
            for slot in self._present(lpar):
                slots.remove(slot)

    def _send(self, lpar: Any, until: float) -> Any:
        """Send the changed LPAR to the server; returns the server's LPAR."""
        answer = lpar.adapter.update_by_path(
            lpar,
            lpar.etag,
            pvm_util.dice_href(lpar.href, include_fragment=False),
            timeout=max(until - time.time(), 1.0),
            helpers=[log_helper.log_helper],
        )
        return logical_partition.LPAR.wrap(answer)

    def _verify(self, lpar: Any) -> None:
        if not self.is_made(lpar) or len(self._present(lpar)) > 1:
            raise exception.HypervisorError(
                what=self.what,
                reason='the server accepted the change, but the LPAR does '
                'not show it',
            )

    def _watch(
        self, cause: Exception, abandoned: threading.Event, until: float
    ) -> None:
        """After a lost answer, look at the LPAR until it shows the change.

        :raises HypervisorError: if the LPAR does not show the change by the
            time at which the server has ended it for certain
        """
        self._logger.warning(
            '%s: the answer is lost, so the LPAR is examined until it shows '
            'the change: %s',
            self.what,
            exception.describe(cause),
        )
        pause = 0.1
        while True:
            try:
                if self.is_made(self.read()):
                    return
            except pvm_exceptions.HttpNotFound:
                raise
            except (pvm_exceptions.Error, exception.ExceptionBase) as err:
                self._logger.debug('cannot look at the LPAR: %s', err)
            left = until - time.time()
            if left <= 0:
                raise exception.HypervisorError(
                    what=self.what,
                    reason=f'the answer was lost ({cause}), and the LPAR does '
                    'not show the change',
                ) from cause
            pause = min(pause * 1.5, _LONGEST_PAUSE, left)
            if abandoned.is_set():
                time.sleep(pause)
            else:
                abandoned.wait(pause)

    def _present(self, lpar: Any) -> list[Any]:
        index = int(self._handle.drc_index, 16)
        return [s for s in lpar.io_config.io_slots if s.drc_index == index]

    def _with_rmc(self, lpar: Any) -> Any:
        """Wait for the RMC connection of an LPAR that is starting.

        :returns: the LPAR as read last, with or without RMC
        """
        if not _lacks_rmc(lpar):
            return lpar
        seconds = self._config.rmc_timeout
        self._logger.info(
            'LPAR %s is %s and has no RMC connection: waiting up to %g s',
            lpar.name,
            lpar.state,
            seconds,
        )

        def look() -> Any:
            nonlocal lpar
            lpar = self.read()
            return not _lacks_rmc(lpar)

        with contextlib.suppress(exception.Timeout):
            waiting.until(look, seconds, f'RMC of {self.thing}')
        return lpar

    def _check_can_modify(self, lpar: Any) -> None:
        can, reason = lpar.can_modify_io()
        if not can:
            raise exception.HypervisorError(
                what=f'cannot change the I/O of LPAR {lpar.name} '
                f'({lpar.uuid}, {lpar.state}, RMC {lpar.rmc_state})',
                reason=reason,
            )

    def _check_slot(self) -> None:
        """Check that the slot may be added to the LPAR.

        This is necessary before every write, because the server would
        otherwise take the slot away from another partition.

        :raises DeviceBusy, DeviceNotFound, InvalidRequest: see inventory
        """
        if self._kind == operation.ATTACH:
            slots = inventory.read(self._lpar_uuid)
            slot = inventory.find(self._handle, slots)
            inventory.check(slot, slots.values(), self._lpar_uuid)


def _lacks_rmc(lpar: Any) -> bool:
    """Whether an LPAR cannot be changed now, but may be soon.

    An LPAR that gets its RMC connection gets its DLPAR capabilities with it.
    """
    return not lpar.can_modify_io()[0] and lpar.state in _STARTING


def _may_repeat(err: Any) -> bool:
    """Whether the server has done nothing, and may do it the next time."""
    return err.response.status in (_ETAG_MISMATCH, _UNAVAILABLE) or (
        err.her_wrap is not None and err.her_wrap.is_vios_busy()
    )

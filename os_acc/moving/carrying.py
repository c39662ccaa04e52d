# SPDX-License-Identifier: Apache-2.0

"""Moves an instance: the steps of both hosts, in their order.

It runs on the source. moves has the source's own steps, Target those of the
target, and a GuestMove those of the hypervisor. Until the target has
switched, a failure undoes all: on the target first, then on the source.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import dataclasses
import logging
import time
import traceback
from typing import Any

from os_acc import exception
from os_acc import guest_move
from os_acc import host as host_module
from os_acc import objects
from os_acc import progress
from os_acc.moving import answers
from os_acc.moving import moves
from os_acc.moving import storage
from os_acc.objects import van as states
from os_acc.texts import ways

LOG = logging.getLogger(__name__)

_CONFLICT = exception.MigrationConflict.__name__

#: The steps, as they are told.
PREPARE = 'prepare the target'
DEFINE = 'define the guest on the target'
STOP = 'stop the guest'
HAND_OVER = 'hand over the accelerators'
MOVE = 'move the guest'
SWITCH = 'switch to the target'
FORGET = 'remove the guest from this host'
START = 'start the guest on the target'
FINISH = 'release the accelerators of this host'

_RUNS_HERE = 'all is undone, the instance is on this host as before'
_ABORT = (
    'settle it by os-acc migration abort, on the target first, and see '
    'os-acc migration list on both hosts'
)
_FINISH = (
    'settle it by os-acc migration finish where it runs, and see os-acc '
    'migration list on both hosts'
)

#: What each way means for the guest.
DOWNTIME = {
    ways.LIVE: 'the guest keeps running, with its accelerators',
    ways.REPLUG: 'the guest keeps running, for about a minute without its '
    'accelerators',
    ways.COLD: 'the guest is shut down here and started on the target',
}
#: The same for a guest that does not run.
OFF = 'none: the guest does not run'
#: What is said of the guest's disks.
DISKS = 'not moved: both hosts must share them'


class Target:
    """The calls on the target host.

    :param call: makes one, by its name: see os_acc.moving.remote
    """

    def __init__(
        self,
        call: Callable[..., dict[str, Any]],
        info: objects.InstanceInfo,
        plan: objects.MigrationPlan,
        migration_uuid: str,
    ) -> None:
        self._call, self._plan = call, plan.obj_to_primitive()
        self._vans = [each.uuid for each in plan.accelerators]
        self._common = {
            'instance': info.obj_to_primitive(),
            'migration_uuid': migration_uuid,
        }

    def look(self, files: Sequence[str]) -> answers.Look:
        """Ask what is in the way there. Nothing is changed.

        :param files: what both hosts must share
        :raises TargetError: as all of these calls: if the call has failed
            there, or the target does not answer, or has answered something
            else
        """
        return answers.look(
            self._call(
                'look', plan=self._plan, files=list(files), **self._common
            )
        )

    def prepare(self) -> list[objects.VAN]:
        answer = self._call('prepare', plan=self._plan, **self._common)
        return answers.vans(answer, self._vans)

    def switch(self, live: bool) -> None:
        answer = self._call('switch', live=live, **self._common)
        answers.vans(answer, self._vans)

    def abort(self) -> None:
        answers.check_aborted(self._call('abort', **self._common))


@dataclasses.dataclass
class Carrying:
    """One move of an instance.

    :ivar host: the source
    :ivar vans: the instance's, on the source
    :ivar way: live, replug or cold; cold for a guest that does not run
    :ivar seconds: how long the guest may take to shut down or to be copied
    :ivar tell: gets each step that is done, and its seconds
    :ivar stopped: whether the caller wants to stop
    :ivar unchecked: the devices of the guest's disks that obstacles() has
        found: nobody can tell whether the target has the same ones
    """

    host: host_module.Host
    info: objects.InstanceInfo
    vans: Sequence[objects.VAN]
    way: str
    guest: guest_move.GuestMove
    target: Target
    migration_uuid: str
    seconds: float
    tell: Callable[[str, float], object] = lambda step, seconds: None
    stopped: Callable[[], bool] = lambda: False
    callback: progress.Callback | None = None
    unchecked: list[str] = dataclasses.field(default_factory=list)
    _begun: list[str] = dataclasses.field(default_factory=list)
    # How many VANs hand_over() has handed over.
    _handed_over: int = 0
    # Where the guest is; None: nobody can tell.
    _is_at: str | None = guest_move.SOURCE

    def obstacles(self) -> list[str]:
        """Say what is in the way, on both hosts. Nothing is changed."""
        found = list(self.guest.obstacles(self.way, self.vans))
        seen = storage.look(self.guest.shared_files(self.way))
        self.unchecked = storage.unchecked(seen)
        answer = self.target.look(list(seen.inodes))
        found += [f'on the target: {each}' for each in answer.obstacles]
        found += storage.differences(seen, answer.seen, not self.guest.runs)
        here = {van.plugin for van in self.vans}
        if answer.plugins and set(answer.plugins) != here:
            found.append(
                f'the target uses the plugin {", ".join(answer.plugins)}, '
                f'and this host {", ".join(sorted(here))}'
            )
        return found

    def move(self) -> list[str]:
        """Move the instance.

        :returns: what went wrong after the target had switched, so that it
            could not be undone; empty if all is done
        :raises MoveException: if it was not moved
        :raises KeyboardInterrupt: if it was stopped, and all is undone
        """
        try:
            self._until_switch()
        except BaseException as err:
            # A call that is interrupted between its entry and its first line
            # holds the lock of the instance as long as its frames live.
            traceback.clear_frames(err.__traceback__)
            self._undo(err)
        return self._after_switch()

    def _until_switch(self) -> None:
        """Do all that can be undone, and the switch."""
        replug = self.way == ways.REPLUG
        with self._step(PREPARE):
            new = self.target.prepare()
        if self.way == ways.COLD:
            with self._step(DEFINE):
                self.guest.define(self.vans, new)
            with self._step(STOP):
                self.guest.stop(self.seconds, self.stopped)
        with self._step(HAND_OVER):
            given = moves.hand_over(
                self.host,
                self.info,
                self.migration_uuid,
                replug,
                self.callback,
                [van.uuid for van in self.vans],
            )
            self._handed_over = len(given.objects)
        if self.way != ways.COLD:
            with self._step(MOVE):
                self._carry([] if replug else new)
        with self._step(SWITCH, may_stop=False):
            self.target.switch(replug)

    def _carry(self, new: Sequence[objects.VAN]) -> None:
        """Move the running guest, and find out where it is afterwards."""
        old = self.vans if new else []
        try:
            self.guest.carry(old, new, self.seconds, self.stopped)
        except Exception as err:
            self._is_at = self.guest.where()
            if self._is_at != guest_move.TARGET:
                raise
            LOG.warning(
                'The guest runs on the target, although its move failed: %s',
                exception.describe(err),
            )
        else:
            self._is_at = guest_move.TARGET

    def _after_switch(self) -> list[str]:
        """Do what is left when the target has the instance."""
        left: list[str] = []
        if self.way == ways.COLD:
            self._attempt(left, FORGET, self.guest.forget)
            if left:
                left.append(
                    f'{START}: not done, because this host may start it too'
                )
            else:
                self._attempt(left, START, self.guest.start)
        self._attempt(
            left,
            FINISH,
            lambda: moves.finish(
                self.host, self.info, self.migration_uuid, self.callback
            ),
        )
        return left

    def _undo(self, err: BaseException) -> None:
        """Undo what has begun: on the target first, then on the source.

        It returns only if the target has switched, so that the move goes on.
        """
        if PREPARE not in self._begun:
            raise err
        if self._is_at != guest_move.SOURCE:
            where = 'runs on the target' if self._is_at else 'is on one host'
            raise self._failed(err, f'its guest {where}; {_FINISH}') from err
        try:
            self.target.abort()
        except exception.TargetError as refused:
            if refused.name == _CONFLICT and SWITCH in self._begun:
                LOG.warning('The target has switched: %s', err)
                return
            errors = [refused, *self._undo_here(HAND_OVER not in self._begun)]
        else:
            errors = self._undo_here(True)
        if self.stopped() and not errors:
            raise KeyboardInterrupt from err
        hint = _ABORT if errors else _RUNS_HERE
        raise self._failed(err, hint, errors) from err

    def _undo_here(self, is_safe: bool) -> list[exception.ExceptionBase]:
        """Undo what has begun, but for what the target has prepared.

        :param is_safe: False: the target may take the accelerators, so that
            this host must not give them to the guest
        :returns: what could not be undone
        """
        errors: list[exception.ExceptionBase] = []
        for name, act in (
            (DEFINE, self.guest.discard),
            (HAND_OVER, self._take_back),
            (STOP, self._restart),
        ):
            if name not in self._begun or not is_safe:
                continue
            try:
                act()
            except Exception as err:
                errors.append(self._plain(err))
        return errors

    def _take_back(self) -> None:
        """Take back what was handed over.

        :raises MigrationConflict: if this host does not have all of it any
            more: somebody else has settled the migration
        """
        taken = moves.abort(
            self.host, self.info, self.migration_uuid, self.callback
        )
        if taken < self._handed_over:
            raise exception.MigrationConflict(
                instance=self.info.uuid,
                reason=f'{self._handed_over} VANs were handed over, and '
                f'{taken} taken back: somebody else has settled the migration '
                'on this host',
            )

    def _restart(self) -> None:
        """Undo the stop, if the guest has its accelerators on this host.

        :raises MigrationConflict: if they are not the instance's: another
            host may have it, so that it must not run on this one
        """
        uuid = self.info.uuid
        with self.host.locks.instance(uuid):
            entries = self.host.journal.entries(uuid)
            found = {each.van.uuid: each.van.state for each in entries}
            lost = {van.uuid for van in self.vans} - found.keys()
            if lost or set(found.values()) != {states.PLUGGED}:
                has = ', '.join(f'{van} {found[van]}' for van in sorted(found))
                raise exception.MigrationConflict(
                    instance=uuid,
                    reason='its guest is not started on this host, whose '
                    'journal has not all of its accelerators as plugged, but '
                    f'{has or "none"}',
                )
            self.guest.restart()

    @contextlib.contextmanager
    def _step(self, name: str, may_stop: bool = True) -> Iterator[None]:
        """Take note that a step has begun, and tell it when it is done.

        Whoever is told may be gone, such as the reader of a pipe. The move
        goes on.
        """
        if may_stop and self.stopped():
            raise KeyboardInterrupt
        self._begun.append(name)
        start = time.monotonic()
        yield
        seconds = time.monotonic() - start
        try:
            self.tell(name, seconds)
        except Exception as err:
            LOG.warning(
                'Done in %.2f s, and not told: %s: %s',
                seconds,
                name,
                exception.describe(err),
            )

    def _attempt(
        self, left: list[str], name: str, act: Callable[[], object]
    ) -> None:
        """Do a step; if it fails, the others go on."""
        try:
            with self._step(name, may_stop=False):
                act()
        except Exception as err:
            left.append(f'{name}: {exception.describe(err)}')

    def _plain(self, err: Exception) -> exception.ExceptionBase:
        if isinstance(err, exception.ExceptionBase):
            return err
        return exception.MigrationConflict(
            instance=self.info.uuid, reason=exception.describe(err)
        )

    def _failed(
        self,
        err: BaseException,
        hint: str,
        undo_errors: Sequence[exception.ExceptionBase] = (),
    ) -> exception.MoveException:
        return exception.MoveException(
            instance=self.info.uuid,
            err=f'{exception.describe(err)}: {hint}',
            undo_errors=undo_errors,
        )

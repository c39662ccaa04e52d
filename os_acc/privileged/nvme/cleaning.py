# SPDX-License-Identifier: Apache-2.0

"""Emptying an NVMe drive between two tenants.

A controller that is the only one of its NVM subsystem is emptied by Sanitize
if it has a suitable action, else by Format NVM of each namespace. A controller
that has others beside it, such as a VF, may only format its own namespaces,
because Sanitize erases the whole NVM subsystem.

Before the erase, blocks all over each namespace are read; afterwards they are
read again: see the module verification.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import time

from os_acc import exception
from os_acc.privileged.nvme import commands
from os_acc.privileged.nvme import controller as controllers
from os_acc.privileged.nvme import function
from os_acc.privileged.nvme import verification
from os_acc.refusals import nvme_refusals
from os_acc.refusals import reasons

#: Called with the progress from 0 to 1, or None if it is unknown.
Tell = Callable[[float | None, str], None]


def check(address: str, is_vf: bool) -> str | None:
    """Check that a function can be emptied later. Nothing is erased.

    :param address: of a function that is bound to VFIO and not open
    :returns: which drive it is, see kernel.nvme.drive_id()
    :raises Unsupported: if it cannot be emptied; the error says why
    """
    with _started(address) as controller:
        return _Drive(controller, f'PCI function {address}', is_vf).id


def empty(
    address: str,
    is_vf: bool,
    seconds: float,
    tell: Tell,
    check_drive: Callable[[str | None], None] = lambda drive: None,
) -> verification.Emptied:
    """Erase all that a tenant can have written, and verify it.

    :param check_drive: called with which drive it is, before it is erased
    :raises Unsupported: if it cannot be emptied; nothing is erased
    :raises DeviceError, Timeout: if the erase failed or did not end in time
    :raises CleaningFailed: if a block still reads as before
    """
    with _started(address) as controller:
        device = f'PCI function {address}'
        drive = _Drive(controller, device, is_vf)
        check_drive(drive.id)
        return drive.empty(_Deadline(device, seconds), tell)


class _Deadline:
    """When the drive has to be empty."""

    def __init__(self, device: str, seconds: float) -> None:
        self._device = device
        self._seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self, what: str) -> float:
        """The seconds that are left."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise exception.Timeout(
                what=f'{self._device}: {what}', seconds=self._seconds
            )
        return left


@contextlib.contextmanager
def _started(address: str) -> Iterator[controllers.Controller]:
    with function.opened(address) as access:
        controller = controllers.Controller(access, f'PCI function {address}')
        controller.start()
        try:
            yield controller
        finally:
            # VFIO resets the function when it is closed, in any case.
            with contextlib.suppress(exception.ExceptionBase):
                controller.stop()


class _Drive:
    """What a controller gives access to, and how that is erased."""

    def __init__(
        self, controller: controllers.Controller, device: str, is_vf: bool
    ) -> None:
        self._controller = controller
        self._device = device
        data = controller.admin(commands.identify_controller())
        self._data = commands.ControllerData.decode(data)
        self._alone = not is_vf and self._is_alone()
        self._sanitizes = self._alone and bool(self._data.sanitize_actions)
        if not self._sanitizes:
            self._check_format()

    @property
    def id(self) -> str | None:
        return self._data.drive

    def empty(self, deadline: _Deadline, tell: Tell) -> verification.Emptied:
        controller = self._controller
        if self._sanitizes:
            # A Sanitize that an earlier process began goes on: let it end.
            self._wait_sanitized(deadline, tell)
        before = self._namespaces()
        with self._attached(before):
            controller.start_io()
            reader = verification.Verification(
                controller, self._device, before, self._data.largest
            )
            if self._sanitizes:
                how = self._sanitize(deadline, tell)
            else:
                how = self._format(before, deadline, tell)
            after = self._namespaces()
            if after != before:
                raise exception.CleaningFailed(
                    device=self._device,
                    reason=f'{how} has changed its namespaces from '
                    f'{_listed(before)} to {_listed(after)}',
                )
            tell(None, 'reading back')
            return reader.verify(how)

    def _cannot(
        self, refusal: reasons.Refusal, **values: object
    ) -> function.Unsupported:
        drive = f'{self._data.model} {self._data.serial}'
        return function.Unsupported(
            device=self._device,
            reason=refusal.reason(drive=drive, **values).text,
        )

    def _is_alone(self) -> bool:
        """Whether no other controller of the NVM subsystem is in use.

        A PF has no VFs while it is given out, so the secondary controllers
        that it has are offline.
        """
        data = self._data
        if not data.many:
            return True
        try:
            there = commands.controllers(
                self._controller.admin(commands.list_controllers())
            )
            secondary = commands.secondary_controllers(
                self._controller.admin(commands.list_secondary_controllers())
            )
        except controllers.CommandFailed:
            return False
        return set(there) <= {data.id, *secondary}

    def _check_format(self) -> None:
        """Check that Format NVM of the namespaces suffices."""
        data, alone = self._data, self._alone
        if not data.formats:
            raise self._cannot(
                nvme_refusals.NO_ERASE
                if alone
                else nvme_refusals.SANITIZE_ONLY
            )
        if self._controller.has_persistent_memory:
            raise self._cannot(nvme_refusals.PERSISTENT_MEMORY)
        if alone:
            return
        if data.erases_all:
            raise self._cannot(nvme_refusals.ERASES_ALL)
        if data.manages:
            raise self._cannot(nvme_refusals.MANAGES_NAMESPACES)
        for nsid in self._list(active=True):
            attached = commands.controllers(
                self._controller.admin(commands.list_controllers(nsid))
            )
            if others := sorted(set(attached) - {data.id}):
                raise self._cannot(
                    nvme_refusals.SHARED_NAMESPACE,
                    nsid=nsid,
                    others=', '.join(map(str, others)),
                )

    def _list(self, active: bool) -> list[int]:
        found: list[int] = []
        while True:
            after = found[-1] if found else 0
            data = self._controller.admin(
                commands.list_namespaces(after, active)
            )
            part = commands.namespaces(data)
            found += part
            if len(part) < 1024:
                return found

    def _namespaces(self) -> verification.Namespaces:
        """All that a tenant can have written to, attached or not."""
        active = self._list(active=True)
        every = active
        if self._alone and self._data.manages:
            every = self._list(active=False)
        return {
            nsid: commands.Namespace.decode(
                self._controller.admin(
                    commands.identify_namespace(nsid, nsid in active)
                )
            )
            for nsid in sorted({*active, *every})
        }

    @contextlib.contextmanager
    def _attached(self, there: verification.Namespaces) -> Iterator[None]:
        """Attach the namespaces that a guest has detached, until the end."""
        active = self._list(active=True)
        data = commands.controller_list(self._data.id)
        with contextlib.ExitStack() as stack:
            for nsid in there:
                if nsid not in active:
                    self._controller.admin(commands.attach(nsid), data)
                    stack.callback(
                        self._controller.admin,
                        commands.attach(nsid, detach=True),
                        data,
                    )
            yield

    def _sanitize(self, deadline: _Deadline, tell: Tell) -> str:
        action = self._data.sanitize_actions[0]
        self._controller.admin(
            commands.sanitize(action),
            seconds=deadline.left('Sanitize'),
        )
        self._wait_sanitized(deadline, tell)
        state, _ = self._sanitize_state()
        if state not in commands.SANITIZED:
            raise exception.CleaningFailed(
                device=self._device,
                reason=f'Sanitize has failed (status {state})',
            )
        name = 'block' if action == commands.SANITIZE_BLOCK else 'crypto'
        return f'Sanitize ({name} erase)'

    def _sanitize_state(self) -> tuple[int, float]:
        return commands.sanitize_state(
            self._controller.admin(commands.sanitize_status())
        )

    def _wait_sanitized(self, deadline: _Deadline, tell: Tell) -> None:
        pause = 0.01
        while True:
            state, progress = self._sanitize_state()
            if state != commands.SANITIZING:
                return
            tell(progress, 'Sanitize')
            deadline.left('Sanitize')
            time.sleep(pause)
            pause = min(pause * 2, 2.0)

    def _format(
        self, there: verification.Namespaces, deadline: _Deadline, tell: Tell
    ) -> str:
        """Format each namespace by itself, so that no other is erased."""
        crypto = self._data.erases_cryptographically
        erase = (
            commands.ERASE_CRYPTOGRAPHIC
            if crypto
            else commands.ERASE_USER_DATA
        )
        for number, (nsid, namespace) in enumerate(there.items()):
            command = commands.format_nvm(nsid, namespace, erase)
            done = number / len(there)
            tell(done, command.name)
            self._controller.admin(
                command,
                seconds=deadline.left(command.name),
            )
        kind = 'cryptographic' if crypto else 'user data'
        return f'Format NVM of {_listed(there)} ({kind} erase)'


def _listed(there: verification.Namespaces) -> str:
    if not there:
        return 'no namespace'
    return 'namespaces ' + ', '.join(map(str, there))

# SPDX-License-Identifier: Apache-2.0

"""The exit codes of the command, and which error has which code.

The codes are the same for devices, VANs and instances. ``run`` passes on the
exit code of its command instead (see os_acc.cli.run), and ``cni-like`` has
the codes of CNI in its answers (see os_acc.cli.cni).
"""

from __future__ import annotations

from oslo_config import cfg

from os_acc import exception
from os_acc.cli import errors

DONE = 0
FAILED = 1
WRONG_USAGE = 2
WOULD_CHANGE = 2
DIFFERS = 3
NOT_FOUND = 4
BUSY = 5
INTERRUPTED = 130

#: What each code means, for the documentation.
MEANINGS = {
    DONE: 'done',
    FAILED: 'failed; standard error has the error in one line',
    WRONG_USAGE: 'wrong arguments, input or configuration; nothing was '
    'touched. For ``apply --check``: something would change',
    DIFFERS: 'something differs from what it should be: ``recover``, '
    '``apply``, ``migrate``, ``migration finish``, ``migration abort`` or '
    '``orphans --release`` left something undone, '
    '``cyborg check`` found something that was not fixed, or ``migration '
    'check`` found an accelerator that cannot move; the output says what and '
    'why',
    NOT_FOUND: 'there is no such device or VAN',
    BUSY: 'the device, the instance or the journal is in use, or no device is '
    'free; a later attempt may succeed',
    INTERRUPTED: 'interrupted by Ctrl-C; ``plug`` and ``migrate`` have undone '
    'what they did',
}

_NOT_FOUND = (errors.NotFound, exception.DeviceNotFound)

_WRONG_USAGE = (
    cfg.Error,
    exception.InvalidRequest,
    exception.NoMatchingDriver,
    exception.AmbiguousDriver,
    exception.NoMatchingPlugin,
    exception.UnsupportedHandle,
    exception.LiveNotSupported,
    exception.JournalMissing,
)

_BUSY = (
    exception.DeviceBusy,
    exception.DeviceInUseByHost,
    exception.JournalBusy,
    exception.LockTimeout,
)


def of(err: BaseException) -> int:
    """Return the exit code for an error.

    The error of a plug or unplug has the code of its cause, unless something
    is left to undo: then it has failed, and a retry alone does not help. If
    it has found no device, others have all of them; os_acc.cli.waiting makes
    another error if there is none at all.
    """
    if isinstance(err, _NOT_FOUND):
        return NOT_FOUND
    if isinstance(err, _WRONG_USAGE):
        return WRONG_USAGE
    if getattr(err, 'undo_errors', []):
        return FAILED
    for each in errors.causes(err):
        if isinstance(each, (*_BUSY, exception.DeviceNotFound)):
            return BUSY
        if isinstance(each, exception.TargetError) and each.code == BUSY:
            return BUSY
    return FAILED

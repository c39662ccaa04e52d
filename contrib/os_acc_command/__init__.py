# SPDX-License-Identifier: Apache-2.0

"""Starts the os-acc command. Ctrl-C ends the start with one line.

The imports of os-acc take most of the time of a short command. Python would
answer Ctrl-C during an import with a traceback. So this module is outside the
package os_acc, whose import it watches, and imports only what is loaded
already.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

# os_acc.cli.exit_codes is one of the imports.
_INTERRUPTED = 128 + signal.SIGINT


def main() -> int:
    """Run the command.

    :returns: the exit code: see os_acc.cli.exit_codes
    """
    _open_missing_streams()
    # A background job of a script ignores Ctrl-C, and goes on to do so.
    heeds = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeds:
        signal.signal(signal.SIGINT, _end)
    from os_acc.cli import app

    if heeds:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    code = app.main()
    if heeds:
        # The work is done. Python only clears up now.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return code


def _open_missing_streams() -> None:
    """Give this process all three standard streams.

    A caller may have closed some, as with 2>&-. The next file that is opened
    would become that stream, and Python sets the stream to None. What cannot
    be encoded, as with LC_ALL=C, is escaped and not an error.
    """
    for number, name in enumerate(('stdin', 'stdout', 'stderr')):
        try:
            os.fstat(number)
        except OSError:
            # It gets the lowest free number, which is this one.
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            # It stays open until the process ends, as the other streams do.
            setattr(sys, name, open(number, 'w' if number else 'r'))  # noqa: SIM115
        elif number and hasattr(getattr(sys, name), 'reconfigure'):
            getattr(sys, name).reconfigure(errors='backslashreplace')


def _end(number: int, frame: FrameType | None) -> None:
    """End the process at once, because the command has not begun yet.

    An exception would not do, because Python prints and drops one that comes
    in some places of an import.
    """
    below = '\n' if sys.stderr.isatty() else ''  # the terminal shows ^C
    os.write(2, f'{below}Interrupted: nothing was begun\n'.encode())
    os._exit(_INTERRUPTED)

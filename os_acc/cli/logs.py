# SPDX-License-Identifier: Apache-2.0
"""Where the command logs: standard error, and the file of --log-file."""

from __future__ import annotations

import logging
import sys
from typing import Any
from typing import TextIO

from os_acc.texts import masking

# Loggers whose lines are not on standard error unless -v is given: a command
# that fails prints its error in one line, and these would repeat it.
_QUIET = (
    'os_acc',
    'oslo.privsep',
    'oslo_privsep',
    'oslo_service',
    'stevedore',
)

# Loggers of libraries that log each entry point or file that they look at.
_NOISY = ('stevedore', 'oslo_service', 'asyncio', 'urllib3')

# What standard error shows, by the number of -v, from -q to -vv.
_LEVELS = (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)

_FILE_FORMAT = (
    '%(asctime)s.%(msecs)03d %(process)d %(levelname)s %(name)s: %(message)s'
)
_TIME_FORMAT = '%Y-%m-%d %H:%M:%S'


def configure(
    stream: TextIO, verbosity: int, debug: bool, path: str | None
) -> list[logging.Handler]:
    """Let all loggers write to a stream, and to a file.

    The file gets what matters, from the level INFO, also without -v: what was
    plugged and unplugged, and what failed. With -vv or --debug it gets all.

    :param verbosity: 0 for -q, 1 for none, 2 for -v, 3 for -vv
    :param path: the file; its lines are added at its end. None: no file
    :returns: the handlers, for the caller to remove
    """
    console = logging.StreamHandler(stream)
    console.setLevel(_LEVELS[min(verbosity, len(_LEVELS) - 1)])
    console.setFormatter(_Formatter('%(message)s'))
    if verbosity < 2 and not debug:
        console.addFilter(_is_loud)
    handlers: list[logging.Handler] = [console]
    try:
        if path is not None:
            file = _LogFile(path, stream)
            file.setLevel(
                logging.DEBUG if debug or verbosity > 2 else logging.INFO
            )
            file.setFormatter(_Formatter(_FILE_FORMAT, _TIME_FORMAT))
            handlers.append(file)
    finally:
        root = logging.getLogger()
        root.setLevel(min(each.level for each in handlers))
        for handler in handlers:
            root.addHandler(handler)
        for name in _NOISY:
            logging.getLogger(name).setLevel(logging.WARNING)
    return handlers


class _Formatter(logging.Formatter):
    """Masks secrets in tracebacks: they have the raw texts of libraries."""

    # The name is that of logging.Formatter.
    def formatException(self, ei: Any) -> str:  # noqa: N802
        return masking.of_error(super().formatException(ei))


class _LogFile(logging.FileHandler):
    """A log file. If it cannot be written, one line says so, once.

    The command goes on: what it does to devices matters more than its log.
    """

    def __init__(self, path: str, console: TextIO) -> None:
        super().__init__(path, encoding='utf-8')
        self._console = console
        self._reported = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        err = sys.exc_info()[1]
        if not isinstance(err, OSError):
            super().handleError(record)
        elif not self._reported:
            self._reported = True
            self._console.write(
                f'The log file {self.baseFilename} cannot be written: '
                f'{err.strerror}\n'
            )


def _is_loud(record: logging.LogRecord) -> bool:
    """Whether a line is for standard error although -v is not given."""
    return not any(f'{record.name}.'.startswith(f'{name}.') for name in _QUIET)

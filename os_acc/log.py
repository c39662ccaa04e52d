# SPDX-License-Identifier: Apache-2.0

"""Loggers that put the instance and the VAN in front of each line.

Tracebacks are logged by error(), and nowhere by exc_info: services have their
own log handlers, which write the raw text of an error.
"""

from __future__ import annotations

from collections.abc import MutableMapping
import logging
import traceback
from typing import Any

from os_acc.texts import masking

#: What a module logs to.
Logger = logging.Logger | logging.LoggerAdapter[logging.Logger]


class _About(logging.LoggerAdapter[logging.Logger]):
    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        assert self.extra is not None
        return f'{self.extra["prefix"]}{msg}', kwargs


def about(
    logger: logging.Logger, instance_uuid: str, van_uuid: str | None = None
) -> logging.LoggerAdapter[logging.Logger]:
    """Make a logger whose lines begin with the UUIDs, as Nova's lines do.

    :param logger: the logger of the calling module
    :param instance_uuid: the instance that the lines are about
    :param van_uuid: the VAN that they are about; None: no single VAN
    """
    prefix = f'[instance: {instance_uuid}] '
    if van_uuid is not None:
        prefix += f'[van: {van_uuid}] '
    return _About(logger, {'prefix': prefix})


def error(logger: Logger, err: BaseException, text: str, *args: Any) -> None:
    """Log an error with its traceback, in which secrets are masked.

    The texts of libraries' errors may contain secrets. The traceback is a part
    of the message, because each handler formats exc_info in its own way.

    :param logger: of the calling module
    :param err: the error
    :param text: what failed, with a place for each of args
    """
    told = masking.of_error(''.join(traceback.format_exception(err)).rstrip())
    said = f'{text}\n%s'
    logger.error(said, *args, told, stacklevel=2)

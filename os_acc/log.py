# SPDX-License-Identifier: Apache-2.0

"""Loggers that put the instance and the VAN in front of each line."""

from __future__ import annotations

from collections.abc import MutableMapping
import logging
from typing import Any


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

# SPDX-License-Identifier: Apache-2.0

"""The errors of the command itself, and the causes of an error."""

from __future__ import annotations

from collections.abc import Iterator

from oslo_config import cfg

from os_acc import exception


class NotFound(exception.InvalidRequest):
    """There is no such VAN or instance in the journal."""


class NoSuchDevice(exception.DeviceNotFound):
    """This host has no device that could serve a request, free or not."""


class ConfigFileUnreadable(cfg.Error):
    """oslo.config cannot read a line of a configuration file."""


def causes(err: BaseException) -> Iterator[BaseException]:
    """List an error and its causes, the root cause last."""
    found: BaseException | None = err
    while found is not None:
        yield found
        found = found.__cause__

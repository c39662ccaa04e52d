# SPDX-License-Identifier: Apache-2.0

"""The errors of the command itself, and the causes of an error."""

from __future__ import annotations

from collections.abc import Iterator
import errno

from oslo_config import cfg

from os_acc import exception

# The name is right, and another attempt may succeed.
_NOT_THE_NAME = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


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


def unwritable(
    subject: str, field: str, path: str, expected: str, err: OSError
) -> Exception:
    """Return the error to raise if a file or directory cannot be written.

    :returns: an OSError with the path if the disk is full or broken; else an
        InvalidRequest, because another path is needed
    """
    if err.errno in _NOT_THE_NAME:
        return OSError(err.errno, err.strerror, path)
    exists = isinstance(err, FileExistsError)
    return exception.InvalidRequest(
        subject=subject,
        field=field,
        value=path,
        expected=f'{expected} '
        f'({"it exists already" if exists else err.strerror})',
    )

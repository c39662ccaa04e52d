# SPDX-License-Identifier: Apache-2.0

"""Errors of a command that cannot write a file or directory."""

from __future__ import annotations

import errno

from os_acc import exception

# The name is right, and another attempt may succeed.
_NOT_THE_NAME = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


def error(
    subject: str, field: str, path: str, expected: str, err: OSError
) -> Exception:
    """Return the error to raise if a file or directory cannot be written.

    :param subject: the command
    :param field: the argument that names the file
    :param expected: which file or directory the argument should name
    :param err: the error of the kernel
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

# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Bitstreams that are files of this host, in folders that are allowed."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import os
import stat
from typing import BinaryIO

from os_acc import exception


@contextlib.contextmanager
def opened(
    path: str, folders: Sequence[str], max_bytes: int
) -> Iterator[tuple[str, BinaryIO]]:
    """Open a file that is really in one of the folders.

    :param path: absolute
    :returns: its real path, and the file
    :raises BitstreamError: it is elsewhere, no file, or too large
    """

    def refused(reason: str) -> exception.BitstreamError:
        return exception.BitstreamError(bitstream=path, reason=reason)

    if not os.path.isabs(path) or '..' in path.split('/') or '\0' in path:
        raise refused('expected an absolute path without ..')
    real = os.path.realpath(path)
    if not any(_is_below(real, os.path.realpath(each)) for each in folders):
        link = '' if real == os.path.normpath(path) else f' (it is {real})'
        raise refused(
            f'it is{link} in none of [os_acc_bitstreams] allowed_folders: '
            + (', '.join(folders) or '(none)')
        )
    try:
        # Not a link put there meanwhile; and no waiting for a pipe's writer.
        fd = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as err:
        raise refused(err.strerror or str(err)) from err
    with open(fd, 'rb') as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise refused('it is no file')
        if found.st_size > max_bytes:
            raise refused(
                f'it has {found.st_size} bytes, more than max_size, '
                f'{max_bytes}'
            )
        yield real, file


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip('/') + '/')

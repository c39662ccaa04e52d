# SPDX-License-Identifier: Apache-2.0

"""Opens the file of a bitstream safely, and computes its checksums.

This is not in the package programming because the privileged half, a layer
below it, uses this module too.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import hashlib
import os
import stat
from typing import BinaryIO

from os_acc import exception

_CHUNK = 1 << 20

# With O_PATH, O_NOFOLLOW opens a link itself, which is neither a directory nor
# a regular file.
_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def of_file(
    file: BinaryIO,
    bitstream: str,
    most: int,
    *algorithms: str,
    copy: BinaryIO | None = None,
) -> dict[str, str]:
    """Read a file from its start and compute its checksums.

    :param bitstream: the name of the bitstream in errors
    :param most: the largest size in bytes; checked while reading, because the
        file may still be growing
    :param algorithms: which checksums to compute, besides sha256
    :returns: the checksums, hex, by algorithm
    """
    hashes = {name: hashlib.new(name) for name in {'sha256', *algorithms}}
    os.lseek(file.fileno(), 0, os.SEEK_SET)
    size = 0
    while chunk := os.read(file.fileno(), _CHUNK):
        size += len(chunk)
        if size > most:
            raise exception.BitstreamError(
                bitstream=bitstream,
                reason=f'it has grown to {size} bytes or more, max_size is '
                f'{most}',
            )
        for each in hashes.values():
            each.update(chunk)
        if copy is not None:
            copy.write(chunk)
    return {name: each.hexdigest() for name, each in hashes.items()}


@contextlib.contextmanager
def opened(
    path: str, directories: Sequence[str], max_bytes: int
) -> Iterator[tuple[str, BinaryIO]]:
    """Open a bitstream that lies in one of the directories.

    :param directories: the allowed directories; symbolic links are resolved
    :returns: the real path, and the open file
    :raises BitstreamError: if the file is in no allowed directory, is not a
        regular file, is too large, or cannot be opened
    """

    def refused(reason: str) -> exception.BitstreamError:
        return exception.BitstreamError(bitstream=path, reason=reason)

    if not os.path.isabs(path) or '..' in path.split('/') or '\0' in path:
        raise refused('expected an absolute path without ..')
    try:
        real = os.path.realpath(path)
        tops = [os.path.realpath(each) for each in directories]
    except OSError as err:
        # Another user may change links on the way at the same time.
        raise refused(err.strerror or str(err)) from err
    top = next((each for each in tops if _is_below(real, each)), None)
    if top is None:
        link = '' if real == os.path.normpath(path) else f' (it is {real})'
        raise refused(
            f'it is{link} in none of [os_acc_bitstreams] allowed_folders: '
            + (', '.join(directories) or '(none)')
        )
    try:
        fd = _open_below(top, os.path.relpath(real, top))
    except OSError as err:
        raise refused(err.strerror or str(err)) from err
    if fd is None:
        raise refused('it is not a regular file')
    with open(fd, 'rb') as file:
        found = os.fstat(fd)
        if found.st_size > max_bytes:
            raise refused(
                f'it has {found.st_size} bytes, max_size is {max_bytes}'
            )
        yield real, file


def _open_below(top: str, path: str) -> int | None:
    """Open a regular file below a directory for reading, without any link.

    Another user may exchange a directory of the path for a link at any time.
    So each component is opened in the directory before it, and none may be a
    link. The file is looked at by O_PATH before it is opened, because opening
    a device file can act on the device.

    :param top: an absolute path without links
    :param path: the file, relative to top, without links and without ..
    :returns: None if it is not a regular file
    """
    *directories, name = path.split('/')
    fd = os.open(top, _LOOK | os.O_DIRECTORY)
    try:
        for each in directories:
            below = os.open(each, _LOOK | os.O_DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = below
        file = os.open(name, _LOOK, dir_fd=fd)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                return None
            # The file that was looked at, wherever its name leads now.
            return os.open(f'/proc/self/fd/{file}', os.O_RDONLY)
        finally:
            os.close(file)
    finally:
        os.close(fd)


def _is_below(path: str, directory: str) -> bool:
    return path.startswith(directory.rstrip('/') + '/')

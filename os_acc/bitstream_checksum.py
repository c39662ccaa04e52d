# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Checksums of bitstreams: read, and verified."""

from __future__ import annotations

import hashlib
import os
import re
from typing import BinaryIO
from typing import NamedTuple

from os_acc import exception

#: What counts as proof; Glance's os_hash_algo is sha512 by default.
ALGORITHMS = {'sha256': 64, 'sha384': 96, 'sha512': 128}

_CHUNK = 1 << 20


class Checksum(NamedTuple):
    algorithm: str
    value: str

    @classmethod
    def parse(cls, algorithm: str, value: str, bitstream: str) -> Checksum:
        """:raises BitstreamError: it is no checksum that we trust"""
        digits = ALGORITHMS.get(algorithm)
        if digits is None:
            raise exception.BitstreamError(
                bitstream=bitstream,
                reason=f'its checksum is {algorithm!r}, expected one of '
                + ', '.join(ALGORITHMS),
            )
        if not re.fullmatch(f'[0-9a-fA-F]{{{digits}}}', value):
            raise exception.BitstreamError(
                bitstream=bitstream,
                reason=f'its checksum is {value[:150]!r}, expected {digits} '
                f'hex digits of {algorithm}',
            )
        return cls(algorithm, value.lower())


def of_file(
    file: BinaryIO,
    bitstream: str,
    most: int,
    *algorithms: str,
    copy: BinaryIO | None = None,
) -> dict[str, str]:
    """Read a file from its start.

    :param bitstream: what to call it in errors
    :param most: how many bytes it may have; it may still be growing
    :param copy: gets all that is read
    :returns: the checksum by each algorithm, hex
    :raises BitstreamError: it has more
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


def verify(file: BinaryIO, wanted: Checksum, bitstream: str, most: int) -> str:
    """Read a file, and see that it is what it should be.

    :param most: as of_file
    :returns: its SHA-256
    :raises BitstreamError: it is not
    """
    found = of_file(file, bitstream, most, wanted.algorithm)
    if found[wanted.algorithm] != wanted.value:
        raise exception.BitstreamError(
            bitstream=bitstream,
            reason=f'its {wanted.algorithm} is {found[wanted.algorithm]}, '
            f'expected {wanted.value}',
        )
    return found['sha256']

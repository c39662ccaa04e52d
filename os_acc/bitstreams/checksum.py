# SPDX-License-Identifier: Apache-2.0

"""Checksums that are given for bitstreams."""

from __future__ import annotations

import re
from typing import BinaryIO
from typing import NamedTuple

from os_acc import exception
from os_acc.bitstreams import file as bitstream_file

#: The accepted algorithms, and the hex digits of each. Glance's default for
#: os_hash_algo is sha512.
ALGORITHMS = {'sha256': 64, 'sha384': 96, 'sha512': 128}


class Checksum(NamedTuple):
    algorithm: str
    value: str

    @classmethod
    def parse(cls, algorithm: str, value: str, bitstream: str) -> Checksum:
        """Check a checksum that is given as a text."""
        digits = ALGORITHMS.get(algorithm)
        if digits is None:
            raise exception.BitstreamError(
                bitstream=bitstream,
                reason=f'its checksum algorithm is {algorithm!r}, expected '
                'one of ' + ', '.join(ALGORITHMS),
            )
        if not re.fullmatch(f'[0-9a-fA-F]{{{digits}}}', value):
            raise exception.BitstreamError(
                bitstream=bitstream,
                reason=f'its checksum is {value[:150]!r}, expected {digits} '
                f'hex digits of {algorithm}',
            )
        return cls(algorithm, value.lower())


def verify(file: BinaryIO, wanted: Checksum, bitstream: str, most: int) -> str:
    """Check that a file has the wanted checksum.

    :returns: the file's SHA-256
    """
    found = bitstream_file.of_file(file, bitstream, most, wanted.algorithm)
    if found[wanted.algorithm] != wanted.value:
        raise exception.BitstreamError(
            bitstream=bitstream,
            reason=f'its {wanted.algorithm} is {found[wanted.algorithm]}, '
            f'expected {wanted.value}',
        )
    return found['sha256']

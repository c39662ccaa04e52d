# SPDX-License-Identifier: Apache-2.0

"""Images for Intel's and other DFL cards, in OPAE's format GBS.

Such a file begins with 16 fixed bytes and the length of its metadata, 4 bytes,
the least significant first. The metadata follow, in JSON, and then the data
that the card is programmed with (opae_resolve_bitstream() in
libraries/libbitstream/bitstream.c of OPAE's SDK; for the metadata,
metadatav1.c beside it).
"""

from __future__ import annotations

import dataclasses
import os
import struct
from typing import Any
from typing import BinaryIO
from typing import NoReturn

from os_acc import exception
from os_acc.texts import documents
from os_acc.texts import forms

MAGIC = b'XeonFPGA\xb7GBSv001'
#: The key magic-no of the metadata. Files in the older format GBS, which is
#: not supported, begin with it.
MAGIC_NUMBER = 0x1D1F8680
# Released versions of the tools wrote 640 and 650 for version 1.
VERSIONS = (1, 640, 650)
#: The metadata of real images have less than 1 KiB.
MOST_METADATA = 65536

_LENGTH = struct.Struct('<I')
#: How many bytes parse() needs at most.
HEAD = len(MAGIC) + _LENGTH.size + MOST_METADATA


@dataclasses.dataclass(frozen=True)
class Image:
    """What an image says about itself. All ids have 32 hex digits.

    :ivar interface_id: the interface that it was built for
    :ivar functions: the accelerator functions that it has
    :ivar offset: where the data begin that the card is programmed with
    """

    interface_id: str
    functions: tuple[str, ...]
    offset: int

    def check_fits(self, interface_id: str | None, bitstream: str) -> None:
        """Check that it was built for the interface of a card."""
        if interface_id is None:
            _refuse(bitstream, 'the card does not show its interface id')
        if self.interface_id != interface_id:
            _refuse(
                bitstream,
                f'it was built for the interface {self.interface_id}, and the '
                f'card has {interface_id}',
            )

    def check_has(self, function_id: str | None, bitstream: str) -> None:
        """Check that it has a function.

        :param function_id: None: any will do
        """
        if function_id is None:
            return
        if _digits(function_id) not in self.functions:
            _refuse(
                bitstream,
                f'it has the function {", ".join(self.functions)}, not '
                f'{function_id}',
            )


def read(file: BinaryIO, bitstream: str) -> Image:
    """Read what an image says about itself.

    :param file: the image; the position in it does not matter
    :param bitstream: the name of the image in errors
    """
    fd = file.fileno()
    return parse(os.pread(fd, HEAD, 0), os.fstat(fd).st_size, bitstream)


def parse(head: bytes, total: int, bitstream: str) -> Image:
    """Do what read() does.

    :param head: the first HEAD bytes of the image, or all of them
    :param total: how many bytes the image has
    """
    if head.startswith(MAGIC_NUMBER.to_bytes(4, 'little')):
        _refuse(
            bitstream,
            'it is in the old format GBS without metadata; convert it with '
            "OPAE's packager",
        )
    start = len(MAGIC) + _LENGTH.size
    if len(head) < start or not head.startswith(MAGIC):
        _refuse(bitstream, "it is not an image in OPAE's format GBS")
    (length,) = _LENGTH.unpack_from(head, len(MAGIC))
    if not 0 < length <= MOST_METADATA:
        _refuse(
            bitstream,
            f'its metadata have {length} bytes, expected 1 to {MOST_METADATA}',
        )
    offset = start + length
    if total <= offset:
        _refuse(
            bitstream,
            f'it has {total} bytes and ends before the data, which begin at '
            f'{offset}',
        )
    interface_id, functions = _parse(head[start:offset], bitstream)
    return Image(interface_id, functions, offset)


def _parse(text: bytes, bitstream: str) -> tuple[str, tuple[str, ...]]:
    """Read the metadata.

    :returns: the id of the interface, and those of the functions
    """
    try:
        found = documents.json_of(text.rstrip(b'\0'))
    except ValueError as err:
        _refuse(bitstream, f'its metadata are not valid JSON: {err}')
    image = _member(found, 'afu-image', dict, 'metadata', bitstream)
    for holder, key, expected in (
        (found, 'version', VERSIONS),
        (image, 'magic-no', (MAGIC_NUMBER,)),
    ):
        value = _member(holder, key, int, 'metadata', bitstream)
        if value not in expected:
            _refuse(
                bitstream,
                f'its metadata have {key} {value}, expected '
                f'{" or ".join(map(str, expected))}',
            )
    clusters = _member(
        image, 'accelerator-clusters', list, 'afu-image', bitstream
    )
    functions = [
        _uuid(each, 'accelerator-type-uuid', 'accelerator-clusters', bitstream)
        for each in clusters
    ]
    if not functions:
        _refuse(bitstream, 'its metadata name no accelerator function')
    interface_id = _uuid(image, 'interface-uuid', 'afu-image', bitstream)
    return interface_id, tuple(functions)


def _member(
    holder: Any, key: str, kind: type, place: str, bitstream: str
) -> Any:
    value = holder.get(key) if isinstance(holder, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        names = {dict: 'an object', list: 'a list', int: 'a whole number'}
        _refuse(
            bitstream,
            f'its {place} have no {key} that is {names.get(kind, "a string")}',
        )
    return value


def _uuid(holder: Any, key: str, place: str, bitstream: str) -> str:
    value = _member(holder, key, str, place, bitstream)
    digits = _digits(value)
    if digits is None:
        _refuse(bitstream, f'its {key} is {value[:60]!r}, expected a UUID')
    return digits


def _digits(text: str) -> str | None:
    """The 32 digits of a UUID; None if the text is not a UUID."""
    found = forms.uuid(text)
    return None if found is None else found.replace('-', '')


def _refuse(bitstream: str, reason: str) -> NoReturn:
    raise exception.BitstreamError(bitstream=bitstream, reason=reason)

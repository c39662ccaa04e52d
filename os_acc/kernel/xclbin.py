# SPDX-License-Identifier: Apache-2.0

"""The header of an AMD user image, a file with the extension .xclbin.

Offsets and values are those of struct axlf in XRT, src/runtime_src/core/
include/xrt/detail/xclbin.h. All numbers are little-endian.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import os
import struct
from typing import BinaryIO
from typing import NoReturn
import uuid

from os_acc import exception

# m_magic; at 304 m_length, at 320 m_featureRomTimeStamp, at 332 m_mode, at 336
# m_interface_uuid, m_platformVBNV and uuid, at 448 m_numSections.
_HEADER = struct.Struct('<8s 296x Q 8x Q 4x H 2x 16s 64s 16s 16x I 4x')
_MAGIC = b'xclbin2\0'

# struct axlf_section_header: m_sectionKind, m_sectionName, m_sectionOffset,
# m_sectionSize.
_SECTION = struct.Struct('<I 16x 4x Q Q')
# xclbin.h allows 65,536. An image has about 20.
_MOST_SECTIONS = 1000
# enum axlf_section_kind: BITSTREAM, PDI and BITSTREAM_PARTIAL_PDI. An image
# without one of these, such as a shell's .xsabin, contains no user logic.
_LOGIC = frozenset({0, 18, 19})

# enum XCLBIN_MODE: XCLBIN_HW_EMU, XCLBIN_SW_EMU and XCLBIN_HW_EMU_PR.
_EMULATION = frozenset({4, 5, 6})


@dataclasses.dataclass(frozen=True)
class UserImage:
    """What the header of an image says.

    :ivar uuid: the image's own UUID
    :ivar interface: the UUID of the shell's interface that it was linked for;
        for an older shell that of its feature ROM; None: the header has none
    :ivar platform: the name of the platform, such as xilinx_u200_xdma_201830_2
    :ivar rom_timestamp: that of the older shell's feature ROM, in seconds
        since 1970; 0: none
    """

    uuid: str
    interface: str | None
    platform: str
    rom_timestamp: int


def read(file: BinaryIO, name: str) -> UserImage:
    """Read the header of an image.

    :param file: at any position
    :param name: the image's name in errors
    :raises BitstreamError: if it is no user image for a card
    """

    def refuse(reason: str) -> NoReturn:
        raise exception.BitstreamError(bitstream=name, reason=reason)

    size = os.fstat(file.fileno()).st_size
    head = os.pread(file.fileno(), _HEADER.size, 0)
    if len(head) < _HEADER.size or not head.startswith(_MAGIC):
        refuse("it is not an xclbin: it does not begin with 'xclbin2'")
    _, length, rom, mode, interface, platform, own, count = _HEADER.unpack(
        head
    )
    if length != size:
        refuse(f'it has {size} bytes, its header says {length}')
    if mode in _EMULATION:
        refuse(f'it is for an emulation, not for a card: its mode is {mode}')
    if not _sections(file, count, size, refuse) & _LOGIC:
        refuse('it has no user logic: it has no BITSTREAM or PDI section')
    if not any(own):
        refuse('it has no UUID')
    return UserImage(
        uuid=str(uuid.UUID(bytes=own)),
        interface=str(uuid.UUID(bytes=interface)) if any(interface) else None,
        platform=platform.partition(b'\0')[0].decode('ascii', 'replace'),
        rom_timestamp=rom,
    )


def _sections(
    file: BinaryIO, count: int, size: int, refuse: Callable[[str], NoReturn]
) -> set[int]:
    """The kinds of the sections that are not empty."""
    if not 0 < count <= _MOST_SECTIONS:
        refuse(f'its header says that it has {count} sections')
    table = os.pread(file.fileno(), count * _SECTION.size, _HEADER.size)
    if len(table) < count * _SECTION.size:
        refuse('it ends before its last section header')
    kinds = set()
    for kind, offset, length in _SECTION.iter_unpack(table):
        if offset + length > size:
            refuse(f'its section of kind {kind} goes beyond its end')
        if length:
            kinds.add(kind)
    return kinds

# SPDX-License-Identifier: Apache-2.0

"""AMD's cards as XRT's kernel drivers show them.

A card has a management function with the driver xclmgmt, usually .0, and a
user function with the driver xocl, usually .1. The host keeps the first; a
guest can have the second. The attributes are those of XRT's
src/runtime_src/core/pcie/driver/linux/xocl: mgmtpf/mgmt-sysfs.c,
userpf/xocl_sysfs.c and subdev/feature_rom.c.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import glob
import itertools
import os
import re
import struct
from typing import BinaryIO
from typing import NoReturn
import uuid

from os_acc import exception
from os_acc.kernel import chip as chips
from os_acc.kernel import pci
from os_acc.kernel import sysfs
from os_acc.texts import forms

MANAGEMENT, USER = 'xclmgmt', 'xocl'

# The name of xbutil in newer releases of XRT, then the older one.
_USER_TOOLS = ('xrt-smi', 'xbutil')

_ZERO = str(uuid.UUID(int=0))


@dataclasses.dataclass(frozen=True)
class Card:
    """The functions of a card through which its user image can be loaded."""

    address: str  # of the function that device_spec names, for errors
    management: str | None  # the address of the function that has xclmgmt
    # the address of the function that has xocl; None while a guest has it
    user: str | None

    @property
    def through(self) -> str:
        """The function through which the image is loaded."""
        found = self.management or self.user
        if found is None:
            raise exception.DeviceError(
                device=f'PCI function {self.address}',
                reason='no function of its card has one of the drivers '
                f"{MANAGEMENT} and {USER}: install XRT's drivers",
            )
        return found

    def check_fits(self, image: UserImage, name: str) -> None:
        """Check that an image was linked for the shell in the card.

        XRT's driver makes the same checks, but only once it has begun: icap.c
        and xocl_fdt_check_uuids() in xocl_fdt.c.

        :param name: the image's name in errors
        """
        found = self.interfaces()
        # In an image for an older shell, the field is the UUID of the shell's
        # feature ROM. Such a shell has no interfaces.
        if image.interface is None or not found:
            self._check_platform(image, name)
        elif image.interface not in found:
            raise exception.BitstreamError(
                bitstream=name,
                reason='it was linked for a shell with interface '
                f'{image.interface}, the card at {self.address} has '
                f'{", ".join(found)}',
            )

    def _check_platform(self, image: UserImage, name: str) -> None:
        platform = self._rom('VBNV')
        timestamp = self._rom('timestamp')
        if not platform:
            raise exception.DeviceError(
                device=f'PCI function {self.address}',
                reason="XRT's drivers do not show its shell: neither "
                'interface_uuids nor rom.*/VBNV has a value. The card is not '
                'ready, or its shell is damaged',
            )
        if _plain(image.platform) != _plain(platform) or (
            timestamp and timestamp != str(image.rom_timestamp)
        ):
            raise exception.BitstreamError(
                bitstream=name,
                reason=f'it was linked for platform {image.platform!r} of '
                f'{image.rom_timestamp}, the card at {self.address} has '
                f'{platform!r} of {timestamp or "unknown time"}',
            )

    def interfaces(self) -> tuple[str, ...]:
        """The UUIDs of the interfaces of the card's shell, in lower case."""
        lists = (self._uuids(each, 'interface_uuids') for each in self._both)
        return tuple(dict.fromkeys(itertools.chain(*lists)))

    @property
    def _both(self) -> list[str]:
        return [each for each in (self.management, self.user) if each]

    @staticmethod
    def _uuids(address: str, name: str) -> list[str]:
        """The UUIDs in a file, which is EINVAL until the card is ready."""
        text = sysfs.read_if_possible(f'{pci.directory(address)}/{name}')
        return list(filter(None, map(forms.uuid, text.split())))

    def _rom(self, name: str) -> str:
        for address in self._both:
            for path in glob.glob(f'{pci.directory(address)}/rom.*/{name}'):
                if text := sysfs.read_if_possible(path):
                    return text
        return ''

    def loaded(self) -> str | None:
        """The UUID of the user image; None if the driver cannot tell.

        The user function's driver does not know an image that was loaded
        through the management function.
        """
        if self.user is None or self.management is not None:
            return None
        found = self._uuids(self.user, 'xclbinuuid')[:1]
        return found[0] if found and found[0] != _ZERO else None


def card(function: pci.Function) -> Card:
    """Find the functions of a card, by any one of them."""
    management = user = None
    for address in chips.of(function).parents:
        found = pci.find(address)
        if found is not None and found.driver == MANAGEMENT:
            management = address
        elif found is not None and found.driver == USER:
            user = address
    return Card(function.address, management, user)


def tool(card: Card, xrt_path: str) -> str:
    """The path of XRT's tool that loads a user image into a card."""
    names = ('xbmgmt',) if card.through == card.management else _USER_TOOLS
    paths = [os.path.join(xrt_path, 'bin', name) for name in names]
    for path in paths:
        if os.access(path, os.X_OK):
            return path
    raise exception.DeviceError(
        device=f'PCI function {card.address}',
        reason=f'{" or ".join(paths)}: there is no such command. See [os_acc] '
        'xrt_path',
    )


def _plain(platform: str) -> str:
    """One spelling of xilinx:u200:xdma:201830.2 and xilinx_u200_xdma_..."""
    return re.sub(r'[^a-z0-9]+', '_', platform.lower())


# The header of an AMD user image, a file with the extension .xclbin.
#
# Offsets and values are those of struct axlf in XRT, src/runtime_src/core/
# include/xrt/detail/xclbin.h. All numbers are little-endian.


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
    """What the header of an image says."""

    uuid: str
    # the UUID of the shell's interface that it was linked for; for an older
    # shell that of its feature ROM; None: the header has none
    interface: str | None
    # the name of the platform, such as xilinx_u200_xdma_201830_2
    platform: str
    # that of the older shell's feature ROM, in seconds since 1970; 0: none
    rom_timestamp: int


def read(file: BinaryIO, name: str) -> UserImage:
    """Read the header of an image, which must be a user image for a card.

    :param name: the image's name in errors
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

# SPDX-License-Identifier: Apache-2.0

"""NVMe commands, and what the controller answers.

All structures are little-endian. Base 3.3.3.1 has the layout of a command.
"""

from __future__ import annotations

import dataclasses
import struct

from os_acc.kernel import nvme

# Admin commands: Base 5, figure 138.
_CREATE_SQ, _CREATE_CQ = 0x01, 0x05
_GET_LOG_PAGE, _IDENTIFY, _SET_FEATURES = 0x02, 0x06, 0x09
_NS_ATTACHMENT = 0x15
FORMAT_NVM, SANITIZE = 0x80, 0x84
# I/O commands: NVM 3
WRITE, READ = 0x01, 0x02

# Identify, CNS: Base 5.17.1
_NAMESPACE, _CONTROLLER, _ACTIVE_NAMESPACES = 0x00, 0x01, 0x02
_ALLOCATED_NAMESPACES, _ALLOCATED_NAMESPACE = 0x10, 0x11
_ATTACHED_CONTROLLERS, _CONTROLLERS = 0x12, 0x13
_SECONDARY_CONTROLLERS = 0x15

_SANITIZE_STATUS = 0x81
_NUMBER_OF_QUEUES = 0x07

# Secure Erase Settings of Format NVM: Base 5.14
ERASE_USER_DATA, ERASE_CRYPTOGRAPHIC = 1, 2
# Sanitize Action: Base 5.24
SANITIZE_BLOCK, SANITIZE_CRYPTO = 2, 4

# Sanitize Status, bits 2:0: Base 5.16.1.22
SANITIZING = 2
SANITIZED = (1, 4)  # 4: without deallocating the blocks


@dataclasses.dataclass(frozen=True)
class Command:
    """A command, without its identifier and the addresses of its data.

    :ivar name: what it does, for an error
    """

    name: str
    opcode: int
    nsid: int = 0
    cdw10: int = 0
    cdw11: int = 0
    cdw12: int = 0

    def encode(
        self, cid: int, prp1: int = 0, prp2: int = 0, metadata: int = 0
    ) -> bytes:
        """Make the 64 bytes of a submission queue entry."""
        return struct.pack(
            '<BBHIQQQQIIIIII',
            self.opcode,
            0,
            cid,
            self.nsid,
            0,
            metadata,
            prp1,
            prp2,
            self.cdw10,
            self.cdw11,
            self.cdw12,
            0,
            0,
            0,
        )


def identify_controller() -> Command:
    return Command('Identify Controller', _IDENTIFY, cdw10=_CONTROLLER)


def identify_namespace(nsid: int, active: bool = True) -> Command:
    cns = _NAMESPACE if active else _ALLOCATED_NAMESPACE
    return Command('Identify Namespace', _IDENTIFY, nsid, cns)


def list_namespaces(after: int, active: bool = True) -> Command:
    """List up to 1024 namespaces with an identifier above ``after``."""
    cns = _ACTIVE_NAMESPACES if active else _ALLOCATED_NAMESPACES
    return Command('Identify (list of namespaces)', _IDENTIFY, after, cns)


def list_controllers(nsid: int | None = None) -> Command:
    """List the controllers of the NVM subsystem, or of a namespace."""
    cns = _CONTROLLERS if nsid is None else _ATTACHED_CONTROLLERS
    return Command('Identify (list of controllers)', _IDENTIFY, nsid or 0, cns)


def list_secondary_controllers() -> Command:
    name = 'Identify (list of secondary controllers)'
    return Command(name, _IDENTIFY, cdw10=_SECONDARY_CONTROLLERS)


def attach(nsid: int, detach: bool = False) -> Command:
    """Attach a namespace to the controllers of the list in its data."""
    name = f'{"detach" if detach else "attach"} namespace {nsid}'
    return Command(name, _NS_ATTACHMENT, nsid, int(detach))


def sanitize_status() -> Command:
    """Read the first 512 bytes of the log page Sanitize Status."""
    dwords = 512 // 4 - 1
    return Command(
        'Get Log Page (Sanitize Status)',
        _GET_LOG_PAGE,
        0xFFFFFFFF,
        _SANITIZE_STATUS | dwords << 16,
    )


def sanitize(action: int) -> Command:
    """Erase the whole NVM subsystem. The erase goes on after the command ends.

    After a failed one, the restricted failure mode (AUSE is 0) stays until the
    next one.
    """
    return Command('Sanitize', SANITIZE, cdw10=action)


def format_nvm(nsid: int, namespace: Namespace, erase: int) -> Command:
    """Erase a namespace, and keep its format."""
    index = namespace.format_index
    return Command(
        f'Format NVM of namespace {nsid}',
        FORMAT_NVM,
        nsid,
        (index & 0xF)
        | namespace.extended << 4
        | (namespace.protection & 0x7) << 5
        | (namespace.protection >> 3 & 1) << 8
        | erase << 9
        | (index >> 4) << 12,
    )


def request_queues() -> Command:
    """Ask for one I/O queue pair."""
    return Command(
        'Set Features (Number of Queues)',
        _SET_FEATURES,
        cdw10=_NUMBER_OF_QUEUES,
    )


def create_completion_queue(queue: int, entries: int) -> Command:
    # Physically contiguous, no interrupts.
    size = queue | (entries - 1) << 16
    return Command('Create I/O Completion Queue', _CREATE_CQ, 0, size, 1)


def create_submission_queue(queue: int, entries: int) -> Command:
    size = queue | (entries - 1) << 16
    return Command(
        'Create I/O Submission Queue', _CREATE_SQ, 0, size, queue << 16 | 1
    )


def read(nsid: int, block: int, number: int) -> Command:
    """Read blocks. Protection information is not checked: NVM 3.2.4."""
    return Command(
        f'Read of block {block} of namespace {nsid}',
        READ,
        nsid,
        block & 0xFFFFFFFF,
        block >> 32,
        number - 1,
    )


@dataclasses.dataclass(frozen=True)
class ControllerData:
    """Identify Controller: Base 5.17.2.1.

    :ivar many: the NVM subsystem may have other controllers (CMIC bit 1)
    :ivar id: the controller's identifier
    :ivar formats: Format NVM is supported
    :ivar manages: Namespace Management and Attachment are supported
    :ivar sanitize_actions: the Sanitize Actions that erase, the best first
    :ivar erases_all: a secure erase of one namespace erases all of the NVM
        subsystem (FNA bit 1)
    :ivar erases_cryptographically: FNA bit 2
    :ivar largest: bytes of the largest transfer, in pages of 4 KiB
    """

    model: str
    serial: str
    many: bool
    id: int
    formats: bool
    manages: bool
    sanitize_actions: tuple[int, ...]
    erases_all: bool
    erases_cryptographically: bool
    largest: int

    @property
    def drive(self) -> str | None:
        """Which drive it is, at whatever address."""
        return nvme.drive_id(self.serial, self.id)

    @classmethod
    def decode(cls, data: bytes) -> ControllerData:
        (oacs,) = struct.unpack_from('<H', data, 256)
        (capabilities,) = struct.unpack_from('<I', data, 328)
        # Cryptographic erase is bit 0, block erase is bit 1.
        actions = [SANITIZE_BLOCK] if capabilities & 2 else []
        actions += [SANITIZE_CRYPTO] if capabilities & 1 else []
        fna, mdts = data[524], data[77]
        return cls(
            model=_text(data[24:64]),
            serial=_text(data[4:24]),
            many=bool(data[76] & 2),
            id=struct.unpack_from('<H', data, 78)[0],
            formats=bool(oacs & 2),
            manages=bool(oacs & 8),
            sanitize_actions=tuple(actions),
            erases_all=bool(fna & 2),
            erases_cryptographically=bool(fna & 4),
            largest=4096 << mdts if 0 < mdts < 20 else 1 << 30,
        )


@dataclasses.dataclass(frozen=True)
class Namespace:
    """Identify Namespace: NVM 4.1.5.1.

    :ivar blocks: its size in logical blocks
    :ivar format_index: the LBA format in use
    :ivar extended: metadata is transferred behind each block's data
    :ivar protection: end-to-end protection, as DPS has it
    :ivar data_size: bytes of data of a block
    :ivar metadata_size: bytes of metadata of a block
    """

    blocks: int
    format_index: int
    extended: bool
    protection: int
    data_size: int
    metadata_size: int

    @classmethod
    def decode(cls, data: bytes) -> Namespace:
        flbas = data[26]
        # Bits 6:5 are the upper bits of the index if there are more than 16
        # LBA formats; else a controller may leave anything in them.
        index = flbas & 0xF
        if data[25] >= 16:
            index |= (flbas >> 5 & 3) << 4
        metadata, shift = struct.unpack_from('<HB', data, 128 + 4 * index)
        return cls(
            blocks=struct.unpack_from('<Q', data)[0],
            format_index=index,
            extended=bool(flbas & 0x10),
            protection=data[29] & 0xF,
            data_size=1 << shift,
            metadata_size=metadata,
        )

    @property
    def transfer_size(self) -> int:
        """Bytes that are transferred for a block, without its metadata if
        that has a buffer of its own."""
        return self.data_size + (self.metadata_size if self.extended else 0)


def namespaces(data: bytes) -> list[int]:
    """The identifiers of a list of namespaces: Base 5.17.2.2."""
    found = struct.unpack_from('<1024I', data)
    return [nsid for nsid in found if nsid]


def controllers(data: bytes) -> list[int]:
    """The identifiers of a controller list: Base 4.1.4."""
    (number,) = struct.unpack_from('<H', data)
    return list(struct.unpack_from(f'<{min(number, 2047)}H', data, 2))


def controller_list(*ids: int) -> bytes:
    return struct.pack(f'<{len(ids) + 1}H', len(ids), *ids)


def secondary_controllers(data: bytes) -> list[int]:
    """The identifiers of secondary controllers: Base 5.17.2.16."""
    number = min(data[0], 127)
    return [
        struct.unpack_from('<H', data, 32 + 32 * place)[0]
        for place in range(number)
    ]


def sanitize_state(data: bytes) -> tuple[int, float]:
    """Decode Sanitize Status: the state, and the progress from 0 to 1."""
    progress, status = struct.unpack_from('<HH', data)
    return status & 7, progress / 65536


def _text(data: bytes) -> str:
    return data.decode('ascii', 'replace').strip(' \0')

# SPDX-License-Identifier: Apache-2.0

"""An NVMe controller in memory: registers, queues, Sanitize and Format NVM.

It stands in for the hardware in unit tests. The lab has QEMU's.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import dataclasses
import struct
from typing import Any

from os_acc import exception
from os_acc.privileged.nvme import function

IOVA = 1 << 24


class Failed(Exception):
    """A command ends with a status: type and code."""


def fail(kind: int, code: int) -> None:
    raise Failed(kind << 8 | code)


@dataclasses.dataclass
class Namespace:
    """A namespace and its content.

    :ivar metadata: bytes of metadata of each block
    :ivar controllers: the controllers that it is attached to
    """

    blocks: int = 4096
    size: int = 512
    metadata: int = 0
    extended: bool = False
    controllers: tuple[int, ...] = (1,)
    format_index: int = 0
    data: dict[int, bytes] = dataclasses.field(default_factory=dict)

    def identify(self) -> bytes:
        made = bytearray(4096)
        struct.pack_into('<Q', made, 0, self.blocks)
        made[26] = self.format_index | self.extended << 4
        made[25] = self.format_index
        struct.pack_into(
            '<HB',
            made,
            128 + 4 * self.format_index,
            self.metadata,
            self.size.bit_length() - 1,
        )
        return bytes(made)

    def fill(self, text: bytes = b'tenant') -> None:
        """Write a pattern into all blocks."""
        for block in range(self.blocks):
            own = text + b'%d' % block
            self.data[block] = (own * self.size)[: self.size]

    @property
    def unit(self) -> int:
        return self.size + (self.metadata if self.extended else 0)


@dataclasses.dataclass
class Drive:
    """An Access to a controller, and what the controller is able to do.

    :ivar formatted: (namespace, cdw10) of each Format NVM
    :ivar sanitized: the action of each Sanitize
    :ivar erasing: what is written into erased blocks; None: they are gone
    :ivar hooks: called before a command of an opcode
    """

    namespaces: dict[int, Namespace] = dataclasses.field(
        default_factory=lambda: {1: Namespace()}
    )
    oacs: int = 2
    sanicap: int = 0
    fna: int = 0
    cmic: int = 0
    mdts: int = 0
    id: int = 1
    serial: str = 'serial'
    controllers: tuple[int, ...] = (1,)
    secondary: tuple[int, ...] = ()
    offline: bool = False
    persistent: bool = False
    page_shift: int = 0
    dead: bool = False
    sanitize_polls: int = 2
    sanitize_result: int = 1
    deallocated: bool = False
    erase: Callable[[int, int], bytes] | None = None
    effective: bool = True

    def __post_init__(self) -> None:
        self.memory: Any = bytearray(function.MEMORY)
        self.iova = IOVA
        self.formatted: list[tuple[int, int]] = []
        self.sanitized: list[int] = []
        self.log: list[int] = []
        self.hooks: dict[int, Callable[[], None]] = {}
        self.opened = 0
        self._registers: dict[int, int] = {}
        self._queues: dict[int, dict[str, int]] = {}
        self._new_completion: dict[int, tuple[int, int]] = {}
        self._status = 0
        self._polls = 0

    # Registers.

    def read32(self, offset: int) -> int:
        if self.offline:
            return 2 if offset == 0x1C else 0
        if offset == 0x00:
            return 0x0F0000FF | 0x10000
        if offset == 0x04:
            # The NVM command set; a page shift above 12.
            return 1 << 5 | self.page_shift << 16 | int(self.persistent) << 24
        if offset == 0x1C:
            if self.dead:
                return 2
            return self._registers.get(0x14, 0) & 1
        return self._registers.get(offset, 0)

    def write32(self, offset: int, value: int) -> None:
        if self.offline:
            return
        if offset >= 0x1000:
            self._doorbell((offset - 0x1000) // 4, value)
            return
        self._registers[offset] = value
        if offset == 0x14:
            self._queues.clear()
            if value & 1:
                self._queues[0] = self._queue(
                    self._registers[0x28] | self._registers[0x2C] << 32,
                    self._registers[0x30] | self._registers[0x34] << 32,
                    (self._registers[0x24] & 0xFFF) + 1,
                    (self._registers[0x24] >> 16 & 0xFFF) + 1,
                )

    @staticmethod
    def _queue(
        sq: int, cq: int, entries: int, completions: int
    ) -> dict[str, int]:
        """A pair of queues.

        :param entries: of the submission queue
        :param completions: the entries of the completion queue
        """
        return {
            'sq': sq,
            'cq': cq,
            'entries': entries,
            'completions': completions,
            'head': 0,
            'submitted': 0,
            'tail': 0,
            'phase': 1,
            'taken': 0,
        }

    def _doorbell(self, number: int, value: int) -> None:
        """The tail of a submission queue, or the head of a completion queue.

        The controller stops as long as the completion queue is full: one entry
        less than its size.
        """
        queue = self._queues[number // 2]
        size = queue['completions']
        if number % 2:
            posted = (queue['tail'] - queue['taken']) % size
            assert (value - queue['taken']) % size <= posted
            queue['taken'] = value
        else:
            queue['submitted'] = value
        while queue['head'] != queue['submitted']:
            if (queue['tail'] + 1) % size == queue['taken']:
                return
            place = queue['sq'] - IOVA + queue['head'] * 64
            command = bytes(self.memory[place : place + 64])
            queue['head'] = (queue['head'] + 1) % queue['entries']
            self._complete(number // 2, queue, command)

    def _complete(
        self, number: int, queue: dict[str, int], command: bytes
    ) -> None:
        opcode, _, cid, nsid = struct.unpack_from('<BBHI', command)
        prp1, prp2 = struct.unpack_from('<QQ', command, 24)
        words = struct.unpack_from('<III', command, 40)
        self.log.append(opcode if number == 0 else 0x100 | opcode)
        if opcode in self.hooks:
            self.hooks[opcode]()
        status = 0
        try:
            act = self._io if number else self._admin
            act(opcode, nsid, prp1, prp2, words)
        except Failed as err:
            status = err.args[0]
        place = queue['cq'] - IOVA + queue['tail'] * 16
        self.memory[place : place + 16] = struct.pack(
            '<IIHHHH', 0, 0, 0, number, cid, status << 1 | queue['phase']
        )
        queue['tail'] = (queue['tail'] + 1) % queue['completions']
        queue['phase'] ^= queue['tail'] == 0

    # Commands.

    def _admin(
        self, opcode: int, nsid: int, prp1: int, prp2: int, words: Any
    ) -> None:
        cdw10, cdw11, _ = words
        if opcode == 0x06:
            self._answer(prp1, self._identify(nsid, cdw10 & 0xFF))
        elif opcode == 0x02:
            self._answer(prp1, self._log_page(cdw10 & 0xFF))
        elif opcode == 0x05:
            made = prp1, (cdw10 >> 16) + 1
            self._new_completion[cdw10 & 0xFFFF] = made
        elif opcode == 0x01:
            place, size = self._new_completion[cdw11 >> 16]
            self._queues[cdw10 & 0xFFFF] = self._queue(
                prp1, place, (cdw10 >> 16) + 1, size
            )
        elif opcode == 0x15:
            self._attach(nsid, cdw10 & 0xF, prp1)
        elif opcode == 0x80:
            self._format(nsid, cdw10)
        elif opcode == 0x84:
            self._sanitize(cdw10 & 7)
        elif opcode != 0x09:
            fail(0, 1)

    def _answer(self, prp1: int, data: bytes) -> None:
        place = prp1 - IOVA
        self.memory[place : place + len(data)] = data

    def _identify(self, nsid: int, cns: int) -> bytes:
        if cns == 0x01:
            return self._identify_controller()
        if cns in (0x00, 0x11):
            there = self.namespaces.get(nsid)
            if there is None:
                fail(0, 0x0B)
            assert there is not None
            active = self.id in there.controllers
            return there.identify() if active or cns else bytes(4096)
        if cns in (0x02, 0x10):
            listed = [
                n
                for n, each in sorted(self.namespaces.items())
                if n > nsid and (cns == 0x10 or self.id in each.controllers)
            ]
            return struct.pack(f'<{len(listed)}I', *listed).ljust(4096, b'\0')
        if cns in (0x12, 0x13):
            ids = self.controllers
            if cns == 0x12:
                ids = self.namespaces[nsid].controllers
            return struct.pack(f'<{len(ids) + 1}H', len(ids), *ids).ljust(
                4096, b'\0'
            )
        if cns == 0x15:
            made = bytearray(4096)
            made[0] = len(self.secondary)
            for place, number in enumerate(self.secondary):
                struct.pack_into('<H', made, 32 + 32 * place, number)
            return bytes(made)
        fail(0, 2)
        raise AssertionError

    def _identify_controller(self) -> bytes:
        made = bytearray(4096)
        made[4:24] = self.serial.encode().ljust(20)
        made[24:64] = b'Model'.ljust(40)
        made[76], made[77] = self.cmic, self.mdts
        struct.pack_into('<H', made, 78, self.id)
        struct.pack_into('<H', made, 256, self.oacs)
        struct.pack_into('<I', made, 328, self.sanicap)
        made[524] = self.fna
        return bytes(made)

    def _log_page(self, page: int) -> bytes:
        if page != 0x81 or not self.sanicap:
            fail(1, 9)
        if self._status == 2:
            self._polls -= 1
            if self._polls <= 0:
                self._status = self.sanitize_result
        done = 0 if self._status != 2 else 65536 // (self._polls + 1)
        return struct.pack('<HH', done, self._status).ljust(512, b'\0')

    def sanitize_runs(self) -> None:
        """A Sanitize has been begun by somebody else."""
        self._status, self._polls = 2, self.sanitize_polls

    def _sanitize(self, action: int) -> None:
        if self._status == 2:
            fail(0, 0x1D)
        if not self.sanicap & {2: 2, 4: 1}.get(action, 0):
            fail(0, 2)
        self.sanitized.append(action)
        self.sanitize_runs()
        for there in self.namespaces.values():
            self._erase(there)

    def _format(self, nsid: int, cdw10: int) -> None:
        if not self.oacs & 2:
            fail(0, 1)
        there = self.namespaces.get(nsid)
        if there is None or self.id not in there.controllers:
            fail(0, 0x0B)
        assert there is not None
        if cdw10 >> 9 & 7 == 2 and not self.fna & 4:
            fail(0, 2)
        self.formatted.append((nsid, cdw10))
        there.format_index = cdw10 & 0xF
        for each in self.namespaces.values() if self.fna & 2 else [there]:
            self._erase(each)

    def _erase(self, there: Namespace) -> None:
        if not self.effective:
            return
        for block in list(there.data):
            if self.erase is None:
                del there.data[block]
            else:
                there.data[block] = self.erase(block, there.size)

    def _attach(self, nsid: int, detach: int, prp1: int) -> None:
        there = self.namespaces[nsid]
        place = prp1 - IOVA
        number, own = struct.unpack_from('<HH', self.memory, place)
        assert number == 1
        others = tuple(n for n in there.controllers if n != own)
        there.controllers = others if detach else (*others, own)

    def _io(
        self, opcode: int, nsid: int, prp1: int, prp2: int, words: Any
    ) -> None:
        there = self.namespaces.get(nsid)
        if there is None or self.id not in there.controllers:
            fail(0, 0x0B)
        assert there is not None
        first, number = words[0] | words[1] << 32, (words[2] & 0xFFFF) + 1
        if first + number > there.blocks:
            fail(0, 0x80)
        if self._status in (2, 3):
            fail(0, 0x1C)
        size = number * there.unit
        if self.mdts and size > 4096 << self.mdts:
            fail(0, 2)
        places = self._places(prp1, prp2, size)
        if opcode == 1:
            data = b''.join(bytes(self.memory[a:b]) for a, b in places)
            for each in range(number):
                start = each * there.unit
                there.data[first + each] = data[start : start + there.size]
            return
        data = b''
        for block in range(first, first + number):
            if self.deallocated and block not in there.data:
                fail(2, 0x87)
            data += there.data.get(block, b'').ljust(there.unit, b'\0')
        for start, end in places:
            self.memory[start:end] = data[: end - start]
            data = data[end - start :]

    def _places(
        self, prp1: int, prp2: int, size: int
    ) -> list[tuple[int, int]]:
        """Where the data lie: (start, end) in the memory."""
        pages = -(-size // 4096)
        starts = [prp1]
        if pages == 2:
            starts.append(prp2)
        elif pages > 2:
            starts += struct.unpack_from(
                f'<{pages - 1}Q', self.memory, prp2 - IOVA
            )
        made = []
        for place, start in enumerate(starts):
            assert start % 4096 == 0
            length = min(4096, size - place * 4096)
            made.append((start - IOVA, start - IOVA + length))
        return made


class Drives:
    """Replaces function.opened(): drives by PCI address.

    A function without a drive of its own gets a new one.
    """

    def __init__(self) -> None:
        self.there: dict[str, Drive] = {}
        self.refusals: dict[str, exception.ExceptionBase] = {}

    def at(self, address: str) -> Drive:
        if address not in self.there:
            self.there[address] = Drive(
                {1: Namespace(blocks=64)}, serial=f'at {address}'
            )
        return self.there[address]

    @contextlib.contextmanager
    def opened(self, address: str) -> Iterator[Drive]:
        if address in self.refusals:
            raise self.refusals[address]
        drive = self.at(address)
        drive.opened += 1
        yield drive

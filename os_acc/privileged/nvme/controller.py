# SPDX-License-Identifier: Apache-2.0

"""An NVMe controller: enabling it, its queues, and one command at a time."""

from __future__ import annotations

from collections.abc import Callable
import struct
import time

from os_acc import exception
from os_acc.privileged.nvme import commands
from os_acc.privileged.nvme import function
from os_acc.refusals import nvme_refusals
from os_acc.refusals import reasons

# Registers: Base 3.1.3
_CAP, _CC, _CSTS = 0x00, 0x14, 0x1C
_AQA, _ASQ, _ACQ = 0x24, 0x28, 0x30
_DOORBELLS = 0x1000
_ENABLE, _READY, _FATAL = 1, 1, 2
_GONE = 0xFFFFFFFF

_PAGE = 4096
_ENTRIES = 8
_SQE, _CQE = 64, 16

# Pages of the memory.
_QUEUES = ((0, 1), (2, 3))  # submission and completion queue: admin, I/O
_LISTS = 4  # a list of the pages of the data; its second half: metadata
_DATA = 5
_METADATA = _LISTS * _PAGE + _PAGE // 2
_METADATA_SIZE = _PAGE // 2

#: The most bytes that one command transfers.
TRANSFER = function.MEMORY - _DATA * _PAGE

#: Seconds that a command that erases nothing may take.
COMMAND_SECONDS = 30.0

_SPIN = 0.002  # seconds of polling without a pause
_LONGEST_PAUSE = 0.25


class CommandFailed(exception.DeviceError):
    """The controller has refused a command, or failed at it.

    :ivar status: status code type and status code: Base 3.3.3.2.1
    """

    status: tuple[int, int] = (0, 0)


class _Queue:
    """A pair of queues, used for one command at a time."""

    def __init__(self, number: int) -> None:
        self.number = number
        submission, completion = _QUEUES[number]
        self.submission = submission * _PAGE
        self.completion = completion * _PAGE
        self.tail = self.head = 0
        self.phase = 1


class Controller:
    """The controller behind a function.

    :raises Unsupported: if it is offline, or has no pages of 4 KiB
    """

    def __init__(self, access: function.Access, device: str) -> None:
        self._access = access
        self._device = device
        self._queues: list[_Queue] = []
        self._cid = 0
        low = access.read32(_CAP)
        self._capabilities = access.read32(_CAP + 4) << 32 | low
        if self._capabilities == 0:
            # A secondary controller is offline until the primary one brings
            # it online: Base 8.26.
            raise self._unsupported(nvme_refusals.OFFLINE)
        if self._capabilities >> 48 & 0xF:
            raise self._unsupported(nvme_refusals.PAGE_SIZE)

    @property
    def has_persistent_memory(self) -> bool:
        """Whether it has a Persistent Memory Region (CAP.PMRS)."""
        return bool(self._capabilities >> 56 & 1)

    def start(self) -> None:
        """Reset the controller, and enable it with an admin queue.

        Base 3.5.1 has the sequence.
        """
        access = self._access
        self._reset()
        queue = _Queue(0)
        self._clear(queue)
        access.write32(_AQA, (_ENTRIES - 1) << 16 | (_ENTRIES - 1))
        for register, place in (
            (_ASQ, queue.submission),
            (_ACQ, queue.completion),
        ):
            address = access.iova + place
            access.write32(register, address & 0xFFFFFFFF)
            access.write32(register + 4, address >> 32)
        # Bit 6 of CAP.CSS: all I/O command sets can be enabled, else only NVM.
        sets = 6 if self._capabilities >> 43 & 1 else 0
        sizes = 6 << 16 | 4 << 20  # entries of 64 and 16 bytes
        access.write32(_CC, sizes | sets << 4)
        access.write32(_CC, sizes | sets << 4 | _ENABLE)
        self._wait_ready(_READY)
        self._queues = [queue]

    def stop(self) -> None:
        """Disable the controller, so that it no longer uses the memory."""
        self._queues = []
        self._reset()

    def admin(
        self,
        command: commands.Command,
        data: bytes = b'',
        seconds: float = COMMAND_SECONDS,
    ) -> bytes:
        """Run an admin command.

        :param data: up to 4 KiB to send
        :returns: the 4 KiB that the controller may have answered
        :raises Timeout: if it does not end. The controller must be reset then
        """
        start = _DATA * _PAGE
        self._access.memory[start : start + _PAGE] = data.ljust(_PAGE, b'\0')
        self._run(0, command, self._access.iova + start, 0, seconds)
        return bytes(self._access.memory[start : start + _PAGE])

    def start_io(self) -> None:
        """Make a queue pair for reading."""
        queue = _Queue(1)
        self._clear(queue)
        iova = self._access.iova
        self.admin(commands.request_queues())
        self._run(
            0,
            commands.create_completion_queue(1, _ENTRIES),
            iova + queue.completion,
        )
        self._run(
            0,
            commands.create_submission_queue(1, _ENTRIES),
            iova + queue.submission,
        )
        self._queues.append(queue)

    def blocks_at_once(
        self, namespace: commands.Namespace, largest: int
    ) -> int:
        """How many blocks one command can transfer; 0: none."""
        number = min(TRANSFER, largest) // namespace.transfer_size
        if namespace.metadata_size and not namespace.extended:
            number = min(number, _METADATA_SIZE // namespace.metadata_size)
        return min(number, 1 << 16)

    def transfer(
        self,
        command: commands.Command,
        namespace: commands.Namespace,
        number: int,
        data: bytes = b'',
    ) -> bytes:
        """Run a command that reads or writes blocks.

        :param number: of blocks, at most blocks_at_once()
        :returns: what the command has read, with metadata that is transferred
            behind the data of each block
        """
        access = self._access
        size = number * namespace.transfer_size
        start = _DATA * _PAGE
        access.memory[start : start + size] = data.ljust(size, b'\0')
        pages = range(start, start + size, _PAGE)
        second = 0
        if len(pages) == 2:
            second = access.iova + pages[1]
        elif len(pages) > 2:
            second = access.iova + _LISTS * _PAGE
            rest = [access.iova + place for place in pages[1:]]
            packed = struct.pack(f'<{len(rest)}Q', *rest)
            where = _LISTS * _PAGE
            access.memory[where : where + len(packed)] = packed
        self._run(1, command, access.iova + start, second)
        return bytes(access.memory[start : start + size])

    def _run(
        self,
        which: int,
        command: commands.Command,
        prp1: int,
        prp2: int = 0,
        seconds: float = COMMAND_SECONDS,
    ) -> None:
        access, queue = self._access, self._queues[which]
        self._cid = self._cid % 0xFFFE + 1
        place = queue.submission + queue.tail * _SQE
        access.memory[place : place + _SQE] = command.encode(
            self._cid, prp1, prp2, access.iova + _METADATA
        )
        queue.tail = (queue.tail + 1) % _ENTRIES
        self._ring(2 * queue.number, queue.tail)
        cid, status = self._completion(queue, command, seconds)
        if cid != self._cid:
            raise self._error(f'{command.name}: it answers another command')
        if status:
            kind, code = status >> 8 & 7, status & 0xFF
            failed = CommandFailed(
                device=self._device,
                reason=f'{command.name}: status code {code:02x}h of type '
                f'{kind:x}h',
            )
            failed.status = kind, code
            raise failed

    def _completion(
        self,
        queue: _Queue,
        command: commands.Command,
        seconds: float,
    ) -> tuple[int, int]:
        """Wait for the next completion."""
        place = queue.completion + queue.head * _CQE

        def entry() -> tuple[int, int] | None:
            data = bytes(self._access.memory[place + 12 : place + 16])
            cid, status = struct.unpack('<HH', data)
            return (cid, status >> 1) if status & 1 == queue.phase else None

        found = self._poll(entry, seconds, command.name)
        queue.head = (queue.head + 1) % _ENTRIES
        queue.phase ^= queue.head == 0
        self._ring(2 * queue.number + 1, queue.head)
        return found

    def _poll(
        self,
        check: Callable[[], tuple[int, int] | None],
        seconds: float,
        what: str,
    ) -> tuple[int, int]:
        """Wait until a check returns something, and watch the controller."""
        started = time.monotonic()
        pause = 0.0005
        while (found := check()) is None:
            passed = time.monotonic() - started
            if passed < _SPIN:
                continue
            status = self._access.read32(_CSTS)
            if status == _GONE:
                raise self._error(f'{what}: the function is gone')
            if status & _FATAL:
                raise self._error(f'{what}: fatal error (CSTS.CFS)')
            if passed >= seconds:
                raise exception.Timeout(
                    what=f'{self._device}: {what}', seconds=seconds
                )
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
        return found

    def _reset(self) -> None:
        access = self._access
        configuration = access.read32(_CC)
        if configuration & _ENABLE:
            access.write32(_CC, configuration & ~_ENABLE)
        deadline = time.monotonic() + self._ready_seconds()
        # CSTS.CFS may be set until the reset has ended.
        while access.read32(_CSTS) & _READY:
            if time.monotonic() >= deadline:
                raise exception.Timeout(
                    what=f'{self._device}: the controller to be disabled',
                    seconds=self._ready_seconds(),
                )
            time.sleep(0.01)

    def _wait_ready(self, wanted: int) -> None:
        def check() -> tuple[int, int] | None:
            status = self._access.read32(_CSTS)
            ready = status != _GONE and status & _READY == wanted
            return (0, 0) if ready else None

        self._poll(
            check, self._ready_seconds(), 'the controller to become ready'
        )

    def _ready_seconds(self) -> float:
        # CAP.TO in units of 500 ms; some controllers need longer.
        return max((self._capabilities >> 24 & 0xFF) * 0.5, 10.0)

    def _ring(self, number: int, value: int) -> None:
        stride = 4 << (self._capabilities >> 32 & 0xF)
        self._access.write32(_DOORBELLS + number * stride, value)

    def _clear(self, queue: _Queue) -> None:
        for place in (queue.submission, queue.completion):
            self._access.memory[place : place + _PAGE] = bytes(_PAGE)

    def _unsupported(self, refusal: reasons.Refusal) -> function.Unsupported:
        return function.Unsupported(
            device=self._device, reason=refusal.reason().text
        )

    def _error(self, reason: str) -> exception.DeviceError:
        return exception.DeviceError(device=self._device, reason=reason)

# SPDX-License-Identifier: Apache-2.0

"""Verifying that an NVMe drive was emptied, by reading it."""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
import hashlib

from os_acc import exception
from os_acc.privileged.nvme import commands
from os_acc.privileged.nvme import controller as controllers

# Bytes at the start and at the end of a namespace that are read whole. All of
# these lie there: MBR, GPT and its copy, the labels of LVM, the superblocks of
# md (all versions), of DDF and IMSM, of LUKS, and of file systems.
_ENDS = 1 << 20
# Places in between, evenly spread.
_SPREAD = 256

# Media and Data Integrity Errors, Deallocated or Unwritten Logical Block:
# Base 3.3.3.2.1
_DEALLOCATED = (2, 0x87)

# What an empty block is filled with: NVM 3.2.3.2.1 (DLFEAT)
_EMPTY = (b'\0', b'\xff')

#: Namespaces by identifier.
Namespaces = dict[int, commands.Namespace]


@dataclasses.dataclass(frozen=True)
class Emptied:
    """What was done, and what was verified.

    :ivar how: the command that erased
    :ivar empty: blocks that are filled with 00h or FFh, or deallocated
    :ivar changed: blocks that hold something else than before
    :ivar unknown: blocks that hold something, and could not be read before
    :ivar unread: namespaces whose blocks are too large to be read here
    """

    how: str
    empty: int
    changed: int
    unknown: int
    unread: tuple[int, ...] = ()

    def __str__(self) -> str:
        text = f'{self.how}; of the blocks that were read back, {self.empty} '
        text += 'are empty'
        if self.changed:
            text += f', {self.changed} hold other content than before'
        if self.unknown:
            text += (
                f', {self.unknown} hold content that could not be compared '
                'with what was there before'
            )
        if self.unread:
            text += '; not verified, because a block is too large: namespaces '
            text += ', '.join(map(str, self.unread))
        return text


class Verification:
    """Blocks of all namespaces, as they were before the erase.

    After the erase a block passes if it is filled with 00h or FFh, if the
    controller says that it is deallocated, or if it holds something else than
    before: after a cryptographic erase the content is undefined. If a block
    could not be read before, the last of these is unknown.
    """

    def __init__(
        self,
        controller: controllers.Controller,
        device: str,
        there: Namespaces,
        largest: int,
    ) -> None:
        self._controller = controller
        self._device = device
        self._largest = largest
        self._there = there
        self._before = {
            place: hashlib.sha256(data).digest()
            for place, data in self._blocks(strict=False)
        }

    def verify(self, how: str) -> Emptied:
        """Read the blocks again."""
        empty = changed = unknown = 0
        for place, data in self._blocks(strict=True):
            if any(not data.strip(byte) for byte in _EMPTY):
                empty += 1
            elif place not in self._before:
                unknown += 1
            elif self._before[place] != hashlib.sha256(data).digest():
                changed += 1
            else:
                raise exception.CleaningFailed(
                    device=self._device,
                    reason=f'{how} succeeded, but block {place[1]} of '
                    f'namespace {place[0]} reads as before',
                )
        return Emptied(how, empty, changed, unknown, tuple(self._unread))

    @property
    def _unread(self) -> list[int]:
        return [
            n for n, each in self._there.items() if not self._at_once(each)
        ]

    def _at_once(self, namespace: commands.Namespace) -> int:
        return self._controller.blocks_at_once(namespace, self._largest)

    def _blocks(self, strict: bool) -> Iterator[tuple[tuple[int, int], bytes]]:
        """Read blocks at both ends of each namespace and in between.

        :param strict: raise an error if a block cannot be read; else leave
            the block out
        :returns: (namespace, block) and the data, which is empty for a block
            that is deallocated
        """
        for nsid, namespace in self._there.items():
            at_once = self._at_once(namespace)
            if not at_once:
                continue
            size = namespace.transfer_size
            for start, number in _places(namespace, at_once):
                try:
                    data = self._controller.transfer(
                        commands.read(nsid, start, number), namespace, number
                    )
                except controllers.CommandFailed as err:
                    if err.status == _DEALLOCATED:
                        data = b''
                    elif strict:
                        raise
                    else:
                        continue
                for each in range(number):
                    part = data[each * size : (each + 1) * size]
                    yield (nsid, start + each), part[: namespace.data_size]


def _places(
    namespace: commands.Namespace, at_once: int
) -> Iterator[tuple[int, int]]:
    """Choose the blocks to read: (first block, number)."""
    blocks = namespace.blocks
    ends = -(-_ENDS // namespace.data_size)
    if blocks <= 2 * ends:
        parts = [(0, blocks)]
    else:
        middle = blocks - 2 * ends
        step = max(middle // _SPREAD, 1)
        parts = [
            (0, ends),
            *((start, 1) for start in range(ends, blocks - ends, step)),
            (blocks - ends, ends),
        ]
    for start, number in parts:
        for place in range(start, start + number, at_once):
            yield place, min(at_once, start + number - place)

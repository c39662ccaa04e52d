# SPDX-License-Identifier: Apache-2.0

"""The notes of the privileged half, as os_acc.claims compares them.

Each note is a VAN with an attach handle: see Note.row(). So one rule says, for
every kind, which notes are in the way of a device: see in_the_way().
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import functools
from typing import Any
from typing import NamedTuple

from os_acc import exception
from os_acc.claims import conflict
from os_acc.claims import facts
from os_acc.claims import holder
from os_acc.claims import nodes
from os_acc.claims import of_handle
from os_acc.claims import reader
from os_acc.kernel import file_place
from os_acc.kernel import mdev
from os_acc.kernel import pci
from os_acc.kinds.idxd import names as idxd_names
from os_acc.spec import device_spec

#: Kinds of notes: a whole function, the VFs of a PF, a VF as a vGPU, an mdev,
#: device files, a work queue of Intel DSA or IAA.
PCI, VFS, VGPU, MDEV, FILE = 'pci', 'vfs', 'vgpu', 'mdev', 'file'
IDXD = 'idxd'
#: The kind of the notes of nvme_of.notes, which has its own rules.
NAMESPACE = 'namespace'


class NoteKind(NamedTuple):
    """What errors call a device, and the kind of its attach handle."""

    label: str
    handle: str


#: The kinds of the notes that say who has a device.
KINDS = {
    PCI: NoteKind('PCI function', 'pci'),
    VGPU: NoteKind('VF', 'pci'),
    MDEV: NoteKind('mdev', 'mdev'),
    FILE: NoteKind('device file', 'file'),
    IDXD: NoteKind('work queue', 'file'),
    NAMESPACE: NoteKind('namespace', 'block'),
}

#: The values of a note that cannot be read or trusted.
DAMAGED: Mapping[str, Any] = {'what': ''}

_WANTED = 'wanted'


@dataclasses.dataclass(frozen=True)
class Note:
    """A note: which device, or part of one, a VAN has.

    :ivar kind: one of the kinds that KINDS has
    :ivar name: the address of the function, the UUID of the mdev, ...
    :ivar values: what the note says; 'what' is '' if it cannot be read
    :ivar holder: who has it; None: an earlier version did not note that, or
        the note cannot be read
    """

    kind: str
    name: str
    values: Mapping[str, Any]
    holder: holder.Holder | None

    @property
    def label(self) -> str:
        """The device, for errors."""
        return f'{KINDS[self.kind].label} {self.name}'

    @property
    def what(self) -> Any:
        """Distinguishes devices of the same name."""
        return self.values['what']

    @property
    def is_damaged(self) -> bool:
        """Whether it cannot be read or trusted."""
        return self.values == DAMAGED

    @property
    def is_readable(self) -> bool:
        return bool(self.what != '')

    def may_be(self, what: str) -> bool:
        """Whether it is about this, or no longer says what it is about."""
        return self.what in ('', what)

    @property
    def ids(self) -> str:
        """vendor:product of the function that the VAN has; '': unknown."""
        # Of a work queue, `what` is the VAN.
        if self.kind == IDXD:
            return str(self.values.get('ids', ''))
        of_function = self.kind in (PCI, VGPU)
        return str(self.what) if of_function else ''

    @property
    def function(self) -> str:
        """The address of the function that ids are of."""
        return self.device if self.kind == IDXD else self.name

    @property
    def device(self) -> str:
        """As VAN.device: the PF of a VF, the parent of an mdev, ..."""
        is_file = self.kind == FILE
        found = self.values.get('parent' if is_file else 'device')
        if found is None and self.kind == MDEV:
            found = self._parent_of_mdev()
        return str(found or self.name)

    def _parent_of_mdev(self) -> str | None:
        if self.is_readable:
            return str(self.what).partition(' ')[0]
        if file_place.mdev_in(self.name) != self.name:
            return None
        there = mdev.find(self.name)
        return None if there is None else there.parent

    @property
    def is_of_another(self) -> bool:
        """Whether it is not of the VAN for which this call is made.

        What cannot be read counts as another's.
        """
        if self.holder is None:
            return not self.is_readable
        return holder.is_of_another(self.holder)

    def is_about(self, other: Note) -> bool:
        """Whether two notes may be about one and the same device."""
        return (self.kind, self.name) == (other.kind, other.name)

    def refuse(self) -> None:
        """Refuse the device to all VANs but the one that has it."""
        if self.is_of_another:
            raise self.error()

    def error(
        self, node: conflict.Resource | None = None
    ) -> exception.DeviceBusy:
        """The error if something else cannot be given out because of it."""
        return exception.DeviceBusy(
            device=self.label, reason=self.why_not(node), noted=self.holder
        )

    def why_not(self, node: conflict.Resource | None = None) -> str:
        """Say who has the device, and what to do.

        :param node: what contains both it and what is wanted; None: the label
            says enough
        """
        other, who = self.holder, holder.current()
        shared = f'It shares {node} with what is wanted. ' if node else ''
        if other is None:
            what = 'cannot be read, so nobody knows who has it'
            if self.is_readable:
                what = (
                    'names no VAN, because an earlier version of os-acc wrote '
                    'it. Start each service and program that plugs with '
                    'os-acc: the one that has the VAN in its journal adds it '
                    'to the note'
                )
            return (
                f'the note {self.kind}-{self.name} of the privileged daemon '
                f'{what}. {shared}If no instance or container has it, delete '
                'the note with os-acc device deny --lost-journal, and allow '
                'the device again'
            )
        text = (
            f'instance {other.instance} has it (VAN {other.van} of the '
            f'journal {other.path}), by the note of the privileged daemon. '
        )
        text += f'{shared}Release it with that journal. '
        if who is not None and who.path == other.path:
            text += (
                'It is not the one that is at this path here: another '
                'container has it, or it was replaced. If it was set aside as '
                'damaged, run os-acc recover --rebuild. '
            )
        return text + (
            'If that journal is lost for good, delete the note with os-acc '
            'device deny --lost-journal, and allow the device again'
        )

    def row(self, owner: str) -> facts.Row:
        """The VAN that has it, for the rule of claims.

        :param owner: stands for the VAN and for its instance
        """
        name, files = self.name, facts.Files()
        if self.kind == FILE:
            files = self._files()
            name = file_place.without_share(name)
            if name != self.name:
                name += f'/{self.name.rpartition("=")[2]}'
        return facts.Row(
            f'{KINDS[self.kind].handle}/{name}',
            self.device,
            owner,
            owner,
            noted=files,
        )

    def _files(self) -> facts.Files:
        """What was behind the files: see devfile.device_files."""
        name = file_place.without_share(self.name)
        places = [name, *map(str, self.values.get('files', ()))]
        around = [str(each) for each in self.values.get('within', ())]
        queues = map(idxd_names.of_file, places)
        functions = [each for each in around if pci.is_address(each)]
        mdevs = [each for each in around if file_place.mdev_in(each) == each]
        rest = [each for each in around if each not in (*functions, *mdevs)]
        return facts.Files(
            tuple(functions),
            tuple(mdevs),
            tuple(each for each in queues if each is not None),
            tuple(map(str, self.values.get('namespaces', ()))),
            tuple(dict.fromkeys(places)),
            tuple(rest),
            # One of these may be the name of a namespace. The others exclude
            # nobody.
            tuple(rest),
        )


@dataclasses.dataclass(frozen=True)
class InTheWay:
    """A note that is in the way of a device.

    :ivar both: where the note and the device meet in the resource tree, if it
        is a function that neither is named after
    """

    note: Note
    both: conflict.Resource | None


class Rule:
    """Applies the rule of os_acc.claims to notes.

    :param others: the notes that may be in the way
    :param wanted: what will be wanted; needed if it matters who has which
        functions of an FPGA
    """

    def __init__(self, others: Iterable[Note], *wanted: Note) -> None:
        self._others = list(others)
        self._rows = [
            each.row(str(number)) for number, each in enumerate(self._others)
        ]
        programs = {
            address
            for each in (*self._others, *wanted)
            if each.values.get('fpga') is True
            for address in (each.device, file_place.function_in(each.name))
        }
        self._known = reader.Reader(
            device_spec.Specs(),
            lambda address: address in programs,
        )

    @functools.cached_property
    def _held(self) -> conflict.Held:
        return conflict.Held(
            of_handle.holding(each, self._known) for each in self._rows
        )

    def in_the_way(
        self,
        wanted: Note,
        counts: Callable[[conflict.Resource], bool] = lambda node: True,
    ) -> Iterator[InTheWay]:
        """Say which notes are in the way of a device, each once.

        :param counts: whether it matters that the two meet on a node
        """
        if not self._others:
            return
        own = of_handle.holding(wanted.row(_WANTED), self._known)
        told = set()
        for found in self._held.conflicts(own):
            number = int(found.holding.van_uuid)
            if number not in told and counts(found.node):
                told.add(number)
                yield _in_the_way(wanted, self._others[number], found.node)


def _in_the_way(wanted: Note, note: Note, node: conflict.Resource) -> InTheWay:
    named = node.name in (wanted.name, note.name)
    shown = not named and nodes.is_function(node)
    return InTheWay(note, node if shown else None)

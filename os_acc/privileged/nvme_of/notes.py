# SPDX-License-Identifier: Apache-2.0

"""Which instance had a namespace last, by a note that survives a reboot.

There is a note from before an instance gets a namespace until the namespace
was released, and emptied if os-acc is to empty it. A note that is not "given"
says that the namespace was released, but may hold the data of the instance.

Callers hold the operation lock of the namespace.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Annotated
from typing import Any

from os_acc.claims import holder
from os_acc.kinds.nvme_of import entry as spec_nvme_of
from os_acc.privileged import notes
from os_acc.privileged import store

LOG = logging.getLogger(__name__)

#: In place of the UUID of an instance, if the note cannot be understood.
UNKNOWN = 'unknown'


def _target(value: object) -> spec_nvme_of.Target:
    return spec_nvme_of.read('note', value)


def _holder(value: object) -> holder.Holder | None:
    return None if value is None else holder.from_wire(value)


@dataclasses.dataclass(frozen=True)
class Note(store.Said):
    """What a note says.

    :ivar instance: the UUID of the instance, or UNKNOWN
    :ivar given: whether the instance has the namespace now
    :ivar target: where the namespace came from; None if that is unknown
    :ivar holder: the VAN and the journal that have it; None if unknown
    """

    instance: Annotated[str, str]
    given: store.Flag
    target: Annotated[spec_nvme_of.Target | None, _target]
    holder: Annotated[holder.Holder | None, _holder] = None

    @property
    def is_of_another(self) -> bool:
        """Whether a VAN of another journal has the namespace now."""
        noted = self.holder
        return self.given and noted is not None and holder.is_of_another(noted)


_notes = store.Store(
    notes.files, Note.of, damaged=Note(UNKNOWN, given=False, target=None)
)


def read(wwn: str) -> Note | None:
    """Read the note of a namespace; None if there is none."""
    return _notes.read(_name(wwn))


def write(wwn: str, note: Note) -> None:
    """Write the note of a namespace, with the VAN of this call."""
    target, who = note.target, holder.current()
    values: dict[str, Any] = {
        'what': '' if target is None else target.nqn,
        'device': wwn,
        'instance': note.instance,
        'given': note.given,
        'holder': None if who is None else who.to_wire(),
        'target': None
        if target is None
        else {
            'nqn': target.nqn,
            'portals': [list(dataclasses.astuple(p)) for p in target.portals],
            'namespaces': [wwn],
            'dhchap_secret_file': target.secret_file,
            'erase': target.erase,
        },
    }
    notes.note_namespace(wwn, values)


def delete(wwn: str, cleaned: notes.Cleaned) -> None:
    """Delete the note of a namespace, if there is one."""
    # A file system that is read-only refuses to delete even what is not there.
    if read(wwn) is not None:
        _notes.delete(_name(wwn))
        LOG.debug('%s is released: %s', wwn, cleaned.value)


def _name(wwn: str) -> str:
    return f'{notes.NAMESPACE}-{wwn}'

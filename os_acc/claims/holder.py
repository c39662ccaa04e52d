# SPDX-License-Identifier: Apache-2.0

"""For whom a call works: which VAN of which journal.

A host can have two journals by mistake: a container without its volume, or a
command without the service's --config-file. Each journal knows its own VANs
only. The privileged half, which is one per host, notes with each device the
VAN and the journal that have it, and refuses the device to others. Every
privileged call carries the holder for which it is made, see
os_acc.privileged.privsep.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import contextvars
import dataclasses

from os_acc import exception
from os_acc.texts import forms

_LONGEST_PATH = 4096  # PATH_MAX of include/uapi/linux/limits.h


@dataclasses.dataclass(frozen=True)
class Holder:
    """Who has a device, or wants it."""

    journal: str  # the UUID in the journal's file
    path: str  # of the journal's file
    instance: str = ''  # its UUID; '' for a call that is made for no instance
    van: str = ''  # its UUID; '' as for instance

    def may_use_what(self, other: Holder) -> bool:
        """Whether a device that another holder has is this one's, too.

        A journal knows by itself which of its VANs has what, and VANs hand
        functions over to each other. A VAN keeps what it has in a journal that
        was rebuilt. An ARQ that was copied for another instance is another VAN
        of the same UUID.
        """
        same_van = self.van != '' and (self.van, self.instance) == (
            other.van,
            other.instance,
        )
        return same_van or self.journal == other.journal

    def to_wire(self) -> list[str]:
        return [self.journal, self.path, self.instance, self.van]


def from_wire(value: object) -> Holder:
    """Read what to_wire() gave, and check it."""
    if (
        isinstance(value, list | tuple)
        and len(value) == 4
        and all(isinstance(each, str) for each in value)
    ):
        made = Holder(*value)
        if (
            made.journal != ''
            and all(
                each in ('', forms.uuid(each))
                for each in (made.journal, made.instance, made.van)
            )
            and len(made.path) <= _LONGEST_PATH
            and made.path.isprintable()
        ):
            return made
    raise exception.InvalidRequest(
        subject='privileged call',
        field='holder',
        value=value,
        expected='the UUID and the path of a journal, and the UUIDs of an '
        'instance and a VAN',
    )


_current: contextvars.ContextVar[Holder | None] = contextvars.ContextVar(
    'os_acc_holder', default=None
)


def current() -> Holder | None:
    """For whom this thread or task works now; None if nobody has said."""
    return _current.get()


def is_of_another(noted: Holder) -> bool:
    """Whether this call is not made for the VAN that is noted."""
    who = current()
    return who is None or not who.may_use_what(noted)


@contextlib.contextmanager
def acting_for(who: Holder) -> Iterator[None]:
    """Say for whom the privileged calls of a block are made."""
    token = _current.set(who)
    try:
        yield
    finally:
        _current.reset(token)

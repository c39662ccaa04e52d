# SPDX-License-Identifier: Apache-2.0

"""What an operator calls a VAN or an instance: a UUID, a prefix, or a name."""

from __future__ import annotations

from collections.abc import Collection
import contextlib
import difflib
import itertools
import re

from os_acc import exception
from os_acc import journal as journal_module
from os_acc.cli import errors
from os_acc.journal import events
from os_acc.kernel import pci
from os_acc.state import instance_names
from os_acc.texts import forms

#: The fewest hex digits of a prefix of a UUID, which is what tables show.
#: Instances have names too, and a name such as "cafe" must never mean another
#: instance.
SHORTEST = 8

#: What is expected for a UUID, for errors.
EXPECTED = f'a UUID, or the first {SHORTEST} or more characters of one'

VAN_HELP = f'UUID of the VAN, or its first {SHORTEST} or more characters'

_PREFIX = re.compile(r'[0-9a-f-]+', re.I | re.ASCII)

# The most hex digits of a prefix. With more, it is a UUID that is misspelt.
_LONGEST = 26


def instance(
    journal: journal_module.Journal, called: str, command: str
) -> str:
    """Return what a command takes for what the operator calls an instance.

    :param called: its UUID; its name; or the first characters of the UUID of
        an instance that has VANs
    :param command: for an error, such as 'unplug'
    :returns: the UUID if it is the first characters of one; otherwise called
    """
    if forms.uuid(called) is not None:
        return called
    known = {entry.van.instance_uuid for entry in journal.entries()}
    known |= {row.instance_uuid for row in journal.unreadable()}
    with contextlib.suppress(exception.InvalidRequest):
        if instance_names.instance_uuid(called) in known:
            return called
    found = _begin(known, called)
    return only(found, called, f'{command}: INSTANCE') if found else called


def never_known(
    journal: journal_module.Journal, called: str, instance_uuid: str
) -> str | None:
    """Say that the journal knows nothing of an instance.

    :param called: what the operator calls it
    :returns: a sentence; None: the instance has accelerators, or had some
    """
    if vans(journal, instance_uuid) or journal.events(
        events.Wanted(instances=[instance_uuid])
    ):
        return None
    return (
        f'The journal has no record of an instance {called!r}, current or '
        f'past{_meant(journal, called)} See: os-acc van list'
    )


def check_has(
    journal: journal_module.Journal,
    called: str,
    instance_uuid: str,
    wanted: Collection[str] | None,
    command: str,
) -> None:
    """Check that an instance has accelerators, or certain ones.

    :param wanted: UUIDs of VANs; None: it must have any
    """
    known = vans(journal, instance_uuid)
    if not known:
        raise errors.NotFound(
            subject=command,
            field='INSTANCE',
            value=called,
            expected='an instance that has accelerators'
            f'{_meant(journal, called)} See: os-acc van list',
        )
    for each in wanted or ():
        if each not in known:
            raise errors.NotFound(
                subject=command,
                field='--van',
                value=each,
                expected=f'a VAN of instance {instance_uuid} (see os-acc van '
                'list)',
            )


def _meant(journal: journal_module.Journal, called: str) -> str:
    """Ask for the name of an instance that is like what was typed."""
    known = {entry.instance_info.name for entry in journal.entries()}
    near = difflib.get_close_matches(called, filter(None, known), n=1)
    return f". Did you mean '{near[0]}'?" if near else '.'


def refuse_beginning(journal: journal_module.Journal, called: str) -> None:
    """Check that the name of a new instance is not taken for another's UUID.

    An accelerator must not go to an instance that merely has such a UUID.
    """
    uuid = instance(journal, called, 'plug')
    if uuid != called:
        _refuse(
            'plug: INSTANCE',
            called,
            'a whole UUID, or another name: the UUID of instance '
            f'{uuid} begins with these characters',
        )


def vans(
    journal: journal_module.Journal, instance_uuid: str | None = None
) -> set[str]:
    """Return the UUIDs of the VANs in the journal, readable or not."""
    known = {entry.van.uuid for entry in journal.entries(instance_uuid)}
    return known | {r.van_uuid for r in journal.unreadable(instance_uuid)}


def van(
    known: Collection[str],
    called: str,
    field: str,
    expected: str = 'a VAN in the journal (see os-acc van list)',
    named: bool = False,
) -> str:
    """Return the UUID of a VAN.

    :param called: its UUID, or the first characters of it
    :param field: the command and its argument, for an error, such as
        'van forget: VAN'
    :param expected: for the error if there is no such VAN
    :param named: True: it may also be a name, which the caller has looked up
    """
    if beginning(called) is None and not (
        named and not _PREFIX.fullmatch(called)
    ):
        _refuse(field, called, EXPECTED)
    found = _begin(known, called)
    if not found:
        subject, _, name = field.partition(': ')
        raise errors.NotFound(
            subject=subject, field=name, value=called, expected=expected
        )
    return only(found, called, field)


def device(called: str) -> str:
    """Return a device by its canonical name.

    :param called: a PCI address in any spelling, libvirt's name of a PCI
        function, a path, or another name, in any case
    """
    if called.startswith('/'):
        return called
    return pci.canonical(called) or called.lower()


def mediated_device(known: Collection[str], called: str) -> str:
    """Return the UUID that begins with a text; the text if there is none."""
    found = _begin(known, called)
    return only(found, called, 'device show: ADDRESS') if found else called


def beginning(text: str) -> str | None:
    """Read a UUID, or the beginning of one.

    :param text: hyphens may be missing or anywhere
    :returns: it in lower case, with hyphens where a UUID has them; None if it
        is neither, or has fewer than SHORTEST hex digits, or almost all
    """
    if (uuid := forms.uuid(text)) is not None:
        return uuid
    if not _PREFIX.fullmatch(text):
        return None
    digits = text.replace('-', '').lower()
    if not SHORTEST <= len(digits) <= _LONGEST:
        return None
    ends = (0, 8, 12, 16, 20, _LONGEST)
    parts = (digits[a:b] for a, b in itertools.pairwise(ends))
    return '-'.join(filter(None, parts))


def only(found: Collection[str], called: str, field: str) -> str:
    """Return the only one of the UUIDs that begin with a text.

    :param field: see van()
    """
    first, *others = sorted(found)
    if others:
        _refuse(
            field,
            called,
            f'more characters: {len(found)} UUIDs begin with these, such as '
            f'{first} and {others[0]}',
        )
    return first


def _begin(known: Collection[str], text: str) -> list[str]:
    """The UUIDs that begin with a text; none if it is too short."""
    start = beginning(text)
    return [uuid for uuid in known if start and uuid.startswith(start)]


def _refuse(field: str, value: str, expected: str) -> None:
    subject, _, name = field.partition(': ')
    raise exception.InvalidRequest(
        subject=subject, field=name, value=value, expected=expected
    )

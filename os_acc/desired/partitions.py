# SPDX-License-Identifier: Apache-2.0

"""Gives AMD GPUs the compute partitions that the document names.

Root's record says which mode a card had before. It does not survive a reboot,
nor does the mode: the document is applied again then. This part comes before
instances get their devices again: a partition is there in its mode only.
"""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
import functools

from os_acc import exception
from os_acc import host as host_module
from os_acc.claims import allocated
from os_acc.desired import ahead
from os_acc.desired import documents
from os_acc.desired import offered
from os_acc.desired import steps
from os_acc.journal import desired as rows
from os_acc.kernel import amd_partitions
from os_acc.kernel import file_place
from os_acc.kernel import pci
from os_acc.kinds.devfile import rules
from os_acc.spec import device_spec

PART = 'partitions'


def find(
    host: host_module.Host,
    document: documents.Document,
    before: rows.Desired | None,
) -> Iterator[steps.Step]:
    """A step for each card of the document, and of the one before."""
    wanted = dict(document.partitions)
    cards = sorted({*wanted, *ahead.compare(PART, document, before).earlier})
    if not cards:
        return
    specs = offered.specs_after(host.conf, document)
    for card in cards:
        now = amd_partitions.mode(card) or 'none'
        if (mode := wanted.get(card)) is None:
            act = functools.partial(_let_go, host, card)
            users = functools.partial(_users_of_undo, host, card)
            changes = functools.partial(_restores, host, card)
            yield steps.Step(
                PART, card, now, 'as before', act, users, changes=changes
            )
        elif now == mode:
            yield steps.Step(PART, card, now, now)
        else:
            error = _in_the_way(host, specs, card, mode)
            act = functools.partial(_set, host, card, mode)
            yield steps.tried(PART, card, now, mode, act, error)


def before_instances(
    host: host_module.Host, document: documents.Document, known: rows.Desired
) -> Iterator[steps.Step]:
    """The steps after which instances get their devices again.

    A card gets the mode in which an instance had it, or else that of the
    document.
    """
    wanted = dict(document.partitions)
    modes = [
        (card, mode)
        for card in sorted({*known.devices_of(PART)})
        if (mode := _mode_had(host, card) or wanted.get(card)) is not None
    ]
    yield from find(
        host, dataclasses.replace(document, partitions=modes), None
    )


def _mode_had(host: host_module.Host, card: str) -> str | None:
    """The mode in which an instance has a card; None: none has it."""
    for each in allocated.Holders(host.journal.handles()).on(card):
        first = f'{allocated.FILE}{card}{file_place.SEPARATOR}'
        name = (each.handle or '').removeprefix(first)
        mode = name.partition('=')[0].upper()
        known = mode in amd_partitions.MODES
        return mode if known else amd_partitions.WHOLE
    return None


def _in_the_way(
    host: host_module.Host, specs: device_spec.Specs, card: str, mode: str
) -> exception.ExceptionBase | None:
    """Return the error for a mode that a card cannot get now."""
    try:
        pci.get(card)
        for obstacle in rules.partition_obstacles(card, mode, specs):
            return obstacle.error()
        ahead.refuse(f'PCI function {card}', _users(host, card, mode))
    except exception.ExceptionBase as err:
        return err
    return None


def _users(host: host_module.Host, card: str, mode: str | None) -> list[str]:
    """Say who uses a card.

    An instance that had a partition before a reboot, and is to get it again,
    needs the mode.

    :param mode: the one to be set; None: the one that the card had before
    """
    from os_acc.privileged import device_users

    needs = f'{allocated.FILE}{card}{file_place.SEPARATOR}{mode}='.lower()
    found = ahead.clauses(
        each
        for each in allocated.Holders(host.journal.handles()).on(card)
        if not (each.handle or '').startswith(needs)
    )
    if found:
        return found
    with host.acting_for():
        return device_users.of_functions([card])


def _users_of_undo(host: host_module.Host, card: str) -> list[str]:
    """Say who is in the way if the earlier mode of a card is restored.

    Nobody is if the card has this mode already.
    """
    return _users(host, card, None) if _restores(host, card) else []


def _restores(host: host_module.Host, card: str) -> bool:
    """Whether _let_go() would change the mode of a card."""
    from os_acc.privileged.devfile import partitions as privileged

    if pci.find(card) is None:
        return False
    with host.acting_for():
        return privileged.restores(card)


def _set(host: host_module.Host, card: str, mode: str) -> bool:
    """Set the mode of a card.

    :returns: False: it had this mode before
    """
    from os_acc.privileged.devfile import partitions as privileged

    with host.locks.device(card):
        specs = device_spec.load(host.conf)
        if (error := _in_the_way(host, specs, card, mode)) is not None:
            raise error
        with host.acting_for():
            seconds = host.conf.os_acc.device_timeout
            return privileged.set_mode(card, mode, seconds)


def _let_go(host: host_module.Host, card: str) -> bool:
    """Restore the mode that a card had before os-acc set it.

    :returns: False: it has it already, or the card has gone
    """
    from os_acc.privileged.devfile import partitions as privileged

    with host.locks.device(card):
        if pci.find(card) is None:
            return False
        ahead.refuse(f'PCI function {card}', _users_of_undo(host, card))
        with host.acting_for():
            return privileged.let_go(card, host.conf.os_acc.device_timeout)

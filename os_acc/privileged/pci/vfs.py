# SPDX-License-Identifier: Apache-2.0

"""Making and removing the VFs of PFs, as root."""

from __future__ import annotations

from typing import Any

from os_acc import exception
from os_acc.availability import vf_availability
from os_acc.deadlines import waiting
from os_acc.kernel import pci
from os_acc.kernel import sriov
from os_acc.privileged import arguments
from os_acc.privileged import context
from os_acc.privileged import function_notes
from os_acc.privileged import notes
from os_acc.privileged import offers
from os_acc.privileged import undo_log
from os_acc.privileged import vf_cards
from os_acc.privileged.kernel import vf_number
from os_acc.privileged.pci import bindings
from os_acc.privileged.pci import network
from os_acc.spec import device_spec


@context.entry
def create_vfs(pf: str, number: int, seconds: float) -> None:
    """Create the VFs that device_spec sets for a PF that has none.

    :param number: num_vfs of the PF's entry of device_spec, or as many as were
        made for the VANs that have VFs of the PF
    :raises InvalidRequest: if it is another number
    :raises DeviceBusy: if the PF has VFs already, or is bound to VFIO
    """
    function = arguments.there(pf)
    spec, possible = offers.vfs_entry(function)
    arguments.whole(number, 'number', sriov.total(pf), least=1)
    seconds = arguments.seconds(seconds)
    if number not in possible:
        wanted = ' or '.join(map(str, sorted(possible))) or None
        arguments.refuse('number', number, f'num_vfs of device_spec, {wanted}')

    def act(deadline: waiting.Deadline) -> None:
        if there := sriov.count(pf):
            raise exception.DeviceBusy(
                device=f'PF {pf}', reason=f'it has {there} VFs'
            )
        _make(function, spec, number, _settings(spec, number), deadline)

    what = f'{number} VFs of PF {pf} to be created'
    function_notes.change(function, seconds, what, act)


@context.entry
def change_vfs(pf: str, number: int, seconds: float) -> list[str]:
    """Give a PF as many VFs as device_spec sets, in place of those it has.

    If they are as many, but do not have the vf_settings of device_spec, they
    are made anew, too. It takes away only VFs that create_vfs() has made and
    nobody uses. If the new ones cannot be made, it makes the previous ones
    again.

    :returns: clauses that say why the previous VFs stay; empty if it has the
        number now
    """
    function = arguments.there(pf)
    spec = offers.specs().check(function)
    arguments.whole(number, 'number', sriov.total(pf), least=1)
    if number != spec.num_vfs:
        arguments.refuse('number', number, f'num_vfs, {spec.num_vfs}')
    seconds = arguments.seconds(seconds)

    def act(deadline: waiting.Deadline) -> list[str]:
        before, known = sriov.count(pf), undo_log.vfs.read(pf)
        had = known.settings if known is not None else []
        wanted = _settings(spec, number)
        if before == number and had == wanted:
            return []
        if stay := _remove_vfs(pci.get(pf), deadline):
            return stay
        try:
            _make(function, spec, number, wanted, deadline)
        except exception.ExceptionBase:
            if before:
                _make(function, None, before, had, deadline)
            raise
        return []

    what = f'{number} VFs of PF {pf}'
    return function_notes.change(function, seconds, what, act)


def _make(
    function: pci.Function,
    spec: device_spec.Spec | None,
    number: int,
    settings: list[dict[str, Any]],
    deadline: waiting.Deadline,
) -> None:
    """Make the VFs of a PF that has none. Its lock is held."""
    pf = function.address
    for obstacle in vf_availability.vfs_obstacles(pci.get(pf), spec=spec):
        raise obstacle.error()
    # An earlier call that was interrupted has set autoprobe already.
    known = undo_log.vfs.read(pf)
    before = known.autoprobe if known else sriov.autoprobe(pf)
    function_notes.note_vfs(function, number)
    undo_log.vfs.write(pf, undo_log.Vfs(number, before))
    for card in vf_cards.ALL:
        card.before_vfs(pci.get(pf), number, deadline.left(0.5))
    vf_number.create(pf, number, deadline.left())
    if not settings:
        return
    try:
        for vf, wanted in zip(pci.get(pf).vf_addresses, settings, strict=True):
            network.set_new(pci.get(vf), wanted, deadline.left())
    except exception.ExceptionBase:
        _remove_vfs(pci.get(pf), deadline)
        raise
    # Not before: VFs of a call that was interrupted are made anew.
    undo_log.vfs.write(pf, undo_log.Vfs(number, before, settings))


def _settings(spec: device_spec.Spec, number: int) -> list[dict[str, Any]]:
    """What each of so many VFs of a PF has while it serves no port."""
    if spec.vf_settings is None:
        return []
    return [spec.vf_settings.of_vf(each) for each in range(number)]


@context.entry
def settings_of_vfs(pf: str) -> list[dict[str, Any]]:
    """What was set for the VFs of a PF when os-acc made them in this boot.

    :returns: for each VF, by the names of rtnetlink.SETTINGS; empty: nothing
        was set, or somebody else has made them
    """
    arguments.there(pf)
    known = undo_log.vfs.read(pf)
    if known is None or known.number != sriov.count(pf):
        return []
    return known.settings


@context.entry
def made_vfs(pf: str, seconds: float) -> int:
    """How many VFs of a PF os-acc has made in this boot; 0 if none.

    The caller is about to give one of them to a VAN. So this notes that they
    must come back after a reboot, as create_vfs() does.
    """
    function = arguments.offered(pf)
    with function_notes.locked(function, arguments.seconds(seconds)):
        known = undo_log.vfs.read(pf)
        if known is None or known.number != sriov.count(pf):
            return 0
        function_notes.note_vfs(function, known.number)
        return known.number


@context.entry
def remove_vfs(pf: str, seconds: float) -> list[str]:
    """Remove the VFs that create_vfs() has made, if nobody uses any of them.

    If the VFs stay, sriov_drivers_autoprobe of the PF is still restored.

    :returns: clauses that say why the VFs stay; empty if the PF has none now
    """
    function = arguments.there(pf)
    return function_notes.change(
        function,
        arguments.seconds(seconds),
        f'the VFs of PF {pf} to be removed',
        lambda deadline: _remove_vfs(pci.get(pf), deadline),
    )


def _remove_vfs(pf: pci.Function, deadline: waiting.Deadline) -> list[str]:
    known, there = undo_log.vfs.read(pf.address), sriov.count(pf.address)
    if known is None:
        notes.forget(notes.VFS, pf.address, notes.Cleaned.EARLIER)
        return ['os-acc has no record of creating them'] if there else []
    if there not in (0, known.number):
        # Somebody else has removed os-acc's VFs and made these.
        vf_number.restore_autoprobe(pf.address, known.autoprobe)
        undo_log.vfs.delete(pf.address)
        notes.forget(notes.VFS, pf.address, notes.Cleaned.EARLIER)
        return [f'somebody else has changed their number to {there}']
    if users := [*vf_availability.vf_users(pf), *function_notes.needs_vfs(pf)]:
        vf_number.restore_autoprobe(pf.address, known.autoprobe)
        if not function_notes.has_vf(pf):
            # No VAN needs them after a reboot. The record stays: os-acc can
            # still remove them in this boot.
            notes.forget(notes.VFS, pf.address, notes.Cleaned.EARLIER)
        return users
    addresses = pf.vf_addresses
    vf_number.remove(pf.address, known.autoprobe)
    for card in vf_cards.ALL:
        card.after_vfs(pf, deadline.left())
    for address in addresses:
        bindings.functions.delete(address)
        network.ports.delete(address)
        notes.forget(notes.PCI, address, notes.Cleaned.EARLIER)
    undo_log.vfs.delete(pf.address)
    notes.forget(notes.VFS, pf.address, notes.Cleaned.EARLIER)
    return []

# SPDX-License-Identifier: Apache-2.0

"""The ports of a DFL card, and the driver of its PF, as root.

A VF of such a card has one port. The PF must release as many ports as VFs are
to be made, before they are made; after the VFs are gone, the PF gets the ports
back (Documentation/fpga/dfl.rst of the kernel, "Virtualization - PCI SRIOV").
VF n has the n-th released port. os-acc releases the ports from 0 on, so VF n
has port n.

Two states need the PF to be unbound from its driver and bound again. In Linux
6.1, a port that was given back to the PF has no driver. And a port whose
programming has failed stays in reset. Binding removes all VFs, so nobody may
use any of them.

The record is written before each step. So the next call completes what a
killed process has left.
"""

from __future__ import annotations

import dataclasses
import logging

from os_acc import exception
from os_acc.availability import vf_availability
from os_acc.deadlines import waiting
from os_acc.kernel import dfl
from os_acc.kernel import fpga_manager
from os_acc.kernel import pci
from os_acc.kernel import sriov
from os_acc.kernel import sysfs
from os_acc.privileged import device_users
from os_acc.privileged import function_notes
from os_acc.privileged import undo_log
from os_acc.privileged.fpga import dfl_ioctl
from os_acc.privileged.fpga import turn
from os_acc.privileged.kernel import vf_number


@dataclasses.dataclass(frozen=True)
class DflCard:
    """A card whose ports or driver os-acc is changing. See dfl_ports.

    :ivar released: the numbers of the ports that were to be released
    :ivar unbound: whether it was to be unbound from its driver and bound again
    """

    released: list[int]
    unbound: bool


@dataclasses.dataclass(frozen=True)
class DflPort:
    """A port of a card whose programming has begun and has not succeeded.

    :ivar failed: True: it has failed; False: it may still be under way
    """

    failed: bool


cards = undo_log.Records('dfl-cards', DflCard)
ports = undo_log.Records('dfl-ports', DflPort)

LOG = logging.getLogger(__name__)

# Seconds for the ports to come back. The kernel probes them before the write
# to the file bind returns.
_COME_BACK = 5.0

_NOTHING = DflCard([], False)


def before_vfs(pf: pci.Function, number: int, seconds: float) -> None:
    """Release the ports for the VFs that are about to be made on a PF.

    Does nothing if the PF is not a DFL card. The caller holds the operation
    lock of the PF, which has no VFs.

    :param seconds: how long binding the PF again may take
    :raises DeviceBusy: if a program of the host has a port open, or the card
        is being programmed
    :raises DeviceError: if there are not that many ports, other ports are
        released already, or the kernel refuses
    """
    if dfl.find(pf.address) is None:
        return
    with turn.taken(pf, ''):
        _release(pf, number, seconds)


def _release(pf: pci.Function, number: int, seconds: float) -> None:
    card = _card(pf)
    if number > card.number_of_ports:
        raise exception.DeviceError(
            device=f'PF {pf.address}',
            reason=f'num_vfs is {number}, and the card has '
            f'{card.number_of_ports} ports',
        )
    if needs_binding(card) and is_unused(pf):
        bind_again(pf, seconds)
        card = _card(pf)
    wanted = range(number)
    if others := set(card.released) - set(wanted):
        raise exception.DeviceError(
            device=f'PF {pf.address}',
            reason=f'the ports {sorted(others)} are already released. Only '
            f'the first {number} may be, because num_vfs is {number}',
        )
    more = [each for each in wanted if each not in card.released]
    known = _known(pf)
    released = sorted({*known.released, *more})
    _write(pf, dataclasses.replace(known, released=released))
    for port in more:
        dfl_ioctl.release(card, port)
    LOG.info('PF %s has released the ports %s', pf.address, more)


def after_vfs(pf: pci.Function, seconds: float) -> None:
    """Give the ports that before_vfs() released back to the PF.

    The caller holds the operation lock of the PF, and has removed the VFs.
    """
    known = cards.read(pf.address)
    if known is None:
        return
    with turn.taken(pf, ''):
        complete_binding(pf, seconds)
        # The kernel would take the port from under a VF.
        if there := sriov.count(pf.address):
            raise exception.DeviceBusy(
                device=f'PF {pf.address}', reason=f'it has {there} VFs'
            )
        card = dfl.find(pf.address)
        if card is not None:
            for port in known.released:
                dfl_ioctl.assign(card, port)
            _bind_if_needed(pf, seconds)
    cards.delete(pf.address)
    LOG.info('PF %s has its ports %s again', pf.address, known.released)


def _bind_if_needed(pf: pci.Function, seconds: float) -> None:
    if not needs_binding(_card(pf)):
        return
    if is_unused(pf):
        bind_again(pf, seconds)
    else:
        LOG.warning(
            'PF %s must be bound to %s again before the host can use its '
            'ports, but a program has the card open',
            pf.address,
            dfl.DRIVER,
        )


def bind_with_vfs(pf: pci.Function, seconds: float) -> bool:
    """Bind the PF again, and make its VFs again, if nobody has any of them.

    The caller holds the operation locks of the PF and of its VFs, and the turn
    of the chip.

    :returns: False, and nothing was changed: the card is open, or a VF is
        used, belongs to a VAN, or was not made by os-acc
    """
    deadline = waiting.Deadline(seconds)
    if pf.driver != dfl.DRIVER or device_users.open_by([pf]):
        return False
    number = sriov.count(pf.address)
    if number:
        made = undo_log.vfs.read(pf.address)
        if made is None or made.number != number or function_notes.has_vf(pf):
            return False
        if vf_availability.vf_users(pf):
            return False
        vf_number.remove(pf.address, None)
    bind_again(pf, deadline.left(0.5))
    if number:
        _release(pci.get(pf.address), number, 0.0)
        vf_number.create(pf.address, number, deadline.left())
    return True


def needs_binding(card: dfl.Card) -> bool:
    """Whether the PF must be bound again, so that all ports work."""
    settle(card)
    return lacks_driver(card) or any(
        is_stuck(card, port) for port in range(card.number_of_ports)
    )


def lacks_driver(card: dfl.Card) -> bool:
    """Whether a port that the PF has is bound to no driver."""
    return any(each.number is None for each in card.ports)


def is_stuck(card: dfl.Card, port: int) -> bool:
    """Whether a port has stayed in reset since its programming failed.

    The caller holds the turn of the chip, so that nobody programs the card
    now, and has called settle().
    """
    there = card.port(port)
    if there is not None:
        if not there.in_reset:
            ports.delete(_name(card, port))
        return there.in_reset
    # The kernel does not show a port that a VF has.
    return ports.read(_name(card, port)) is not None


def settle(card: dfl.Card) -> None:
    """Find out how a programming ended if its process was killed.

    The kernel goes on with it. The FPGA manager shows how the last one has
    ended. So this must be called before the next one begins. The caller holds
    the turn of the chip.
    """
    for port in range(card.number_of_ports):
        noted = ports.read(_name(card, port))
        if noted is None or noted.failed:
            continue
        manager = fpga_manager.the_manager(pci.get(card.address))
        if manager.state == fpga_manager.OPERATING and not manager.status:
            succeed(card, port)
        else:
            fail(card, port)


def begin(card: dfl.Card, port: int) -> None:
    """Note that a port is about to be programmed."""
    ports.write(_name(card, port), DflPort(False))


def fail(card: dfl.Card, port: int) -> None:
    """Note that the programming of a port has failed."""
    ports.write(_name(card, port), DflPort(True))


def succeed(card: dfl.Card, port: int) -> None:
    """Note that the programming of a port has succeeded."""
    ports.delete(_name(card, port))


def is_unused(pf: pci.Function) -> bool:
    """Whether the PF may be bound again: no VFs, and nothing has it open."""
    return not sriov.count(pf.address) and not device_users.open_by([pf])


def bind_again(pf: pci.Function, seconds: float) -> None:
    """Unbind a PF from its driver and bind it again.

    All its ports then belong to the PF and work. The caller holds the
    operation lock of the PF and the turn of the chip, and has checked that
    the PF is unused.
    """
    known = _known(pf)
    _write(pf, dataclasses.replace(known, unbound=True))
    LOG.info(
        'PF %s is unbound from %s and bound again, so that its ports work',
        pf.address,
        dfl.DRIVER,
    )
    _driver_file(pf, 'unbind')
    complete_binding(pci.get(pf.address), seconds)


def complete_binding(pf: pci.Function, seconds: float) -> None:
    """Do the rest of bind_again(), if its process was killed.

    The caller holds what bind_again() needs.
    """
    known = cards.read(pf.address)
    if known is None or not known.unbound:
        return
    if pf.driver is not None:
        # It was not unbound yet, or it is bound again already.
        _write(pf, dataclasses.replace(known, unbound=False))
        return
    _driver_file(pf, 'bind')

    def all_work() -> dfl.Card | None:
        card = dfl.find(pf.address)
        if card is None or len(card.ports) < card.number_of_ports:
            return None
        works = all(each.afu_id is not None for each in card.ports)
        return card if works else None

    card = waiting.until(
        all_work,
        min(seconds, _COME_BACK),
        f'the ports of PF {pf.address} to come back',
        'pci',
    )
    for port in range(card.number_of_ports):
        ports.delete(_name(card, port))
    cards.delete(pf.address)


def _driver_file(pf: pci.Function, name: str) -> None:
    path = f'{sysfs.SYS}/bus/pci/drivers/{dfl.DRIVER}/{name}'
    try:
        sysfs.write(path, pf.address)
    except OSError as err:
        raise exception.DeviceError(
            device=f'PF {pf.address}',
            reason=f'{name} of {dfl.DRIVER}: {err.strerror or err}',
        ) from err


def _card(pf: pci.Function) -> dfl.Card:
    card = dfl.find(pf.address)
    if card is None:
        raise exception.DeviceError(
            device=f'PF {pf.address}',
            reason='the kernel does not show its management engine',
        )
    return card


def _known(pf: pci.Function) -> DflCard:
    return cards.read(pf.address) or _NOTHING


def _write(pf: pci.Function, value: DflCard) -> None:
    cards.write(pf.address, value)


def _name(card: dfl.Card, port: int) -> str:
    return f'{card.address}-{port}'

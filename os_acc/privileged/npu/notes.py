# SPDX-License-Identifier: Apache-2.0

"""Which VAN has which NPU, by the notes of the privileged half: see notes.

A note has the kind of device files. Its name, which no other kind has, tells
os_acc.claims that the VAN has the whole PCI function.
"""

from __future__ import annotations

from collections.abc import Iterable
import dataclasses
from typing import Annotated

from os_acc.claims import holder
from os_acc.kernel import device_file
from os_acc.kernel import file_place
from os_acc.kernel import pci
from os_acc.kinds.npu import entry as npu_entry
from os_acc.kinds.npu import names as npu_names
from os_acc.kinds.npu import rules as npu_rules
from os_acc.privileged import notes
from os_acc.privileged import offers
from os_acc.privileged import store


def _wire(value: object) -> list[str] | None:
    return value if isinstance(value, list) else None


@dataclasses.dataclass(frozen=True)
class Npu(store.Said):
    """The note of an NPU.

    :ivar driver: its kernel driver when it was given out; None: unknown
    :ivar settings: to whom its files belong
    :ivar holder: who has it, see claims.holder.Holder.to_wire()
    """

    driver: str | None = None
    settings: Annotated[npu_entry.Npu | None, npu_entry.of_note] = None
    holder: Annotated[list[str] | None, _wire] = None


def find(address: str, ids: str | None = None) -> Npu | None:
    """The note of an NPU; None if no VAN has it.

    :param ids: of the function; None: of whatever was at the address
    """
    return notes.said(Npu, notes.FILE, npu_names.name_of(address), ids)


def is_given(function: pci.Function) -> bool:
    """Whether a VAN already has an NPU.

    A note of another device that had the address does not count.
    """
    return find(function.address, function.ids) is not None


def has(van: str, function: pci.Function) -> bool:
    """Whether a VAN has an NPU."""
    known = find(function.address, function.ids)
    return known is not None and (known.holder or [])[3:] == [van]


def is_of_an_earlier_van(function: pci.Function) -> bool:
    """Whether an NPU was given to a VAN that has not given it back.

    The journal may have lost that VAN, or forgotten it.
    """
    known, who = find(function.address), holder.current()
    if known is None or known.holder is None or who is None:
        return False
    return known.holder[2:] != [who.instance, who.van]


def settings_of(function: pci.Function) -> npu_entry.Npu | None:
    """To whom its files belong: as it was given out, or by device_spec.

    :returns: None if it is not offered, and no VAN has it
    """
    known = find(function.address, function.ids)
    if known is not None and known.settings is not None:
        return known.settings
    return npu_rules.settings_of(offers.specs().find(function))


def note(
    function: pci.Function,
    settings: npu_entry.Npu,
    files: Iterable[device_file.DeviceFile],
) -> None:
    """Note that a VAN has an NPU."""
    places = [file_place.of(each.number).name for each in files]
    notes.note(
        notes.FILE,
        npu_names.name_of(function.address),
        function.ids,
        parent=function.address,
        files=places,
        within=[function.address],
        driver=function.driver,
        settings=dataclasses.asdict(settings),
    )


def driver_of(address: str) -> str:
    """The kernel driver that an NPU had when it was given out; '': unknown."""
    known = find(address)
    return '' if known is None else known.driver or ''


def forget(address: str, cleaned: notes.Cleaned) -> None:
    """Delete the note of an NPU."""
    notes.forget(notes.FILE, npu_names.name_of(address), cleaned)

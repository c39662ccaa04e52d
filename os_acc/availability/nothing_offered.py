# SPDX-License-Identifier: Apache-2.0

"""Why does an entry of device_spec offer nothing?

That an entry names a device does not mean that it offers something: after a
reboot or an upgrade of a driver, a card may have no VFs, no vGPU types, no
mediated devices. find() says why, for each card. os-acc doctor, os-acc device
list and the refusal of a request all say what it finds.

What is not free now, because an instance or the host has it, is still offered:
see availability.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import dataclasses

from os_acc import exception
from os_acc.availability import card_looks
from os_acc.availability import unmatched
from os_acc.availability.functions import Obstacle
from os_acc.claims import allocated
from os_acc.kernel import mdev_types
from os_acc.kernel import pci
from os_acc.kernel import pci_scan
from os_acc.kinds.devfile import groups as file_groups
from os_acc.kinds.nvme_of import entry as spec_nvme_of
from os_acc.refusals import entry_refusals
from os_acc.spec import device_spec
from os_acc.spec import parts as spec_parts
from os_acc.spec.parts import Part

# A device whose files cannot be read is reported as failed, by its driver.
_UNREADABLE = (OSError, ValueError, exception.DeviceError)


@dataclasses.dataclass(frozen=True)
class Nothing:
    """An entry, and a device of which it offers nothing."""

    spec: device_spec.Spec
    # why; its device is the entry itself if it names no device
    obstacle: Obstacle
    function: pci.Function | None = None  # the device, if it is a PCI function

    @property
    def reason(self) -> str:
        """The reason with the remedy, for an error."""
        text, remedy = self.obstacle.text, self.obstacle.remedy
        return text if remedy in text else f'{text}: {remedy}'

    @property
    def text(self) -> str:
        """Entry, device, reason and remedy."""
        device, source = self.obstacle.device, self.spec.source
        if device == source:
            return f'{source}: {self.reason}'
        return f'{source} offers nothing of {device}: {self.reason}'


def find(
    specs: device_spec.Specs, holders: allocated.Holders | None = None
) -> list[Nothing]:
    """Find the entries that offer nothing, in their order.

    :param holders: what the journal knows; None if it is unavailable
    """
    look = _Look(specs, allocated.Holders() if holders is None else holders)
    return [
        nothing
        for spec in specs.entries
        if not spec.deny
        for nothing in look.of_entry(spec)
    ]


class _Look:
    """What the entries name on this host, looked for once."""

    def __init__(
        self, specs: device_spec.Specs, holders: allocated.Holders
    ) -> None:
        self._specs, self._holders = specs, holders
        parents = mdev_types.parents()
        self._pci_parents = frozenset(filter(pci.is_address, parents))
        self._other_parents = [
            each for each in parents if each not in self._pci_parents
        ]
        self._host = unmatched.Host(specs)
        self._with_files = {id(each.spec) for each in file_groups.read(specs)}
        self._cards: dict[int, dict[str, list[pci.Function]]] = {}
        self._scan()

    def _scan(self) -> None:
        def failed(address: str, err: Exception) -> None:
            self._host.unreadable.append(address)

        for function in pci_scan.functions(failed):
            self._host.functions.append(function)
            if function.is_bridge:
                continue
            try:
                spec = self._specs.first(function)
            except _UNREADABLE:
                self._host.unreadable.append(function.address)
                continue
            if spec is not None:
                cards = self._cards.setdefault(id(spec), {})
                cards.setdefault(function.parent, []).append(function)

    def of_entry(self, spec: device_spec.Spec) -> Iterator[Nothing]:
        """Name the devices of which an entry offers nothing."""
        if spec.nvme_of is not None:
            yield from self._of_target(spec, spec.nvme_of)
            return
        if spec.devices:
            if id(spec) not in self._with_files:
                globs = ', '.join(spec.devices)
                ids = f' that belongs to {unmatched.ids(spec)}'
                with_ids = spec.vendor_id or spec.product_id
                lack = entry_refusals.NO_FILES.reason(
                    globs=globs, ids=ids if with_ids else ''
                )
                yield Nothing(spec, Obstacle.of(spec.source, lack))
            return
        named, found = 0, list[Nothing]()
        for address, functions in self._cards.get(id(spec), {}).items():
            named += 1
            with contextlib.suppress(*_UNREADABLE):
                found += self._of_card(spec, address, functions)
        for name in self._other_parents:
            if self._specs.first_parent(name) is spec:
                named += 1
                with contextlib.suppress(*_UNREADABLE):
                    found += _of_parent(spec, name)
        if named:
            yield from _likely_meant(spec, found, named)
        elif (other := next(card_looks.of_kind(spec, None), None)) is not None:
            yield Nothing(spec, other)
        elif (why := self._host.why_unmatched(spec)) is not None:
            yield Nothing(spec, Obstacle.of(spec.source, why))

    def _of_target(
        self, spec: device_spec.Spec, target: spec_nvme_of.Target
    ) -> Iterator[Nothing]:
        """Say that other entries count for all namespaces of a target."""
        counting = [
            self._specs.first_namespace(each) for each in target.namespaces
        ]
        if spec in counting:
            return
        others = [each for each in counting if each is not None]
        why = entry_refusals.NAMED_BEFORE.reason(
            source=', '.join(dict.fromkeys(each.source for each in others)),
            verb='denies' if any(each.deny for each in others) else 'names',
            devices=', '.join(target.namespaces),
        )
        yield Nothing(spec, Obstacle.of(spec.source, why))

    def _of_card(
        self,
        spec: device_spec.Spec,
        address: str,
        functions: list[pci.Function],
    ) -> Iterator[Nothing]:
        function = pci.find(address)
        if function is None:
            return
        card = card_looks.Card(
            spec,
            function,
            functions,
            self._specs,
            self._holders,
            self._pci_parents,
        )
        obstacle = card_looks.why_nothing(card)
        if obstacle is not None:
            yield Nothing(spec, obstacle, function)


def _likely_meant(
    spec: device_spec.Spec, found: list[Nothing], named: int
) -> list[Nothing]:
    """Leave out the devices that the entry probably does not mean.

    An entry for all vGPUs of a vendor also names the sound functions of the
    cards. If it offers something, they are left out.
    """
    if not spec_parts.asked_for(spec) & {Part.VGPU, Part.MDEV}:
        return found
    displays = [
        each
        for each in found
        if each.function is not None
        and each.function.base_class == pci.CLASS_DISPLAY
    ]
    return displays if displays or len(found) < named else found


def _of_parent(spec: device_spec.Spec, name: str) -> Iterator[Nothing]:
    """Look at a parent of mdevs that is no PCI function."""
    if not spec_parts.offers(spec, Part.MDEV):
        return
    for obstacle in card_looks.types(spec, name, [name]):
        yield Nothing(spec, obstacle)

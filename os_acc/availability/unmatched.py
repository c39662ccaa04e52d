# SPDX-License-Identifier: Apache-2.0

"""Why an entry of device_spec names no device of this host.

Most often the devices have other addresses than before: the bus numbers change
when a card is added, and a card gets another address in another slot.
"""

from __future__ import annotations

import contextlib

from os_acc import exception
from os_acc.kernel import pci
from os_acc.kernel import sriov
from os_acc.refusals import entry_refusals
from os_acc.refusals import reasons
from os_acc.refusals import refusals
from os_acc.spec import device_spec

# The maximum number of addresses that a text names.
_MOST = 4


class Host:
    """The PCI functions of this host, by which an entry is explained."""

    def __init__(self, specs: device_spec.Specs) -> None:
        self._specs = specs
        self.functions: list[pci.Function] = []
        self.unreadable: list[str] = []  # the addresses of all others

    def why_unmatched(self, spec: device_spec.Spec) -> reasons.Reason | None:
        """Say why an entry names no device.

        It may name one that cannot be read, or that comes into being when it
        is requested: None.
        """
        alone = device_spec.Specs((spec,))
        if any(map(alone.may_name, self.unreadable)):
            return None
        if (why := self._named_before(spec)) is not None:
            return why
        if spec.devname is not None:
            return entry_refusals.NO_INTERFACE_NOW.reason(
                interface=spec.devname
            )
        address = spec.address.complete
        if address is None:
            why = self._elsewhere(spec)
            return why or entry_refusals.MATCHES_NOTHING.reason()
        if self._will_be_made(address):
            return None
        return self._why_not_at(address, spec)

    def _why_not_at(
        self, address: str, spec: device_spec.Spec
    ) -> reasons.Reason | None:
        """Say why an entry names no device at its address."""
        present = next(
            (f for f in self.functions if f.address == address), None
        )
        if present is not None and present.is_bridge:
            return refusals.BRIDGE.reason()
        if spec.vendor_id is None and spec.product_id is None:
            return entry_refusals.NOTHING_THERE.reason(address=address)
        if present is None:
            return entry_refusals.MOVED.reason(
                address=address, wanted=ids(spec), where=self._where(spec)
            )
        if present.is_pf and self._are_vfs(spec, present):
            # Without VFs, the PF may be what is given out.
            if self._specs.find(present) is not None:
                return None
            return entry_refusals.NO_VFS_NOW.reason(address=address)
        return entry_refusals.OTHER_DEVICE.reason(
            address=address,
            now=present.ids,
            wanted=ids(spec),
            where=self._where(spec),
        )

    def _named_before(self, spec: device_spec.Spec) -> reasons.Reason | None:
        """Say which entries name all that an entry would name."""
        found: dict[str, device_spec.Spec] = {}
        for function in self.functions:
            with contextlib.suppress(OSError, exception.DeviceError):
                if not function.is_bridge and spec.matches(function):
                    first = self._specs.first(function)
                    if first is not None:
                        found[function.address] = first
        if not found:
            return None
        first = next(iter(found.values()))
        sources = dict.fromkeys(each.source for each in found.values())
        return entry_refusals.NAMED_BEFORE.reason(
            source=', '.join(sources),
            verb='denies' if first.deny else 'names',
            devices=_listed(list(found)),
        )

    def _will_be_made(self, address: str) -> bool:
        """Whether os-acc makes a VF with an address when one is requested."""
        for pf in self.functions:
            spec = self._specs.find(pf) if pf.is_pf else None
            number = None if spec is None else spec.num_vfs
            if number and address in sriov.future_addresses(
                pf.address, number
            ):
                return True
        return False

    def _elsewhere(self, spec: device_spec.Spec) -> reasons.Reason | None:
        """Say where devices with the ids are, if an address is set, too."""
        is_open = spec.vendor_id is None or spec.address.is_open
        if is_open or not self._with_ids(spec):
            return None
        return entry_refusals.MOVED.reason(
            address='its addresses',
            wanted=ids(spec),
            where=self._where(spec),
        )

    def _with_ids(self, spec: device_spec.Spec) -> list[str]:
        return [
            each.address
            for each in self.functions
            if spec.vendor_id in (None, each.vendor_id)
            and spec.product_id in (None, each.product_id)
        ]

    def _where(self, spec: device_spec.Spec) -> str:
        found = self._with_ids(spec)
        if not found:
            return 'which this host does not have'
        return f'which is at {_listed(found)} now'

    @staticmethod
    def _are_vfs(spec: device_spec.Spec, pf: pci.Function) -> bool:
        """Whether an entry has the ids of the VFs of a PF."""
        return spec.vendor_id in (None, pf.vendor_id) and (
            spec.product_id == sriov.vf_product_id(pf.address)
        )


def ids(spec: device_spec.Spec) -> str:
    """The ids of an entry, vendor:product."""
    return f'{spec.vendor_id or "*"}:{spec.product_id or "*"}'


def _listed(addresses: list[str]) -> str:
    text = ', '.join(addresses[:_MOST])
    more = len(addresses) - _MOST
    return f'{text} and {more} more' if more > 0 else text

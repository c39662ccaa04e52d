# SPDX-License-Identifier: Apache-2.0

"""The slots of FPGAs that device_spec says how to program."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator

from os_acc import driver as driver_base
from os_acc import exception
from os_acc import programming
from os_acc.kernel import chip as chips
from os_acc.kernel import pci
from os_acc.kernel import sriov
from os_acc.objects import device as device_objects
from os_acc.programming import programmers
from os_acc.spec import device_spec


class Programmable(device_spec.Specs):
    """The entries of device_spec whose devices are programmed."""

    def find(self, function: pci.Function) -> device_spec.Spec | None:
        spec = super().find(function)
        return spec if spec is not None and spec.programmer else None

    def may_name(self, address: str) -> bool:
        only = tuple(each for each in self.entries if each.programmer)
        return device_spec.Specs(only).may_name(address)

    def check(self, function: pci.Function) -> device_spec.Spec:
        spec = self.find(function)
        if spec is None:
            raise exception.DeviceNotFound(
                wanted=f'PCI function {function.address}',
                reason='no entry of [os_acc] device_spec says how it is '
                'programmed',
            )
        return spec

    def check_held(self, function: pci.Function) -> device_spec.Spec:
        """The entry for a device that a VAN has already. See held()."""
        spec = self.held(function)
        return spec if spec.programmer else self.check(function)


class Unreadable(device_spec.Unreadable, Programmable):
    """See device_spec.Unreadable."""


class Slots:
    """The slots of one device.

    The chip of the device is looked for once.

    :param parent: the function that is programmed, which is not a VF
    :ivar chip: the chip that the function belongs to
    """

    def __init__(
        self,
        driver: driver_base.DriverBase,
        parent: pci.Function,
        spec: device_spec.Spec,
    ) -> None:
        self._driver, self._parent, self._spec = driver, parent, spec
        self.chip = chips.of(parent)

    def all(self) -> list[programming.Slot]:
        """The slots of all regions."""
        return [self.of_region(each) for each in self.regions()]

    def of_function(self, address: str) -> programming.Slot:
        """The slot that a function gives access to."""
        return self.of_region(self.region_of(address))

    def of_region(self, region: str) -> programming.Slot:
        """The slot of a region.

        :param region: programming.WHOLE: the device as a whole
        """
        functions = self.chip.functions
        vfs = self._parent.vf_addresses
        if region != programming.WHOLE and int(region) < len(vfs):
            functions = (vfs[int(region)],)
        address = self._parent.address
        return programming.Slot(
            self._driver,
            address,
            region,
            programmers.make(address, region, self._spec),
            self._spec.persistent,
            self.chip,
            functions,
            tuple(f'pci/{each}' for each in self._handles(functions)),
        )

    def _handles(self, functions: Iterable[str]) -> Iterator[str]:
        """The functions in a list that guests get: not a PF with VFs."""
        for address in functions:
            found = pci.find(address)
            if found is not None and not found.vf_addresses:
                yield address

    def regions(self) -> list[str]:
        """The regions that are programmed separately."""
        if self._spec.programming == device_objects.PROGRAMMING_SINGLE:
            return [programming.WHOLE]
        return [str(number) for number in range(len(self.vfs()) or 1)]

    def region_of(self, address: str) -> str:
        """The region that a function gives access to: VF n to region n."""
        if self._spec.programming == device_objects.PROGRAMMING_SINGLE:
            return programming.WHOLE
        if address == self._parent.address:
            return '0'
        return str(self.vfs().index(address))

    def vfs(self) -> list[str]:
        """The VFs of the function, or those that it will have, by number."""
        return vfs(self._parent, self._spec)


def vfs(parent: pci.Function, spec: device_spec.Spec) -> list[str]:
    """The VFs of a PF, or those that it will have, by number."""
    found = parent.vf_addresses
    if not parent.is_pf or spec.num_vfs is None:
        return found
    # Another process may be creating them now.
    future = sriov.future_addresses(parent.address, spec.num_vfs)
    return max(found, future, key=len)

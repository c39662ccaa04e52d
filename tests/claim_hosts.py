# SPDX-License-Identifier: Apache-2.0

"""Generated hosts on which the rule of os_acc.claims meets the older rules.

A host is built once in the generated kernel, and does not change. What reads
its files is remembered, so that thousands of situations can be asked of it.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import itertools
import pathlib
from typing import Any

import claim_memory
import claim_vans
import older_rules

from os_acc.availability import companions
from os_acc.claims import facts
from os_acc.claims import reader
from os_acc.kernel import device_files
from os_acc.kernel import file_place
from os_acc.kernel import idxd
from os_acc.kernel import mdev
from os_acc.kernel import pci
from os_acc.kinds.devfile import groups as file_groups
from os_acc.kinds.idxd import names as idxd_names
from os_acc.kinds.npu import names as npu_names
from os_acc.powervm import inventory
from os_acc.refusals import report_refusals
from os_acc.spec import address as spec_address
from os_acc.spec import device_spec
from os_acc.testing import kernel

FPGA, NIC, GPU, SOUND = 0x120000, 0x020000, 0x030200, 0x040300


def _of_vf(parent: str) -> str:
    found = pci.find(parent) if pci.is_address(parent) else None
    return 'mdev of a VF' if found is not None and found.is_vf else ''


class Host:
    """A generated host with its options."""

    def __init__(self, root: pathlib.Path, patch: Any) -> None:
        self.kernel = kernel.Kernel(root)
        self.kernel.install(patch)
        self._patch = patch
        self._slot = 0x10
        self._minor = itertools.count()
        self._made: list[tuple[Any, ...]] = []
        self._specs: list[device_spec.Spec] = []
        self.slots: dict[str, inventory.Slot] = {}
        self.options: list[claim_vans.Option] = []

    # Building.

    def slot(self) -> str:
        self._slot += 1
        return f'0000:{self._slot:02x}:00'

    def function(
        self, address: str, group: int | None = None, **values: Any
    ) -> pathlib.Path:
        values = {'ids': '8086:4940', 'pci_class': FPGA, **values}
        return self.kernel.add_function(address, group=group, **values)

    def vfs(
        self, pf: str, groups: Sequence[int | None], **values: Any
    ) -> list[str]:
        """Make VFs, from function number 4 on; of a PF .1, from 6 on."""
        found = []
        for number, group in enumerate(groups):
            address = f'{pf[:-1]}{4 + 2 * int(pf[-1]) + number}'
            self.function(address, group, physfn=pf, **values)
            self.kernel.file(pf, f'virtfn{number}').symlink_to(
                self.kernel.pci / 'devices' / address
            )
            found.append(address)
        (self.kernel.file(pf, 'sriov_numvfs')).write_text(f'{len(groups)}\n')
        return found

    def behind(self, above: str, group: int | None) -> str:
        """Make a function in the PCI domain of another, as VMD does."""
        address = f'1{above[1:]}'
        directory = self.function(address, group)
        inner = directory.parent / above / f'pci1000{above[0]}:00'
        inner.mkdir(parents=True, exist_ok=True)
        place = inner / address
        self._move(address, directory, place)
        return address

    def below(self, bridge: str, address: str) -> None:
        """Move a function below a bridge."""
        devices = self.kernel.pci / 'devices'
        directory = (devices / address).resolve()
        self._move(address, directory, (devices / bridge).resolve() / address)

    def _move(
        self, address: str, directory: pathlib.Path, place: pathlib.Path
    ) -> None:
        directory.rename(place)
        name = (place / 'iommu_group').readlink().name
        for link in (
            self.kernel.pci / 'devices' / address,
            self.kernel.sys / f'kernel/iommu_groups/{name}/devices' / address,
        ):
            link.unlink()
            link.symlink_to(place)

    def number(self, directory: str, subsystem: str, kind: str = 'c') -> str:
        """Show a device file. Give its number."""
        text = f'{240 + (kind == "b")}:{next(self._minor)}'
        directory = directory.replace('pci0000:00', self.kernel.bus)
        path = self.kernel.sys / 'devices' / directory
        path.mkdir(parents=True, exist_ok=True)
        (path / 'dev').write_text(f'{text}\n')
        if not (path / 'subsystem').is_symlink():
            (path / 'subsystem').symlink_to(
                self.kernel.sys / 'class' / subsystem
            )
        links = self.kernel.sys / {'c': 'dev/char', 'b': 'dev/block'}[kind]
        links.mkdir(parents=True, exist_ok=True)
        (links / text).symlink_to(path)
        if kind == 'b':
            name = directory.rpartition('/')[2]
            (self.kernel.sys / 'class/block' / name).symlink_to(path)
        return f'{kind} {text}'

    def queues(self, function: pathlib.Path, enabled: bool, most: int) -> None:
        """Show a DSA with work queues."""
        values: dict[str, object] = {
            'state': 'enabled' if enabled else 'disabled',
            'configurable': 1,
            'pasid_enabled': 1,
            'max_work_queues': most,
            'max_work_queues_size': 32 * most,
            'max_groups': 2,
            'cdev_major': 240,
            'engine0.0/group_id': 0,
        }
        for number in range(most):
            values |= {
                f'wq0.{number}/size': 32,
                f'wq0.{number}/group_id': 0,
            }
        for name, value in values.items():
            file = function / 'dsa0' / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f'{value}\n')

    def entry(self, **values: Any) -> device_spec.Spec:
        made = device_spec.Spec(**values)
        self._specs.append(made)
        return made

    def named(self, address: str, **values: Any) -> device_spec.Spec:
        """An entry for one function."""
        return self.entry(
            address=spec_address.Address(complete=address), **values
        )

    # Options: they are made once the host is complete.

    def offer(
        self, make: Callable[..., claim_vans.Option], *values: Any
    ) -> None:
        self._made.append((make, *values))

    def finish(self) -> None:
        """Read the host, and remember what is read."""
        claim_memory.remember(self._patch)
        self.specs = device_spec.Specs(tuple(self._specs))
        for make, *values in self._made:
            self.options.append(make(*values))
        self.facts = reader.Reader(
            self.specs,
            slots={
                address: facts.Slot(
                    each.bus, bool(each.handle.bus_grp_required)
                )
                for address, each in self.slots.items()
            },
        )

    def pci(
        self, kind: str, address: str, device: str = ''
    ) -> claim_vans.Option:
        function = pci.get(address)
        spec = self.specs.first(function)

        def refused(given: claim_vans.Asked) -> claim_vans.Reasons:
            return older_rules.of_function(
                function, spec, given.taker, given.holders
            )

        device = device or function.parent
        found = companions.of(function, spec, device_spec.BIND_OS_ACC)
        return claim_vans.Option(
            kind,
            f'pci/{address}',
            device,
            refused,
            companions=[each.address for each in found],
        )

    def vgpu(self, address: str) -> claim_vans.Option:
        vf = pci.get(address)

        def refused(given: claim_vans.Asked) -> claim_vans.Reasons:
            return older_rules.taken_by_others(vf, given.taker, given.holders)

        return claim_vans.Option('vgpu', f'pci/{address}', vf.parent, refused)

    def mdev(self, uuid: str, parent: str) -> claim_vans.Option:
        there = mdev.find(uuid) is not None

        def refused(given: claim_vans.Asked) -> claim_vans.Reasons:
            return older_rules.of_mdev(
                uuid, parent, there, given.taker, given.holders
            )

        note = _of_vf(parent)
        return claim_vans.Option(
            'mdev', f'mdev/{uuid}', parent, refused, note=note
        )

    def file(
        self,
        kind: str,
        numbers: Sequence[str],
        most: int | None = None,
        name: str = '',
    ) -> list[claim_vans.Option]:
        """An accelerator of device files; its shares, if it is shared.

        :param name: which it had when it was given out; empty: as it has now
        """
        nodes = []
        for text in numbers:
            number = device_files.parse(text[2:], text[0])
            nodes.append(
                device_files.Node(f'/dev/{text[2:]}', number, 0, 0, 0o660, 1)
            )
        place = file_place.of(nodes[0].number)
        place = dataclasses.replace(place, name=name or place.name)
        behind = pci.find(place.function) if place.function else None
        found = file_groups.Accelerator(
            place,
            device_spec.Spec(
                devices=('/dev/x',), shared=most, keeps_data=True
            ),
            tuple(nodes),
            function_spec=self.specs.first(behind) if behind else None,
        )
        device = found.name
        if behind is not None:
            device = behind.parent
        for uuid in () if behind is not None else place.mdevs:
            if (parent := mdev.find(uuid)) is not None:
                device = parent.parent

        def refused(given: claim_vans.Asked) -> claim_vans.Reasons:
            return older_rules.of_file(
                found, given.taker, given.holders, given.numbers
            )

        handles = [f'file/{found.name}']
        if most is not None:
            handles = [f'{handles[0]}/{each}' for each in range(most + 1)]
        return [
            claim_vans.Option(
                kind,
                each,
                device,
                refused,
                tuple(numbers),
                most or 0,
                _of_vf(device) if place.mdevs else '',
                found,
            )
            for each in handles
        ]

    def files(
        self,
        kind: str,
        *numbers: str,
        shares: Sequence[int | None] = (None,),
        name: str = '',
    ) -> None:
        for most in shares:
            self._made.append((self._file_options, kind, numbers, most, name))

    def _file_options(
        self, kind: str, numbers: Sequence[str], most: int | None, name: str
    ) -> claim_vans.Option:
        *more, last = self.file(kind, numbers, most, name)
        self.options += more
        return last

    def queue(self, address: str, number: int, file: str) -> claim_vans.Option:
        name = idxd_names.name_of(address, number)
        device = idxd.find(address)
        assert device is not None
        found = device_files.parse(file[2:], file[0]) if file else None

        def refused(given: claim_vans.Asked) -> claim_vans.Reasons:
            return older_rules.of_queue(
                device,
                number,
                found,
                given.taker,
                given.holders,
                given.numbers,
            )

        return claim_vans.Option(
            'queue', f'file/{name}', address, refused, (file,) if file else ()
        )

    def npu(self, address: str, file: str) -> claim_vans.Option:
        """An accelerator of the class accel. It has no older rule of its own.

        :param file: the number of its device file
        """
        name, function = npu_names.name_of(address), pci.get(address)
        number = device_files.parse(file[2:], file[0])

        def refused(given: claim_vans.Asked) -> claim_vans.Reasons:
            yield from older_rules.taken_by_others(
                function, given.taker, given.holders
            )
            yield from older_rules.number_given(
                number, name, given.taker, given.numbers
            )

        return claim_vans.Option(
            'npu', f'file/{name}', address, refused, (file,)
        )

    def namespace(self, wwn: str) -> claim_vans.Option:
        def refused(given: claim_vans.Asked) -> claim_vans.Reasons:
            return older_rules.of_namespace(wwn, given.taker, given.holders)

        return claim_vans.Option('namespace', f'block/{wwn}', wwn, refused)

    def io_slot(self, slot: inventory.Slot) -> claim_vans.Option:
        self.slots[slot.address] = slot

        def refused(given: claim_vans.Asked) -> claim_vans.Reasons:
            # As drivers.drc
            for other in self.slots.values():
                for each in given.holders.on(other.address):
                    taken = report_refusals.TAKEN.reason(
                        instance=each.instance_uuid,
                        what=each.handle,
                        van=each.van_uuid,
                    )
                    if each.van_uuid == given.taker.van_uuid:
                        continue
                    if other is slot or (
                        each.instance_uuid != given.taker.instance_uuid
                        and other in inventory.group(slot, self.slots.values())
                    ):
                        yield taken

        handle = slot.handle.identity
        return claim_vans.Option('slot', handle, slot.address, refused)

    @staticmethod
    def plain(kind: str, handle: str, device: str) -> claim_vans.Option:
        """What only the journal's index keeps from another VAN."""
        return claim_vans.Option(kind, handle, device, lambda given: iter(()))

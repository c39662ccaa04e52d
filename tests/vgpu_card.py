# SPDX-License-Identifier: Apache-2.0

"""An NVIDIA card whose VFs have vGPU types, on the generated kernel.

It behaves as NVIDIA's driver does: creatable_vgpu_types of a VF lists what
fits now, and nothing while the VF has a type. A write of a type that does not
fit is accepted, and reads back as 0.
"""

from __future__ import annotations

from collections.abc import Mapping
import pathlib
import threading

from os_acc.kernel import vgpu_cards
from os_acc.testing.kernel import Kernel


class Card:
    """A PF, and the VFs that sriov-manage makes.

    :param types: name and size in GB of each type, by its id
    :param size: of the framebuffer, in GB
    :param vfs: how many VFs the card has
    :param mixed: mixed-size mode is on
    """

    def __init__(
        self,
        kernel: Kernel,
        pf: str,
        types: Mapping[int, tuple[str, int]],
        size: int,
        vfs: int,
        mixed: bool = False,
        ids: str = '10de:2235',
    ) -> None:
        self.kernel, self.pf, self.ids = kernel, pf, ids
        self.types, self.size, self.mixed = types, size, mixed
        self._lock = threading.RLock()
        bus = pf.rpartition('.')[0].rpartition(':')[0]
        self.vfs = [
            f'{bus}:{number >> 3:02x}.{number & 7}'
            for number in range(4, 4 + vfs)
        ]
        self.path = kernel.add_function(
            pf,
            ids,
            0x030200,
            'nvidia',
            numa=0,
            files={'sriov_totalvfs': f'{vfs}\n', 'sriov_numvfs': '0\n'},
        )
        kernel.handlers['current_vgpu_type'] = _write
        _CARDS[str(kernel.root), pf] = self
        self.sriov_manage()

    def sriov_manage(self) -> None:
        """Make the VFs. Their types are unset."""
        for number, vf in enumerate(self.vfs):
            self.kernel.add_function(
                vf,
                self.ids,
                0x030200,
                physfn=self.pf,
                files={
                    'nvidia/current_vgpu_type': '0\n',
                    'nvidia/creatable_vgpu_types': '',
                },
            )
            self.kernel.bind(vf, 'nvidia')
            (self.path / f'virtfn{number}').symlink_to(self._directory(vf))
        self.show()

    def reboot(self) -> None:
        """Reboot the host: no VF is left until sriov-manage is run."""
        for number, vf in enumerate(self.vfs):
            self.kernel.remove_function(vf)
            (self.path / f'virtfn{number}').unlink()
        self.kernel.reboot()

    def kind_of(self, vf: str) -> int:
        return int(self._file(vf, 'current_vgpu_type').read_text())

    def preset(self, vf: str, number: int) -> None:
        """Set a type as an operator does, not through os-acc."""
        self.write(vf, number)
        assert self.kind_of(vf) == number

    def write(self, vf: str, number: int) -> None:
        with self._lock:
            fits = number in self.possible(vf)
            text = f'{number if fits else 0}\n'
            _put(self._file(vf, 'current_vgpu_type'), text)
            self.show()

    def possible(self, vf: str) -> list[int]:
        """The types that fit into the card beside those of the other VFs."""
        if self.kind_of(vf):
            return []
        sizes = [self.types[k][1] for v in self.vfs if (k := self.kind_of(v))]
        return [
            number
            for number, (_, size) in self.types.items()
            if size <= self.size - sum(sizes)
            and (self.mixed or set(sizes) <= {size})
        ]

    def show(self) -> None:
        for vf in self.vfs:
            lines = ['ID    : vGPU Name'] + [
                f'{number:<5} : {self.types[number][0]}'
                for number in self.possible(vf)
            ]
            path = self._file(vf, 'creatable_vgpu_types')
            _put(path, '\n'.join(lines) + '\n')

    def install_config(self, monkeypatch) -> None:
        """Install the file of the vGPU manager that describes the card."""
        kinds = ''.join(
            f'<vgpuType id="{number}" name="{name}" class="Quadro"/>'
            for number, (name, _) in self.types.items()
        )
        most = ''.join(
            f'<supportedVgpu vgpuId="{number}"><maxVgpus>{self.size // size}'
            '</maxVgpus></supportedVgpu>'
            for number, (_, size) in self.types.items()
        )
        vendor, product = self.ids.split(':')
        path = self.kernel.root / 'vgpuConfig.xml'
        path.write_text(
            f'<vgpuconfig>{kinds}<pgpu hostVgpuMode="sriov"><devId '
            f'vendorId="0x{vendor}" deviceId="0x{product.upper()}"/>{most}'
            '</pgpu></vgpuconfig>'
        )
        monkeypatch.setattr(vgpu_cards, 'PATH', str(path))

    def _directory(self, vf: str) -> pathlib.Path:
        return self.kernel.pci / 'devices' / vf

    def _file(self, vf: str, name: str) -> pathlib.Path:
        return self._directory(vf) / 'nvidia' / name


def _put(path: pathlib.Path, text: str) -> None:
    """Write it at once, as the kernel does: nobody reads half of it."""
    new = path.with_suffix('.new')
    new.write_text(text)
    new.replace(path)


_CARDS: dict[tuple[str, str], Card] = {}


def _write(path: pathlib.Path, text: str) -> None:
    """The driver's part in a write to current_vgpu_type."""
    vf = path.parent.parent
    for card in _CARDS.values():
        if vf.name in card.vfs and card.kernel.root in path.parents:
            card.write(vf.name, int(text))

# SPDX-License-Identifier: Apache-2.0

"""A DFL card in the generated kernel of os_acc.testing.

It behaves as Linux 6.1 does with the simulated card of tests/lab/dfl: a port
that is given back has no driver, and a port whose programming has failed stays
in reset until the PF is bound again.
"""

from __future__ import annotations

import errno
import json
import os
import pathlib
import shutil
import struct
from typing import Any

from os_acc import exception
from os_acc.kernel import dfl
from os_acc.kernel import sysfs
from os_acc.privileged.fpga import dfl_ioctl
from os_acc.testing import kernel as kernel_module

PF = '0000:3b:00.0'
VFS = ('0000:3b:00.1', '0000:3b:00.2')
INTERFACE = '9926ab6d6c925a68aabca7d84c545738'
BLANK = 'd8424dc4a4a3c413f89e433683f9040b'
DRIVER = 'dfl-pci'


def image(
    function_id: str, interface: str = INTERFACE, payload: bytes = b'payload'
) -> bytes:
    """Make an image in OPAE's format GBS."""
    return packed(
        {
            'version': 1,
            'afu-image': {
                'magic-no': 488605312,
                'interface-uuid': interface,
                'accelerator-clusters': [
                    {'accelerator-type-uuid': function_id}
                ],
            },
        },
        function_id.encode() + payload,
    )


def packed(metadata: Any, payload: bytes) -> bytes:
    text = json.dumps(metadata).encode()
    return (
        b'XeonFPGA\xb7GBSv001' + struct.pack('<I', len(text)) + text + payload
    )


class Card:
    """The card. Install it after the kernel.

    :ivar calls: the ioctls, in their order: name and port
    :ivar fault: the error of the next programming
    :ivar stuck: the ports that stay in reset
    """

    def __init__(
        self,
        kernel: kernel_module.Kernel,
        ports: int = 2,
        address: str = PF,
        ids: str = '8086:bcce',
    ) -> None:
        self.kernel, self.ports, self.address = kernel, ports, address
        self.calls: list[tuple[str, int]] = []
        self.fault: exception.DeviceError | None = None
        self.stuck: set[int] = set()
        self.functions = [BLANK] * ports
        self._state, self._status = 'power off', ''
        self._numbers: dict[str, int] = {}
        self._next = 0
        self.path = kernel.add_function(
            address, ids, driver=DRIVER, totalvfs=ports
        )
        self._show()
        kernel.handlers['bind'] = self.bind
        kernel.handlers['unbind'] = self._unbind
        kernel.handlers['sriov_numvfs'] = self._set_vfs

    def install(self, patch: Any) -> None:
        for name in ('program', 'release', 'assign'):
            patch.setattr(dfl_ioctl, name, getattr(self, name))
        patch.setattr(sysfs, 'read', self._reader(sysfs.read))

    def _reader(self, read: Any) -> Any:
        def reading(path: str) -> str | None:
            if path.endswith('/afu_id'):
                number = self._numbers.get(os.path.basename(path[:-7]))
                if number in self.stuck:
                    kernel_module.fail(errno.EBUSY)
            found: str | None = read(path)
            return found

        return reading

    @property
    def region(self) -> pathlib.Path:
        return self.path / 'fpga_region/region0'

    def _show(self) -> None:
        fme = self.region / 'dfl-fme.0'
        self._put(fme / 'ports_num', self.ports)
        self._put(fme / 'bitstream_id', '0x23000410010310')
        for number in range(self.ports):
            directory = f'dfl-fme-region.{number + 1}/fpga_region/region'
            self._put(fme / f'{directory}{number + 1}/compat_id', INTERFACE)
        self._show_manager()
        for number in range(self.ports):
            self._show_port(number)

    def _show_manager(self) -> None:
        directory = self.region / 'dfl-fme.0/dfl-fme-mgr.0/fpga_manager/fpga0'
        self._put(directory / 'state', self._state)
        self._put(directory / 'status', self._status)
        link = self.kernel.sys / 'class/fpga_manager/fpga0'
        link.parent.mkdir(exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(directory)

    def _show_port(self, number: int, bound: bool = True) -> None:
        name = f'dfl-port.{number}'
        self._numbers[name] = number
        directory = self.region / name
        directory.mkdir(parents=True)
        if bound:
            self._put(directory / 'id', number)
            self._put(directory / 'afu_id', self.functions[number])

    @staticmethod
    def _put(path: pathlib.Path, text: object) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'{text}\n')

    def _port(self, number: int) -> pathlib.Path:
        return self.region / f'dfl-port.{number}'

    # What the kernel does.

    def _step(self, name: str, number: int, act: Any) -> None:
        self.calls.append((name, number))
        self.kernel.step(f'ioctl/{name}', str(number), act)

    def program(
        self, card: dfl.Card, port: int, data: bytearray, offset: int
    ) -> None:
        self._step('program', port, lambda: self._program(port, data, offset))

    def _program(self, port: int, data: bytearray, offset: int) -> None:
        fault, self.fault = self.fault, None
        if fault is not None:
            self.stuck.add(port)
            self._state = 'write complete error'
            self._status = 'reconfig CRC error'
            self._show_manager()
            raise fault
        self._state, self._status = 'operating', ''
        self._show_manager()
        self.functions[port] = bytes(data[offset : offset + 36]).decode()
        self.functions[port] = self.functions[port].replace('-', '')[:32]
        if self._port(port).exists():
            self._put(self._port(port) / 'afu_id', self.functions[port])

    def release(self, card: dfl.Card, port: int) -> None:
        def act() -> None:
            assert self._port(port).exists()
            shutil.rmtree(self._port(port))

        self._step('release', port, act)

    def assign(self, card: dfl.Card, port: int) -> None:
        def act() -> None:
            assert not list(self.path.glob('virtfn*'))
            if not self._port(port).exists():
                self._show_port(port, bound=False)

        self._step('assign', port, act)

    def make_vfs(self, number: int) -> None:
        """Make VFs with the first ports, as an operator does."""
        for port in range(number):
            shutil.rmtree(self._port(port))
        self.kernel.write(f'{self.path}/sriov_numvfs', str(number))

    def reboot(self) -> None:
        """Reboot the host. The card loses its functions."""
        self.kernel.reboot()
        self.functions = [BLANK] * self.ports
        self.stuck.clear()
        shutil.rmtree(self.path / 'fpga_region')
        self._show()

    def _set_vfs(self, path: pathlib.Path, text: str) -> None:
        address = path.parent.name
        if address == self.address and int(text):
            released = self.ports - len(list(self.region.glob('dfl-port.*')))
            if int(text) != released:
                kernel_module.fail(errno.EINVAL)
        self.kernel.built_in(path, text)

    def bind(self, path: pathlib.Path, text: str) -> None:
        self.kernel.built_in(path, text)
        if text == self.address and path.parent.name == DRIVER:
            self.stuck.clear()
            self._show()

    def _unbind(self, path: pathlib.Path, text: str) -> None:
        if text == self.address and path.parent.name == DRIVER:
            self.kernel.built_in(self.path / 'sriov_numvfs', '0')
            shutil.rmtree(self.path / 'fpga_region')
        self.kernel.built_in(path, text)

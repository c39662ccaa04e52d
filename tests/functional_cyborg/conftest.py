# SPDX-License-Identifier: Apache-2.0

"""A host of files for Cyborg's real drivers, whose paths are fixed.

The helper runs in a mount namespace of its own, by the option ``python``:
there /sys is the generated tree, and /usr/bin/fpgaconf and
/opt/xilinx/xrt/bin/xbmgmt are executables of the test. Nothing of the machine
changes. It takes root.
"""

from __future__ import annotations

from collections.abc import Iterator
import pathlib
import sys
from typing import Any
import uuid

import cyborg_host
import pytest

import os_acc
from os_acc import objects
from os_acc.privileged import privsep
from os_acc.testing.kernel import Kernel

INTEL = '0000:07:00.0'
INTEL_VFS = ['0000:07:00.1', '0000:07:00.2']
FAR = '0001:07:00.0'
XILINX = '0000:3b:00.0'
XILINX_USER = '0000:3b:00.1'
QAT = '0000:3d:00.0'
QAT_VFS = ['0000:3d:00.1', '0000:3d:00.2']
NIC = '0000:18:00.0'
NIC_VFS = ['0000:18:00.1', '0000:18:00.2']
GPU = '0000:af:00.0'
VGPU = 'nvidia-223'

_PYTHON = """\
#!/bin/sh -e
exec unshare --mount sh -euc '
    mount --bind "$0/host/sys" /sys
    mount -t overlay overlay -o "lowerdir=$0/usr-bin:/usr/bin" /usr/bin
    mount -t overlay overlay -o "lowerdir=$0/opt:/opt" /opt
    exec "$@" {redirect}
' {root} {python} {options} "$@"
"""

# What both tools do: note the arguments, then what the test wants.
_TOOL = """\
#!/bin/sh -e
for each; do printf '%s\\n' "$each"; done > {root}/arguments.new
cat {root}/arguments.new >> {root}/arguments
image=$(printf '%s\\n' "$@" | tail -n 1)
case $(cat {root}/behaviour) in
fail) echo 'the tool says no' >&2; exit 3 ;;
flood) yes again | head -c 2G ;;
hang)
    sleep 600 &
    echo "$PPID $$ $!" > {root}/pids.new
    mv {root}/pids.new {root}/pids
    wait ;;
esac
case $1 in --bus) cat "$image" > {afu} ;; esac
"""


class Host:
    """A host, and what its vendors' tools are to do."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root = root
        self.kernel = Kernel(root / 'host')
        self.add(INTEL, '8086:09c4', 0x120000, 'fpga', totalvfs=2)
        numvfs = self.kernel.pci / 'devices' / INTEL / 'sriov_numvfs'
        self.kernel.write(str(numvfs), '2')
        self.afu = self.add_fpga(INTEL)
        self.add(FAR, '8086:09c4', 0x120000, totalvfs=1)
        self.add(XILINX, '10ee:abcd', 0x120000, 'xclmgmt')
        self.add(XILINX_USER, '10ee:abcd', 0x120000, 'xocl')
        self.add_pf(QAT, '8086:37c8', 0x0B4000, 'c6xx', vfs='0x37c9')
        self.add_pf(
            NIC, '8086:1572', 0x020000, 'i40e', vfs='0x154c', net='eth9'
        )
        path = self.add(GPU, '10de:1eb8', 0x030200, 'nvidia')
        self.kernel.add_mdev_parent(path, {VGPU: 1, 'nvidia-224': 2}, 2)
        for pci in (self.kernel.pci / 'devices').iterdir():
            self.make_readable(pci.name)
        self.behave('work')
        for name in ('usr-bin/fpgaconf', 'opt/xilinx/xrt/bin/xbmgmt'):
            self.executable(name, _TOOL, root=root, afu=self.afu)
        self.options()
        (root / 'cyborg.conf').write_text(
            f'[gpu_devices]\nenabled_vgpu_types = {VGPU}\n'
            f'[vgpu_{VGPU}]\ndevice_addresses = {GPU}\n'
        )

    def add(self, address: str, ids: str, *args: Any, **kwargs: Any) -> Any:
        return self.kernel.add_function(address, ids, *args, **kwargs)

    def add_pf(
        self, address: str, *args: Any, vfs: str, **kwargs: Any
    ) -> None:
        """Add a PF with two VFs, whose product id is another one."""
        path = self.add(address, *args, totalvfs=2, **kwargs)
        self.kernel.write(str(path / 'sriov_numvfs'), '2')
        for each in path.glob('virtfn*'):
            (each / 'device').write_text(f'{vfs}\n')

    def reboot(self) -> None:
        """Reboot the host; its services make the VFs again."""
        self.kernel.reboot()
        for pf in (INTEL, QAT, NIC):
            path = self.kernel.pci / 'devices' / pf / 'sriov_numvfs'
            self.kernel.write(str(path), '2')
        os_acc.initialize(reset=True)

    def make_readable(self, address: str) -> None:
        """For lspci, too."""
        path = self.kernel.pci / 'devices' / address
        ids = [(path / name).read_text()[2:6] for name in ('vendor', 'device')]
        config = b''.join(bytes.fromhex(each)[::-1] for each in ids)
        number = int((path / 'class').read_text(), 16)
        config += bytes(5) + number.to_bytes(3, 'little')
        (path / 'config').write_bytes(config + bytes(64 - len(config)))
        (path / 'resource').write_text('0x0 0x0 0x0\n' * 7)
        (path / 'irq').write_text('0\n')
        (path / 'uevent').write_text(f'PCI_SLOT_NAME={address}\n')

    def add_fpga(self, address: str) -> pathlib.Path:
        """What Intel's driver for FPGAs shows. Returns its afu_id."""
        name = 'intel-fpga-dev.0'
        path = self.kernel.pci.resolve() / 'devices' / address
        directory = path.resolve() / 'fpga' / name
        (directory / 'intel-fpga-port.0').mkdir(parents=True)
        (directory / 'intel-fpga-fme.0/pr').mkdir(parents=True)
        (directory / 'intel-fpga-fme.0/pr/interface_id').write_text('f00d\n')
        afu = directory / 'intel-fpga-port.0/afu_id'
        afu.write_text('0000\n')
        links = self.kernel.sys / 'class/fpga'
        links.mkdir()
        (links / name).symlink_to(directory)
        return afu

    def executable(self, name: str, text: str, **values: Any) -> pathlib.Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(**values))
        path.chmod(0o755)
        return path

    def options(self, *options: str, redirect: str = '') -> None:
        """Options for the helper's Python, and where its output goes."""
        self.python = self.executable(
            'python',
            _PYTHON,
            root=self.root,
            python=sys.executable,
            options=' '.join(options),
            redirect=redirect,
        )

    def behave(self, how: str) -> None:
        """How the tools shall: work, fail or hang."""
        (self.root / 'behaviour').write_text(how)

    def arguments(self) -> list[str]:
        """What the tools were given, all runs in one list."""
        path = self.root / 'arguments'
        return path.read_text().splitlines() if path.exists() else []

    def hanging(self) -> list[int]:
        """The helper, the tool and the tool's child, while they hang."""
        text = cyborg_host.wait_for(self.root / 'pids')
        (self.root / 'pids').unlink()
        return [int(pid) for pid in text.split()]

    def image(self, afu: str) -> str:
        path = self.root / f'{afu}.gbs'
        path.write_text(f'{afu}\n')
        return str(path)

    @staticmethod
    def enable(*names: str, **options: Any) -> None:
        options['enabled_drivers'] = list(names)
        for name, value in options.items():
            os_acc.CONF.set_override(name, value, 'os_acc_cyborg')

    @staticmethod
    def devices() -> dict[str, objects.Device]:
        found = [d for d in os_acc.get_devices() if d.driver == 'cyborg']
        return {device.address: device for device in found}

    @staticmethod
    def plug(*requests: objects.AcceleratorRequest) -> tuple[Any, list]:
        instance = objects.InstanceInfo(
            uuid=str(uuid.uuid4()), name='guest', project_id='project'
        )
        return instance, list(os_acc.plug(instance, list(requests)))


@pytest.fixture
def host(tmp_path, monkeypatch) -> Iterator[Host]:
    made = Host(tmp_path)
    made.kernel.install(monkeypatch)
    monkeypatch.setattr(os_acc, '_host', None)
    conf = os_acc.CONF
    conf([], project='os-acc', default_config_files=[])
    for name, value in {
        'state_path': str(tmp_path / 'state'),
        'plugin': 'noop',
        'drivers': ['cyborg'],
        'release_timeout': 0.2,
        'device_spec': ['{"address": "*"}'],
    }.items():
        conf.set_override(name, value, 'os_acc')
    conf.set_override('allowed_folders', [str(tmp_path)], 'os_acc_bitstreams')
    os_acc.initialize()
    made.enable(
        python=str(made.python),
        config_files=[str(tmp_path / 'cyborg.conf')],
    )
    before = made.kernel.snapshot()
    yield made
    for owner in {van.instance_uuid for van in os_acc.get_vans()}:
        os_acc.unplug(objects.InstanceInfo(uuid=owner, name='', project_id=''))
    assert made.kernel.snapshot() == before
    os_acc._host.close()
    privsep.run_here(False)
    for group in ('os_acc', 'os_acc_cyborg'):
        for option in conf._groups[group]._opts:
            conf.clear_override(option, group)


def pytest_report_header() -> str:
    from importlib import metadata

    return f'openstack-cyborg {metadata.version("openstack-cyborg")}'

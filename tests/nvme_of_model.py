# SPDX-License-Identifier: Apache-2.0

"""NVMe-oF targets, and the host's connections to them, in a tree of files.

``command.run`` is replaced: ``nvme`` and ``blkdiscard`` change the tree as
they and the kernel would. Two connectors can be used: the stand-in below, or
os-brick's own, which then reads the tree and calls the same commands.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import itertools
import json
import os
import pathlib
import shutil
from typing import Any

import os_acc
from os_acc import exception
from os_acc.kernel import sysfs
from os_acc.privileged import command
from os_acc.privileged import root_folder
from os_acc.privileged.nvme_of import commands as nvme_of_commands
from os_acc.testing import kernel as kernel_module

NQN = 'nqn.2024-01.org.example:fast'
PORTAL = ('192.0.2.1', '4420', 'tcp')


@dataclasses.dataclass
class Namespace:
    """A namespace of a target.

    :ivar wwid: as in sysfs
    :ivar data: what was written to it; empty: zeroes
    """

    wwid: str
    data: str = ''


@dataclasses.dataclass
class Target:
    """A subsystem.

    :ivar up: whether it answers
    :ivar secret: what a host must show
    """

    nqn: str
    namespaces: list[Namespace]
    portals: list[tuple[str, str, str]]
    up: bool = True
    secret: str | None = None


class Fabric:
    """The targets, and this host.

    :ivar commands: all commands that were run
    :ivar old_cli: nvme-cli is older than 2.6
    :ivar links: udev makes links
    :ivar multipath: the kernel's native multipathing is on
    """

    def __init__(self, kernel: kernel_module.Kernel) -> None:
        self.kernel = kernel
        self.targets: dict[str, Target] = {}
        self.commands: list[list[str]] = []
        self.old_cli = False
        self.links = True
        self.multipath = True
        self.blkdiscard_fails = False
        self._controllers = 4
        self._minor = 64
        self._heads: dict[str, str] = {}
        self.ctl = kernel.sys / 'devices/virtual/nvme-fabrics/ctl'
        self.subsystems = kernel.sys / 'devices/virtual/nvme-subsystem'
        for path in (
            self.ctl,
            self.subsystems,
            kernel.sys / 'class/nvme',
            kernel.sys / 'class/nvme-fabrics',
            kernel.sys / 'module/nvme_tcp',
            kernel.sys / 'module/nvme_core/parameters',
            kernel.root / 'dev/disk/by-id',
        ):
            path.mkdir(parents=True)
        (kernel.sys / 'class/nvme-fabrics/ctl').symlink_to(self.ctl)
        kernel.write_file('sys/module/nvme_core/parameters/multipath', 'Y\n')
        kernel.write_file('dev/nvme-fabrics', 'nqn=%s,dhchap_secret=%s\n')
        kernel.handlers['fast_io_fail_tmo'] = lambda path, text: (
            path.write_text(f'{text}\n'),
            None,
        )[1]

        kernel.handlers['delete_controller'] = lambda path, text: self._end(
            path.parent.name
        )

    def install(self, patch: Any) -> None:
        self._run = command.run
        patch.setattr(command, 'run', self.run)
        patch.setattr(
            nvme_of_commands, 'program', lambda name, package, device: name
        )
        patch.setattr(nvme_of_commands, 'connector', Connector)
        Connector.fabric = self
        # Each write of a note or of the record is a step, too.
        for name in ('write', 'delete'):
            act = getattr(root_folder.RootFiles, name)

            def step(files: Any, file: str, *text: str, act: Any = act) -> Any:
                if 'held' not in files.path('') and (
                    'connections' not in files.path('')
                ):
                    return act(files, file, *text)
                return self.kernel.step(
                    f'note/{file}', '', lambda: act(files, file, *text)
                )

            patch.setattr(root_folder.RootFiles, name, step)

    def real_brick(self, patch: Any) -> None:
        """Use os-brick's connector."""
        from os_brick.initiator.connectors import nvmeof
        import tenacity.nap

        def make(commands: Any, multipath: bool) -> Any:
            nvmeof.NVMeOFConnector.native_multipath_supported = self.multipath
            return nvmeof.NVMeOFConnector(
                root_helper='', use_multipath=multipath, execute=commands
            )

        patch.setattr(nvmeof, 'NVME_CTRL_SYSFS_PATH', f'{self.ctl}/')
        patch.setattr(
            nvmeof, 'BLK_SYSFS_PATH', f'{self.kernel.sys}/class/block/'
        )
        patch.setattr(tenacity.nap.time, 'sleep', lambda seconds: None)
        patch.setattr(nvme_of_commands, 'connector', make)
        path = str(self.kernel.root / 'run/brick-locks')
        os_acc.CONF.set_override('lock_path', path, 'os_brick')

    def target(
        self,
        *wwids: str,
        nqn: str = NQN,
        portals: Sequence[tuple[str, str, str]] = (PORTAL,),
    ) -> Target:
        made = Target(nqn, [Namespace(each) for each in wwids], list(portals))
        self.targets[nqn] = made
        return made

    # The commands.

    def run(
        self,
        device: str,
        words: Sequence[str],
        seconds: float,
        held: Sequence[int],
        output: Any = None,
    ) -> command.Output:
        """In the place of command.run()."""
        if words[0] not in ('nvme', 'blkdiscard'):
            return self._run(device, words, seconds, held, output)
        assert seconds > 0
        assert held
        self.commands.append(list(words))
        said = command.Output()
        try:
            if words[0] == 'blkdiscard':
                self._blkdiscard(words[-1])
            elif words[1] == 'connect':
                self._nvme_connect(list(words[2:]))
            else:
                assert words[:2] == ['nvme', 'ns-rescan']
        except OSError as err:
            raise exception.DeviceError(
                device=device,
                reason=f'{words[0]}: exit code 1: {err.strerror}',
                code=1,
            ) from err
        return said

    def _blkdiscard(self, path: str) -> None:
        block = self.kernel.sys / 'class/block' / os.path.basename(path)
        wwid = (block / 'wwid').read_text().strip()
        if self.blkdiscard_fails:
            raise OSError(5, 'I/O error')

        def act() -> None:
            self.namespace(wwid).data = ''

        self.kernel.step(f'blkdiscard/{wwid}', '', act)

    def namespace(self, wwid: str) -> Namespace:
        (found,) = (
            each
            for target in self.targets.values()
            for each in target.namespaces
            if each.wwid == wwid
        )
        return found

    def _nvme_connect(self, words: list[str]) -> None:
        short = dict(itertools.pairwise(words))
        long = dict(w[2:].split('=', 1) for w in words if w[:2] == '--')
        portal = (short['-a'], short['-s'], short['-t'])
        nqn, host = short['-n'], short['-q']
        assert host.endswith(long['hostid'])
        secret = None
        if 'config' in long:
            with open(long['config']) as file:
                (config,) = json.load(file)
            assert config['hostnqn'] == host
            assert config['hostid'] == long['hostid']
            secret = config['dhchap_key']
        assert not any('DHHC' in word for word in words)
        for each in self.connections():
            same = self.old_cli or each['host'] == host
            if same and (each['portal'], each['nqn']) == (portal, nqn):
                raise OSError(114, 'already connected')
        target = self.targets.get(nqn)
        if target is None or not target.up or portal not in target.portals:
            raise OSError(111, 'could not add new controller: refused')
        if target.secret != secret:
            raise OSError(13, 'could not add new controller: auth failed')
        self.connect(nqn, host, portal, secret)

    # What the kernel does.

    def connect(
        self,
        nqn: str,
        host: str,
        portal: tuple[str, str, str] = PORTAL,
        secret: str | None = None,
    ) -> str:
        """Make a connection. Returns its name."""
        self._controllers += 1
        name = f'nvme{self._controllers}'
        self.kernel.step(
            f'fabrics/{name}',
            nqn,
            lambda: self._connect(name, nqn, host, portal, secret),
        )
        return name

    def _connect(
        self,
        name: str,
        nqn: str,
        host: str,
        portal: tuple[str, str, str],
        secret: str | None,
    ) -> None:
        directory = self.ctl / name
        directory.mkdir()
        for file, text in {
            'transport': portal[2],
            'subsysnqn': nqn,
            'hostnqn': host,
            'hostid': host.rpartition(':')[2],
            'address': f'traddr={portal[0]},trsvcid={portal[1]}',
            'state': 'live',
            'reconnect_delay': '10',
            'fast_io_fail_tmo': 'off',
            'delete_controller': '',
            **({'dhchap_secret': secret} if secret else {}),
        }.items():
            (directory / file).write_text(f'{text}\n')
        (self.kernel.sys / 'class/nvme' / name).symlink_to(directory)
        number = sorted(self.targets).index(nqn)
        for place, each in enumerate(self.targets[nqn].namespaces, 1):
            self._show(directory, number + 4, place, each)

    def _show(
        self, directory: pathlib.Path, number: int, place: int, each: Namespace
    ) -> None:
        """Show a namespace of a connection."""
        if self.multipath:
            subsystem = self.subsystems / f'nvme-subsys{number}'
            subsystem.mkdir(exist_ok=True)
            link = subsystem / directory.name
            if not link.is_symlink():
                link.symlink_to(directory)
            path = directory / f'nvme{number}c{directory.name[4:]}n{place}'
            block = subsystem / f'nvme{number}n{place}'
        else:
            path = block = directory / f'{directory.name}n{place}'
        for there in dict.fromkeys((path, block)):
            there.mkdir(exist_ok=True)
            kind, _, text = each.wwid.partition('.')
            (there / 'wwid').write_text(f'{each.wwid}\n')
            if kind == 'uuid':
                (there / 'uuid').write_text(f'{text}\n')
            else:
                (there / 'nguid').write_text(
                    f'{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}'
                    f'-{text[20:]}\n'
                )
        link = self.kernel.sys / 'class/block' / block.name
        if link.is_symlink():
            return
        (block / 'holders').mkdir()
        self._minor += 1
        (block / 'dev').write_text(f'259:{self._minor}\n')
        (block / 'size').write_text('2048\n')
        link.symlink_to(block)
        (self.kernel.root / 'dev' / block.name).touch()
        by_id = self.kernel.root / 'dev/disk/by-id' / f'nvme-{each.wwid}'
        if self.links and not by_id.is_symlink():
            by_id.symlink_to(f'../../{block.name}')

    def end(self, name: str) -> None:
        """End a connection."""
        self.kernel.step(f'fabrics/{name}', 'end', lambda: self._end(name))

    def _end(self, name: str) -> None:
        (self.kernel.sys / 'class/nvme' / name).unlink()
        shutil.rmtree(self.ctl / name)
        for subsystem in list(self.subsystems.iterdir()):
            (subsystem / name).unlink(missing_ok=True)
            if not any(each.is_symlink() for each in subsystem.iterdir()):
                shutil.rmtree(subsystem)
        for link in list((self.kernel.sys / 'class/block').iterdir()):
            if not link.exists():
                link.unlink()
                (self.kernel.root / 'dev' / link.name).unlink()
        for link in list((self.kernel.root / 'dev/disk/by-id').iterdir()):
            if not link.exists():
                link.unlink()

    def connections(self) -> list[dict[str, Any]]:
        """What the targets see."""
        found = []
        for directory in sorted(self.ctl.iterdir()):
            text = (directory / 'address').read_text().strip()
            parts = dict(part.split('=') for part in text.split(','))
            portal = parts['traddr'], parts['trsvcid']
            transport = (directory / 'transport').read_text().strip()
            found.append(
                {
                    'name': directory.name,
                    'nqn': (directory / 'subsysnqn').read_text().strip(),
                    'host': (directory / 'hostnqn').read_text().strip(),
                    'portal': (*portal, transport),
                }
            )
        return found

    def lose(self, nqn: str = NQN, state: str = 'connecting') -> None:
        """The connections to a target are lost; the kernel tries again."""
        self.targets[nqn].up = state == 'live'
        for directory in self.ctl.iterdir():
            if (directory / 'subsysnqn').read_text().strip() == nqn:
                (directory / 'state').write_text(f'{state}\n')

    def reboot(self) -> None:
        for directory in list(self.ctl.iterdir()):
            self._end(directory.name)
        self.kernel.reboot()

    def block(self, wwid: str) -> str:
        """The name of a namespace's block device."""
        (found,) = (
            link.name
            for link in (self.kernel.sys / 'class/block').iterdir()
            if sysfs.read(f'{link}/wwid') == wwid
        )
        return found

    def hold(
        self, wwid: str, name: str = 'qemu', flags: int = os.O_RDWR
    ) -> int:
        """A process opens a namespace."""
        block = self.block(wwid)
        number = sysfs.read(f'{self.kernel.sys}/class/block/{block}/dev')
        return self.kernel.hold(
            self.kernel.root / 'dev' / block, name, f'b {number}', flags=flags
        )


class Connector:
    """In the place of os-brick's NVMeOFConnector, with the same methods."""

    fabric: Fabric

    def __init__(self, commands: Any, multipath: bool) -> None:
        self.commands, self.multipath = commands, multipath

    def connect_volume(self, properties: dict[str, Any]) -> dict[str, str]:
        nqn, host = properties['target_nqn'], properties['host_nqn']
        there = [
            each['portal']
            for each in self.fabric.connections()
            if (each['nqn'], each['host']) == (nqn, host)
        ]
        done = False
        for address, port, transport in properties['portals']:
            if (address, port, transport) in there:
                done = True
                self.commands('nvme', 'ns-rescan', '/dev/nvme0')
                continue
            if done and not self.multipath:
                break
            words = ('-a', address, '-s', port, '-t', transport, '-n', nqn)
            try:
                self.commands('nvme', 'connect', *words, '-q', host)
            except self.failed() as err:
                last = err
            else:
                done = True
        if not done:
            raise RuntimeError('Volume device not found') from last
        return {'type': 'block', 'path': '/dev/nvme0n1'}

    def run_nvme_cli(self, words: Sequence[str]) -> tuple[str, str]:
        return self.commands('nvme', *words, check_exit_code=True)

    @staticmethod
    def failed() -> type[Exception]:
        from oslo_concurrency import processutils

        return processutils.ProcessExecutionError

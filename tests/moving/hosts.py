# SPDX-License-Identifier: Apache-2.0

"""Two hosts in one machine: each with a libvirtd, a journal and an agent.

Each has its own mount and UTS namespace, and so its own directories of libvirt
and os-acc. They share the kernel, and so the mediated devices.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import select
import shutil
import signal
import subprocess
import sys
from typing import Any
import uuid

import agent
from guest import SECONDS
from guest import wait

from os_acc import objects

MDEVS = pathlib.Path('/sys/bus/mdev/devices')
QEMU_CONF = """
user = "root"
group = "root"
security_driver = "none"
cgroup_controllers = []
namespaces = []
stdio_handler = "file"
migration_host = "{address}"
migration_address = "{address}"
"""
LIBVIRTD_CONF = """
unix_sock_dir = "{directory}"
host_uuid = "{uuid}"
auth_unix_rw = "none"
unix_sock_rw_perms = "0777"
log_outputs = "3:stderr"
"""
OWN = (
    '/run/libvirt',
    '/run/os-acc',
    '/etc/libvirt',
    '/var/lib/libvirt',
    '/var/lib/os-acc-root',
    '/var/cache/libvirt',
    '/var/log/libvirt',
)
PCI = pathlib.Path('/sys/bus/pci/devices')
ADDRESS = re.compile("<address uuid='([^']+)'")
FUNCTION = re.compile(
    r"<source>\s*<address domain='([^']+)' bus='([^']+)' "
    r"slot='([^']+)' function='([^']+)'"
)


class Refused(Exception):
    """A call of an agent has raised an error.

    :ivar name: the class of the error
    """

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


class Ended(Exception):
    """The agent has ended in a call."""


class Host:
    """A host. A process that sleeps keeps its namespaces.

    So libvirtd can be killed and started again, and then finds its guests.

    :param directory: for its files, the journal included
    :param address: by which the other host's QEMU reaches its QEMU
    :param vf: the VF that it offers
    :ivar is_called: whether a call of its agent is under way
    :ivar seconds: how long the last call of each name has taken
    """

    def __init__(
        self,
        name: str,
        directory: pathlib.Path,
        address: str = '127.0.0.1',
        vf: str = '0000:01:00.1',
    ) -> None:
        self.name, self.directory, self.vf = name, directory, vf
        directory.mkdir()
        self.uri = f'qemu+unix:///system?socket={directory}/libvirt-sock'
        self.conf = directory / 'os-acc.ini'
        self.conf.write_text(
            agent.CONFIGURATION.format(
                host=name,
                directory=directory,
                uri=self.uri,
                vf=vf,
                python=sys.executable,
                file=self.conf,
            )
        )
        (directory / 'qemu.conf').write_text(QEMU_CONF.format(address=address))
        (directory / 'libvirtd.conf').write_text(
            LIBVIRTD_CONF.format(directory=directory, uuid=uuid.uuid4())
        )
        mounts = ''.join(
            f'mkdir -p {each} && mount -t tmpfs -o mode=755 {name} {each}\n'
            for each in OWN
        )
        script = (
            f'set -e\nhostname {name}\n{mounts}mkdir /etc/libvirt/qemu\n'
            f'cp {directory}/*.conf /etc/libvirt/\n'
            'echo ready\nexec sleep infinity'
        )
        self._keeper = subprocess.Popen(
            ['unshare', '--mount', '--uts', 'sh', '-c', script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        assert self._keeper.stdout is not None
        assert self._keeper.stdout.readline() == b'ready\n'
        self._namespace = os.readlink(f'/proc/{self._keeper.pid}/ns/uts')
        self._libvirtd: subprocess.Popen[bytes] | None = None
        self._agent: subprocess.Popen[str] | None = None
        self.is_called = False
        self.seconds: dict[str, float] = {}

    def _inside(self, *command: str) -> list[str]:
        return ['nsenter', '-t', str(self._keeper.pid), '-m', '-u', *command]

    # --- libvirtd

    def has_libvirtd(self) -> bool:
        return self._libvirtd is not None and self._libvirtd.poll() is None

    def start_libvirtd(self) -> None:
        """Start it unless it is there; wait_for_libvirtd() waits for it."""
        if self.has_libvirtd():
            return
        with open(self.directory / 'libvirtd.log', 'ab') as log:
            self._libvirtd = subprocess.Popen(
                self._inside(
                    'libvirtd',
                    *('-f', '/etc/libvirt/libvirtd.conf'),
                    *('-p', f'{self.directory}/libvirtd.pid'),
                ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def copy_capabilities(self, other: Host) -> None:
        """Copy what libvirtd knows of QEMU to a host without libvirtd."""
        source, target = (
            f'/proc/{host._keeper.pid}/root/var/cache/libvirt'
            for host in (self, other)
        )
        shutil.copytree(source, target, dirs_exist_ok=True)

    def wait_for_libvirtd(self) -> None:
        wait(
            lambda: self.virsh('version', check=False).returncode == 0,
            lambda: (self.directory / 'libvirtd.log').read_text()[-2000:],
        )

    def signal_libvirtd(self, number: int) -> None:
        assert self._libvirtd is not None
        # nsenter has become libvirtd, since it makes no process of its own.
        self._libvirtd.send_signal(number)
        if number == signal.SIGKILL:
            self._libvirtd.wait()

    def virsh(
        self, *arguments: str, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        result = subprocess.run(
            ['virsh', '-q', '-c', self.uri, *arguments],
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        if check and result.returncode:
            raise AssertionError(
                f'{self.name}: virsh {arguments}: {result.stderr}'
            )
        return result

    def state(self, name: str) -> str:
        """The state of a guest and its reason; - is no guest."""
        found = self.virsh('domstate', '--reason', name, check=False)
        if found.returncode:
            assert 'failed to get domain' in found.stderr, found.stderr
            return '-'
        return found.stdout.strip()

    def mdevs_of(self, name: str) -> tuple[list[str], list[str]]:
        """The mdevs in the XML of a guest: of the running one, and kept."""
        running, kept = (ADDRESS.findall(xml) for xml in self._xml(name))
        return running, kept

    def vfs_of(self, name: str) -> tuple[list[str], list[str]]:
        """The PCI functions in the XML of a guest, as mdevs_of()."""
        running, kept = (
            [
                '{}:{}:{}.{}'.format(*(each[2:] for each in found))
                for found in FUNCTION.findall(xml)
            ]
            for xml in self._xml(name)
        )
        return running, kept

    def _xml(self, name: str) -> list[str]:
        return [
            self.virsh('dumpxml', *options, name).stdout
            for options in ((), ('--inactive',))
        ]

    def qemu(self, name: str) -> int | None:
        """The process of a guest on this host."""
        for pid in filter(str.isdigit, os.listdir('/proc')):
            with contextlib.suppress(OSError):
                line = pathlib.Path(f'/proc/{pid}/cmdline').read_text()
                if (
                    'qemu-system' in line.split('\0')[0]
                    and f'guest={name}' in line
                    and os.readlink(f'/proc/{pid}/ns/uts') == self._namespace
                ):
                    return int(pid)
        return None

    def kill_qemu(self, name: str) -> None:
        pid = self.qemu(name)
        assert pid is not None, f'{self.name} has no QEMU of {name}'
        os.kill(pid, signal.SIGKILL)

    # --- the os-acc command

    def command(self) -> list[str]:
        """The os-acc command on this host."""
        code = 'from os_acc.cli import app; raise SystemExit(app.main())'
        return self._inside(
            *(sys.executable, '-c', code, '--config-file', str(self.conf))
        )

    def os_acc(self, *arguments: str, code: int = 0) -> Any:
        """Run os-acc on this host.

        :param code: the exit code that it must have
        :returns: what it prints, which is JSON
        """
        found = subprocess.run(
            [*self.command(), *arguments],
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert found.returncode == code, (found.stdout, found.stderr)
        return json.loads(found.stdout)

    # --- the agent

    def start_agent(self) -> None:
        with open(self.directory / 'agent.log', 'a') as log:
            self._agent = subprocess.Popen(
                self._inside(sys.executable, agent.__file__, str(self.conf)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.result()

    def kill_agent(self) -> None:
        assert self._agent is not None
        self._agent.kill()
        self._agent.communicate()
        self.is_called = False

    def begin(self, call: str, **arguments: Any) -> None:
        """Call the agent; result() waits for it."""
        assert self._agent is not None and self._agent.stdin is not None
        self._called, self.is_called = call, True
        self._agent.stdin.write(json.dumps([call, arguments]) + '\n')
        self._agent.stdin.flush()

    def result(self) -> Any:
        """The result of the call that is under way.

        :raises Refused: if it has raised an error
        :raises Ended: if the agent has ended
        """
        assert self._agent is not None and self._agent.stdout is not None
        ready, _, _ = select.select([self._agent.stdout], [], [], SECONDS)
        assert ready, f'{self.name}: no answer in {SECONDS} s'
        line = self._agent.stdout.readline()
        if not line:
            said = (self.directory / 'agent.log').read_text()
            raise Ended(f'{self.name}: {said[-3000:]}')
        answer, self.is_called = json.loads(line), False
        if 'error' in answer:
            raise Refused(answer['error'], answer['text'])
        if 'seconds' in answer:
            self.seconds[self._called] = answer['seconds']
        return answer['result']

    def call(self, call: str, **arguments: Any) -> Any:
        self.begin(call, **arguments)
        return self.result()

    def vans(self, instance: str) -> list[objects.VAN]:
        found = self.call('vans', instance=instance)
        return [objects.VAN.obj_from_primitive(each) for each in found]

    def journal(self, instance: str) -> list[tuple[str, str]]:
        """The state and the handle of each VAN that an instance has here."""
        return [(v.state, v.handle.identity) for v in self.vans(instance)]

    def stop(self) -> None:
        for process in (self._agent, self._libvirtd, self._keeper):
            if process is not None:
                process.kill()
                process.wait()


def is_given(vf: str) -> bool:
    """Whether a VF has a driver, which it has for a guest only."""
    return (PCI / vf / 'driver').exists()


def mdev_exists(name: str) -> bool:
    return (MDEVS / name).exists()

# SPDX-License-Identifier: Apache-2.0

"""Two libvirtd on one machine, as two hosts, and a guest without a disk.

Each host has its own mount and UTS namespaces, and so its own state, sockets
and QEMU processes. It has its own os-acc, too: a configuration, a journal and
fake devices. The guest is emulated.
"""

from __future__ import annotations

from collections.abc import Callable
import ipaddress
import os
import pathlib
import shlex
import struct
import subprocess
import sys
import time
from typing import Any
import uuid

import processes

# Imported before the forks, so that each child starts at once.
from os_acc.cli import app
from os_acc.cli import instance as _instance  # noqa: F401
from os_acc.cli import migrate as _migrate  # noqa: F401
from os_acc.cli import migration as _migration  # noqa: F401
from os_acc.cli import van as _van  # noqa: F401
from os_acc.kinds.fake.driver.hardware import Hardware

HANDLES = 3
LIBVIRT = ['lib', 'cache', 'log']
DIRECTORIES = ' '.join(
    ['/run/libvirt', '/etc/libvirt', *(f'/var/{d}/libvirt' for d in LIBVIRT)]
)

QEMU_CONF = """user = "root"
group = "root"
security_driver = "none"
cgroup_controllers = []
namespaces = []
stdio_handler = "file"
migration_host = "{address}"
migration_address = "{address}"
"""

# libvirtd asks the host's UUID of the machine, which is the same for both.
LIBVIRTD_CONF = """unix_sock_dir = "{directory}"
host_uuid = "{uuid}"
auth_unix_rw = "none"
log_outputs = "3:stderr"
"""

NAMESPACES = """
set -e
hostname {name}
for each in {directories}; do
    mount -t tmpfs {name} $each
done
# The user and the groups that libvirt's package makes where it is installed.
for each in passwd group; do
    cp /etc/$each {directory}/$each
    for name in libvirt-qemu kvm; do
        grep -q "^$name:" {directory}/$each && continue
        case $each in
        passwd) echo $name:x:64055:64055::/nonexistent:/bin/false ;;
        group) echo $name:x:64055: ;;
        esac >>{directory}/$each
    done
    mount --bind {directory}/$each /etc/$each
done
mkdir -p /etc/libvirt/qemu
cp {directory}/*.conf /etc/libvirt/
echo ready
exec sleep infinity
"""

OS_ACC_CONF = """[os_acc]
state_path = {directory}/state
lock_path = {directory}/locks
plugin = libvirt
host = {name}
device_spec_dir = {directory}/device_spec.d

[os_acc_fake]
devices = fake0:test:{handles}
discover = True
hardware_path = {directory}/hardware

[os_acc_libvirt]
connection_uri = {uri}
"""

DOMAIN = """
<domain type='qemu'>
  <name>{name}</name>
  <uuid>{uuid}</uuid>
  <memory unit='MiB'>32</memory>
  <vcpu>1</vcpu>
  <os>
    <type arch='x86_64' machine='pc'>hvm</type>
    <kernel>{kernel}</kernel>
  </os>
  <features><acpi/></features>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <controller type='usb' model='none'/>
    <memballoon model='none'/>
    <serial type='null'/>
    {devices}
  </devices>
</domain>
"""

_HEADER = 0x1BADB002
_HAS_ADDRESSES = 0x00010000
_AT = 0x100000
# The power management of QEMU's machine pc: status and enable of the events,
# and control, at 0x600, 0x602 and 0x604 (ACPI 6.5, 4.8.3).
_CODE = bytes.fromhex(
    '66ba0206'  # mov dx, 0x602
    '66b80001'  # mov ax, 0x100: the power button
    '66ef'  # out dx, ax
    '66ba0006'  # again: mov dx, 0x600
    '66ed'  # in ax, dx
    'f6c401'  # test ah, 1: it was pressed
    '74f5'  # jz again
    '66ba0406'  # mov dx, 0x604
    '66b80020'  # mov ax, 0x2000: off
    '66ef'  # out dx, ax
    'ebfe'  # jmp to itself
)
_DEAF = bytes.fromhex('f4ebfd')  # hlt, for ever


def kernel(obeys: bool = True) -> bytes:
    """A Multiboot kernel that switches the machine off when it is asked.

    :param obeys: False: it does not

    https://www.gnu.org/software/grub/manual/multiboot/multiboot.html
    """
    code = _CODE if obeys else _DEAF
    length = 32 + len(code)
    header = (_HEADER, _HAS_ADDRESSES, -(_HEADER + _HAS_ADDRESSES) % 2**32)
    # Where the header, the code, its end and the end of its memory are, and
    # where it begins.
    places = (_AT, _AT, _AT + length, _AT + length, _AT + 32)
    return struct.pack('<8I', *header, *places) + code


class Host:
    """A host.

    :param directory: its own
    :ivar uri: of its libvirt
    """

    def __init__(self, directory: pathlib.Path, name: str) -> None:
        self.name, self.directory = name, directory / name
        for each in ('', 'state', 'locks', 'device_spec.d'):
            (self.directory / each).mkdir()
        self.uri = f'qemu+unix:///system?socket={self.directory}/libvirt-sock'
        # libvirt takes a port that was free when it looked. Another worker of
        # the tests may take the same one: it has another address.
        address = ipaddress.ip_address('127.1.0.0') + os.getpid()
        (self.directory / 'qemu.conf').write_text(
            QEMU_CONF.format(address=address)
        )
        (self.directory / 'libvirtd.conf').write_text(
            LIBVIRTD_CONF.format(directory=self.directory, uuid=uuid.uuid4())
        )
        self.configuration = directory / f'{name}.conf'
        self.configuration.write_text(
            OS_ACC_CONF.format(
                directory=self.directory,
                name=name,
                uri=self.uri,
                handles=HANDLES,
            )
        )
        for each in DIRECTORIES.split():
            pathlib.Path(each).mkdir(parents=True, exist_ok=True)
        script = NAMESPACES.format(
            name=name, directories=DIRECTORIES, directory=self.directory
        )
        # It keeps the namespaces, which inside() enters, too.
        self._keeper = subprocess.Popen(
            ['unshare', '--mount', '--uts', 'sh', '-c', script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._keeper.stdout is not None
        assert self._keeper.stdout.readline() == 'ready\n'
        with open(self.directory / 'libvirtd.log', 'ab') as log:
            self._libvirtd = subprocess.Popen(
                [
                    *('nsenter', '-t', str(self._keeper.pid), '-m', '-u'),
                    *('libvirtd', '-f', '/etc/libvirt/libvirtd.conf'),
                    *('-p', str(self.directory / 'pid')),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def wait(self) -> None:
        """Wait until libvirt answers: it first looks at each QEMU."""

        def answers() -> bool:
            log = (self.directory / 'libvirtd.log').read_text()
            assert self._libvirtd.poll() is None, log[-2000:]
            return self.virsh('version', check=False)[0] == 0

        wait_for(answers, 300)

    def close(self) -> None:
        for name in self.virsh('list', '--name', check=False)[1].split():
            self.virsh('destroy', name, check=False)
        for each in (self._libvirtd, self._keeper):
            each.kill()
            each.wait()
        assert self._keeper.stdout is not None
        self._keeper.stdout.close()

    def virsh(self, *arguments: str, check: bool = True) -> tuple[int, str]:
        done = subprocess.run(
            ['virsh', '-q', '-c', self.uri, *arguments],
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert not (check and done.returncode), (arguments, done.stderr)
        return done.returncode, done.stdout

    def inside(self, *command: str) -> None:
        """Run a command in its namespaces."""
        subprocess.run(
            ['nsenter', '-t', str(self._keeper.pid), '-m', '-u', *command],
            check=True,
            timeout=60,
        )

    def state(self, guest: str) -> str | None:
        """The state of a guest; None: there is none here."""
        code, text = self.virsh('domstate', guest, check=False)
        return text.strip() if code == 0 else None

    @property
    def command(self) -> list[str]:
        code = 'from os_acc.cli import app; raise SystemExit(app.main())'
        return [
            *(sys.executable, '-c', code),
            *('--config-file', str(self.configuration)),
        ]

    def os_acc(
        self,
        *arguments: str,
        code: int | None = 0,
        before: Callable[[], None] = lambda: None,
    ) -> str:
        """Run os-acc here, in a child of this process.

        :param code: the exit code that it must have; None: any
        :param before: what the child does first
        :returns: its standard output
        """
        ended = self.directory / 'ended'
        ended.unlink(missing_ok=True)

        def work() -> None:
            for number, name in (1, 'out'), (2, 'err'):
                file = os.open(
                    self.directory / name,
                    os.O_CREAT | os.O_TRUNC | os.O_WRONLY,
                )
                os.dup2(file, number)
            sys.stdout = open(1, 'w', closefd=False)  # noqa: SIM115
            sys.stderr = open(2, 'w', closefd=False)  # noqa: SIM115
            before()
            configuration = str(self.configuration)
            found = app.main(['--config-file', configuration, *arguments])
            # A forked child ends without this.
            sys.stdout.flush()
            sys.stderr.flush()
            ended.write_text(str(found))

        status = processes.run(work)
        found = int(ended.read_text()) if status == 0 else status
        out, err = (
            (self.directory / name).read_text() for name in ('out', 'err')
        )
        assert code in (None, found), (arguments, found, out, err)
        return out

    def states(self) -> list[str]:
        """The states of the VANs in its journal."""
        shown = self.os_acc('van', 'list', '-f', 'value', '-c', 'state')
        return sorted(shown.split())

    def in_use(self) -> int:
        """How many of its devices are in use."""
        return len(Hardware(str(self.directory / 'hardware')).in_use())

    def destination(self) -> list[str]:
        """The options that say to move an instance here."""
        return [
            *('--to', self.uri),
            *('--remote-command', shlex.join(self.command)),
        ]


class Hosts:
    """A source and a target, and guests."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.kernel = directory / 'kernel'
        self.kernel.write_bytes(kernel())
        self.source = Host(directory, 'one')
        self.target = Host(directory, 'two')
        try:
            for each in (self.source, self.target):
                each.wait()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for each in (self.source, self.target):
            each.close()

    def guest(
        self, name: str, runs: bool = True, count: int = 2, devices: str = ''
    ) -> str:
        """Plug and define a guest on the source, and start it.

        :param devices: further ones, in XML
        :returns: its UUID
        """
        made = str(uuid.uuid4())
        self.source.os_acc(
            *('plug', made, '--name', name, '--count', str(count)),
            *('--resource-class', 'CUSTOM_FAKE_TEST'),
        )
        path = self.source.directory / f'{name}.xml'
        path.write_text(
            DOMAIN.format(
                name=name, uuid=made, kernel=self.kernel, devices=devices
            )
        )
        self.source.virsh('define', str(path))
        if runs:
            self.source.virsh('start', name)
        return made

    def remove(self, name: str, instance: str) -> None:
        for each in (self.source, self.target):
            each.virsh('destroy', name, check=False)
            each.virsh('undefine', name, check=False)
            each.os_acc('migration', 'abort', instance, code=None)
            each.os_acc('unplug', instance, code=None)


def wait_for(check: Callable[[], Any], seconds: float) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < deadline, f'waited {seconds} s for {check}'
        time.sleep(0.2)
    return found

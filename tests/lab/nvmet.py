# SPDX-License-Identifier: Apache-2.0

"""A target of the kernel's own (nvmet), over TCP on the loopback."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import os
import pathlib
import subprocess
import uuid

CONFIG = pathlib.Path('/sys/kernel/config/nvmet')
NQN = 'nqn.2024-01.org.example:lab'
ADDRESS = '127.0.0.1'
PORT = 4420
SIZE = 16 << 20
CLASS = 'CUSTOM_LAB_FLASH'


class Target:
    """A subsystem with namespaces, each in a file behind a loop device.

    :ivar uuids: of the namespaces
    """

    def __init__(
        self,
        directory: pathlib.Path,
        number: int = 1,
        nqn: str = NQN,
        uuids: list[str] | None = None,
    ) -> None:
        self.nqn, self.subsystem = nqn, CONFIG / 'subsystems' / nqn
        self.port = CONFIG / 'ports/1'
        self.uuids = uuids or [str(uuid.uuid4()) for _ in range(number)]
        self.files = [directory / f'namespace-{each}' for each in self.uuids]
        self.loops: list[str] = []
        for command in (
            ['modprobe', '-a', 'nvmet', 'nvmet-tcp', 'nvme-tcp', 'loop'],
            ['ip', 'link', 'set', 'lo', 'up'],
        ):
            subprocess.run(command, check=True, timeout=120)
        if not CONFIG.is_dir():
            mount = ['mount', '-t', 'configfs', 'none', '/sys/kernel/config']
            subprocess.run(mount, check=True, timeout=60)
        for path in self.files:
            if not path.exists():
                with open(path, 'wb') as file:
                    file.truncate(SIZE)
        self.start()

    def start(self) -> None:
        self.subsystem.mkdir()
        _write(self.subsystem / 'attr_allow_any_host', '1')
        for number, (name, path) in enumerate(
            zip(self.uuids, self.files, strict=True), 1
        ):
            loop = subprocess.run(
                ['losetup', '--find', '--show', path],
                check=True,
                timeout=60,
                capture_output=True,
                text=True,
            ).stdout.strip()
            self.loops.append(loop)
            namespace = self.subsystem / f'namespaces/{number}'
            namespace.mkdir()
            _write(namespace / 'device_path', loop)
            _write(namespace / 'device_uuid', name)
            _write(namespace / 'enable', '1')
        if not self.port.is_dir():
            self.port.mkdir()
            for file, text in {
                'addr_trtype': 'tcp',
                'addr_adrfam': 'ipv4',
                'addr_traddr': ADDRESS,
                'addr_trsvcid': str(PORT),
            }.items():
                _write(self.port / file, text)
        (self.port / 'subsystems' / self.nqn).symlink_to(self.subsystem)

    def remove(self) -> None:
        """End the connections, also those that a failed test has left."""
        end = ['nvme', 'disconnect', '-n', self.nqn]
        # It fails if there are none.
        subprocess.run(end, check=False, timeout=120, capture_output=True)
        if self.subsystem.is_dir():
            self.stop()

    def stop(self) -> None:
        """Be gone: all connections are lost."""
        (self.port / 'subsystems' / self.nqn).unlink(missing_ok=True)
        if not any((self.port / 'subsystems').iterdir()):
            self.port.rmdir()
        for namespace in (self.subsystem / 'namespaces').iterdir():
            _write(namespace / 'enable', '0')
            namespace.rmdir()
        for link in (self.subsystem / 'allowed_hosts').iterdir():
            link.unlink()
            (CONFIG / 'hosts' / link.name).rmdir()
        self.subsystem.rmdir()
        for loop in self.loops:
            subprocess.run(['losetup', '-d', loop], check=False, timeout=60)
        self.loops.clear()

    def let_in(self, host_nqn: str) -> None:
        """Let in one host only."""
        host = CONFIG / 'hosts' / host_nqn
        host.mkdir()
        _write(self.subsystem / 'attr_allow_any_host', '0')
        (self.subsystem / 'allowed_hosts' / host_nqn).symlink_to(host)

    def content(self, place: int = 0, size: int = 4096) -> bytes:
        """The start of a namespace, as the target has it on its disk."""
        os.sync()
        with open(self.files[place], 'rb') as file:
            return file.read(size)

    def entry(self, **values: object) -> dict[str, object]:
        of = {
            'nqn': self.nqn,
            'portals': [[ADDRESS, PORT, 'tcp']],
            'namespaces': self.uuids,
        }
        return {'nvme_of': {**of, **values}, 'resource_class': CLASS}


def connections() -> list[str]:
    """The connections of this host to targets, by its host NQNs."""
    found = []
    for path in pathlib.Path('/sys/class/nvme').iterdir():
        with contextlib.suppress(FileNotFoundError):
            if (path / 'transport').read_text().strip() == 'tcp':
                found.append((path / 'hostnqn').read_text().strip())
    return sorted(found)


def established() -> int:
    """The TCP connections that the target sees."""
    # The state 01 is TCP_ESTABLISHED: Documentation/networking/proc_net_tcp.
    local = f'0100007F:{PORT:04X}'
    lines = pathlib.Path('/proc/net/tcp').read_text().splitlines()[1:]
    fields = [line.split() for line in lines]
    return sum(f[1] == local and f[3] == '01' for f in fields)


@contextlib.contextmanager
def written_to_the_kernel() -> Iterator[Callable[[], str]]:
    """Record what is written to /dev/nvme-fabrics.

    See Documentation/trace/kprobetrace.rst.

    :returns: a function that returns what has been written until now
    """
    tracing = pathlib.Path('/sys/kernel/tracing')
    if not (tracing / 'kprobe_events').exists():
        mount = ['mount', '-t', 'tracefs', 'none', tracing]
        subprocess.run(mount, check=True, timeout=60)
    enable = tracing / 'events/lab/connect/enable'
    _write(
        tracing / 'kprobe_events',
        'p:lab/connect nvmf_dev_write text=+0($arg2):ustring',
    )
    try:
        _write(enable, '1')
        yield (tracing / 'trace').read_text
    finally:
        _write(enable, '0')
        _write(tracing / 'kprobe_events', '')


def _write(path: pathlib.Path, text: str) -> None:
    path.write_text(text)

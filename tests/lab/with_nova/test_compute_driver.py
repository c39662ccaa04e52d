# SPDX-License-Identifier: Apache-2.0

"""Nova's compute driver os_acc.LibvirtDriver: libvirtd, QEMU, VFIO, privsep.

The driver runs in a process of the user nova (see nova_compute.py and
operations.py). It gets the rights of root in the two ways of Nova's
installations: by nova-rootwrap, and by sudo alone.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from multiprocessing import connection
import pathlib
import pwd
import re
import shutil
import socket
import subprocess
import sys
import time
from typing import Any
import uuid

import arqs
import lab_devices
import live
from lxml import etree
import pytest
import use

VF = use.VFS[0]
PARENT = lab_devices.PLAIN
# The kernel's name for the first type of mtty below a function without a
# driver: see dev_driver_string() in drivers/base/core.c.
TYPE = 'pci-1'
# The privsep contexts of os-acc and Nova, and the user id of their daemons.
DAEMONS = {
    'nova.privsep.sys_admin_pctxt': 0,
    'os_acc.privileged.context.pctxt': 0,
}
DEVICES = (live.MTTY_IDS, live.NVME_IDS)
PROGRAM = pathlib.Path(__file__).with_name('nova_compute.py')
MDEVS = pathlib.Path('/sys/bus/mdev/devices')
USER = 'nova'
CONF_FILE = pathlib.Path('/etc/nova/nova.conf')
SUDOERS = pathlib.Path('/etc/sudoers.d/nova')
NOVA_HOME = pathlib.Path('/var/lib/nova')

LIBVIRTD_CONF = """
unix_sock_group = "libvirt"
unix_sock_rw_perms = "0770"
auth_unix_rw = "none"
"""

NOVA_CONF = f"""
[DEFAULT]
compute_driver = os_acc.LibvirtDriver
state_path = {NOVA_HOME}

[libvirt]
virt_type = kvm
cpu_mode = none
images_type = raw
hw_machine_type = x86_64=q35
num_pcie_ports = 8

[vnc]
enabled = false

[oslo_concurrency]
lock_path = {NOVA_HOME}/tmp

[os_acc]
device_spec = {{"address": "{lab_devices.NVME_PF}", "num_vfs": 4, \
"command_empties": true}}
device_spec = {{"address": "{PARENT}"}}
cleaning_command = true

[os_acc_nova]
# There is no Cyborg to ask for device profiles.
program = false
"""

#: By the way to root: what is added to nova.conf, and the rule of sudo.
WAYS = {
    # As Nova's packages have it.
    'rootwrap': (
        '',
        '/usr/bin/nova-rootwrap /etc/nova/rootwrap.conf *',
    ),
    'sudo': (
        '\n[nova_sys_admin]\nhelper_command = '
        'sudo privsep-helper --config-file /etc/nova/nova.conf\n'
        '\n[os_acc_privileged]\nhelper_command = '
        'sudo privsep-helper --config-file /etc/nova/nova.conf\n',
        '/usr/bin/privsep-helper --config-file /etc/nova/nova.conf *',
    ),
}
# The images of the guest, by the attribute of Nova's Instance.
IMAGES = {
    'image_ref': '00000000-1111-4222-8333-444444444444',
    'kernel_id': '10000000-1111-4222-8333-444444444444',
    'ramdisk_id': '20000000-1111-4222-8333-444444444444',
}
PROPERTIES = {'os_command_line': 'console=ttyS0 quiet tsc=unstable'}


@pytest.fixture(scope='module', autouse=True)
def _mediated_devices_of_a_function():
    """Mediated devices have a PCI function as parent, as ARQs need it."""
    subprocess.run(['modprobe', '-r', 'mtty'], check=True, timeout=60)
    command = ['modprobe', 'mtty', f'parent={PARENT}']
    subprocess.run(command, check=True, timeout=60)
    yield
    subprocess.run(['modprobe', '-r', 'mtty'], check=True, timeout=60)
    subprocess.run(['modprobe', 'mtty'], check=True, timeout=60)


@pytest.fixture(scope='module')
def _nova_host() -> None:
    """Install what a package of Nova installs, below /etc, /usr and /var."""
    pathlib.Path('/etc/libvirt/libvirtd.conf').write_text(LIBVIRTD_CONF)
    # Nova asks libvirtd for the capabilities of each of these, which libvirtd
    # starts for that: many seconds in this machine.
    for path in pathlib.Path('/usr/bin').glob('qemu-system-*'):
        if path.name != 'qemu-system-x86_64':
            path.unlink()
    for command in (
        'groupadd --system --force libvirt',
        'useradd --system --user-group --groups libvirt --create-home '
        f'--home-dir {NOVA_HOME} {USER}',
    ):
        subprocess.run(command.split(), check=True, timeout=60)
    # sudo looks up the name of the machine.
    with open('/etc/hosts', 'a', encoding='utf-8') as hosts:
        hosts.write(f'127.0.1.1 {socket.gethostname()}\n')
    programs = pathlib.Path(sys.executable).parent
    for name in ('nova-rootwrap', 'privsep-helper'):
        program = pathlib.Path('/usr/bin') / name
        program.unlink(missing_ok=True)
        program.symlink_to(programs / name)
    # Nova's wheel has these files below the prefix of the environment.
    shutil.copytree(
        pathlib.Path(sys.prefix) / 'etc/nova', '/etc/nova', dirs_exist_ok=True
    )


@pytest.fixture(scope='module')
def images(_nova_host, libvirtd):
    """A directory with a kernel, its initrd, and an empty root disk."""
    directory = NOVA_HOME / 'glance'
    directory.mkdir()
    for name, file in (
        (IMAGES['kernel_id'], 'vmlinuz'),
        (IMAGES['ramdisk_id'], 'initrd'),
    ):
        shutil.copy(libvirtd.directory / file, directory / name)
    with open(directory / IMAGES['image_ref'], 'wb') as disk:
        disk.truncate(1 << 20)
    for path in directory.iterdir():
        path.chmod(0o644)
    return directory


class Service:
    """nova-compute, as the user nova.

    :param images: the directory of the images
    """

    def __init__(self, images: pathlib.Path) -> None:
        self._pipe, theirs = connection.Pipe()
        # Where temporary files are, and with them the sockets of privsep, is
        # left to the system: Nova's filters for nova-rootwrap expect /tmp.
        environment = {'PATH': '/usr/bin:/bin:/usr/sbin:/sbin'}
        environment['HOME'] = str(NOVA_HOME)
        self._process = subprocess.Popen(
            [sys.executable, PROGRAM, CONF_FILE, images, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            user=USER,
            group=USER,
            extra_groups=['libvirt'],
            cwd=NOVA_HOME,
            env=environment,
        )
        theirs.close()

    def begin(self, way: str) -> None:
        """Start the service with one of WAYS."""
        options, rule = WAYS[way]
        CONF_FILE.write_text(NOVA_CONF + options)
        CONF_FILE.chmod(0o640)
        shutil.chown(CONF_FILE, 'root', USER)
        SUDOERS.write_text(f'{USER} ALL = (root) NOPASSWD: {rule}\n')
        SUDOERS.chmod(0o440)
        self.call('begin')

    def call(self, operation: str, *arguments: Any) -> Any:
        """Call a method of operations.Compute in the service.

        :raises AssertionError: with the trace, if it fails
        """
        self._pipe.send((operation, arguments))
        assert self._pipe.poll(600), f'no answer to {operation}'
        trace, result = self._pipe.recv()
        assert trace is None, f'{operation}: {trace}'
        return result

    def end(self) -> None:
        """End the service. Its guests go on."""
        self._pipe.send(('end', ()))

    def close(self) -> None:
        self._pipe.close()
        self._process.wait(60)
        SUDOERS.unlink(missing_ok=True)


@pytest.fixture
def compute(images):
    """nova-compute, which is not started yet."""
    made = Service(images)
    yield made
    made.close()


class Guest:
    """A guest of Nova, seen by virsh and by its console log."""

    def __init__(self, node: str) -> None:
        self.uuid = str(uuid.uuid4())
        self.log = NOVA_HOME / 'instances' / self.uuid / 'console.log'
        self.arqs = [
            arqs.arq('MDEV', PARENT, node, asked_type=TYPE),
            arqs.arq('PCI', VF, node),
        ]
        self.mdev = MDEVS / self.arqs[0]['attach_handle_uuid']

    def instance(self) -> tuple[Any, ...]:
        return self.uuid, 'web-1', IMAGES, PROPERTIES

    def boots(self) -> list[str]:
        """Wait until the guest that was started last lists its devices.

        :returns: those of DEVICES, as vendor:device
        """

        def listed() -> list[str] | None:
            text = self.log.read_text(errors='replace')
            lines = re.findall(r'BEAT \d+ (.*) END', text)
            return lines[-1].split() if len(lines) > 1 else None

        return sorted(
            each for each in live.wait(listed, 300) if each in DEVICES
        )

    def hostdevs(self) -> dict[str, str]:
        """The source of each hostdev in the running domain, by its alias."""
        domain = etree.fromstring(live.virsh('dumpxml', self.uuid).stdout)
        return {
            each.find('alias').get('name'): etree.tostring(
                each.find('source/address'), with_tail=False
            ).decode()
            for each in domain.iter('hostdev')
        }

    def kernel(self) -> str:
        domain = etree.fromstring(live.virsh('dumpxml', self.uuid).stdout)
        return pathlib.Path(domain.findtext('os/kernel')).name


def daemons() -> dict[str, int]:
    """The processes of privsep-helper.

    :returns: the effective user id, by the name of the privsep context
    """
    found = {}
    for path in pathlib.Path('/proc').glob('[0-9]*/cmdline'):
        words = path.read_bytes().decode(errors='replace').split('\0')
        if '--privsep_context' in words and 'python' in words[0]:
            status = (path.parent / 'status').read_text()
            (uids,) = re.findall(r'^Uid:\s+(.*)$', status, re.MULTILINE)
            name = words[words.index('--privsep_context') + 1]
            found[name] = int(uids.split()[1])
    return found


def notes_of_the_daemon() -> list[str]:
    """What os-acc's daemon has noted of devices that it has given out."""
    directories = (
        '/run/os-acc/functions',
        '/run/os-acc/mdevs',
        '/run/os-acc/vfs',
    )
    return [
        str(path)
        for directory in (*directories, '/var/lib/os-acc-root')
        for path in pathlib.Path(directory).iterdir()
    ]


def node_devices() -> list[str]:
    """The devices of the host that libvirt knows."""
    return sorted(live.virsh('nodedev-list').stdout.split())


def break_devices(guest: Guest) -> None:
    """What an administrator may do by mistake while the guest is off."""
    (guest.mdev / 'remove').write_text('1')
    path = pathlib.Path('/sys/bus/pci/devices') / VF
    (path / 'driver_override').write_text('\n')
    (path / 'driver/unbind').write_text(VF)
    assert not guest.mdev.exists()
    assert use.driver_of(VF) is None


class Clock:
    """Measures how long each step takes."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def __call__(self, step: str, act: Callable[..., Any], *arguments: Any):
        started = time.monotonic()
        result = act(*arguments)
        self.seconds[step] = round(time.monotonic() - started, 1)
        return result


def test_life_of_a_guest(compute, snapshot, report):
    """Create, hard reboot, repair, rescue, delete: nothing is left.

    The service is restarted in between, with the other way to root.
    """
    before, nodes_before = snapshot(), node_devices()
    clock = Clock()

    clock('start', compute.begin, 'rootwrap')
    assert compute.call('user') == pwd.getpwnam(USER).pw_uid
    compute.call('start')
    guest = Guest(compute.call('node'))
    compute.call('instance', *guest.instance())
    clock('spawn', compute.call, 'spawn', guest.uuid, guest.arqs)
    assert clock('boot', guest.boots) == sorted(DEVICES)
    given = guest.hostdevs()
    assert sorted(given) == sorted(
        f'ua-acc-{arq["uuid"]}' for arq in guest.arqs
    )
    # Nova reads the console with its own privileges.
    assert 'BEAT' in compute.call('console', guest.uuid)
    assert daemons() == DAEMONS
    clock('hard reboot', compute.call, 'hard_reboot', guest.uuid, guest.arqs)
    assert clock('boot 2', guest.boots) == sorted(DEVICES)
    assert guest.hostdevs() == given

    compute.end()
    clock('start 2', compute.begin, 'sudo')
    compute.call('start', guest.instance())
    assert guest.hostdevs() == given
    compute.call('stop', guest.uuid)
    break_devices(guest)
    clock('power on', compute.call, 'start_guest', guest.uuid, guest.arqs)
    assert clock('boot 3', guest.boots) == sorted(DEVICES)
    assert guest.hostdevs() == given

    clock('rescue', compute.call, 'rescue', guest.uuid)
    assert guest.kernel() == 'kernel.rescue'
    assert clock('boot 4', guest.boots) == sorted(DEVICES)
    assert guest.hostdevs() == given
    clock('unrescue', compute.call, 'unrescue', guest.uuid)
    assert guest.kernel() == 'kernel'
    assert clock('boot 5', guest.boots) == sorted(DEVICES)
    assert guest.hostdevs() == given
    assert 'BEAT' in compute.call('console', guest.uuid)
    assert daemons() == DAEMONS

    clock('delete', compute.call, 'delete', guest.uuid)
    assert not guest.log.parent.exists()
    assert live.virsh('list', '--all').stdout.strip() == ''
    assert compute.call('vans') == []
    assert snapshot() == before
    # udev tells libvirt of what is gone.
    live.wait(lambda: node_devices() == nodes_before, 60)
    assert notes_of_the_daemon() == []
    report(f'lab: nova {metadata.version("nova")}: seconds: {clock.seconds}')

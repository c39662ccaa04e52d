# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Nova's compute driver os_acc.LibvirtDriver: libvirtd, QEMU, VFIO, privsep.

The driver runs as the user nova (see nova_compute.py). It gets root's help in
the two ways of Nova's installations: by nova-rootwrap, and by sudo alone.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
from typing import Any
import uuid

import lab_devices
import live
from lxml import etree
import nova_compute
import pytest
import use

import nova

VF = use.VFS[0]
PARENT = lab_devices.PLAIN
# The kernel's name for the first type of mtty below a function without a
# driver: see dev_driver_string() in drivers/base/core.c.
TYPE = 'pci-1'
DEVICES = (live.MTTY_IDS, live.NVME_IDS)
MDEVS = pathlib.Path('/sys/bus/mdev/devices')
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
# What a guest prints is read from its console log. Its init needs no more
# than 10 s, but Nova's way to it does in this machine.
IMAGE = {
    'os_command_line': 'console=ttyS0 quiet tsc=unstable',
    'hw_rng_model': 'virtio',
}


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
    for command in (
        ['groupadd', '--system', '--force', 'libvirt'],
        ['useradd', '--system', '--user-group', '--create-home']
        + ['--home-dir', NOVA_HOME, '--groups', 'libvirt', nova_compute.USER],
    ):
        subprocess.run(command, check=True, timeout=60)
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
    """A folder with a kernel, its initrd, and an empty root disk."""
    folder = NOVA_HOME / 'glance'
    folder.mkdir()
    for name, file in (('kernel', 'vmlinuz'), ('ramdisk', 'initrd')):
        shutil.copy(libvirtd.folder / file, folder / name)
    with open(folder / 'root', 'wb') as disk:
        disk.truncate(1 << 20)
    for path in folder.iterdir():
        path.chmod(0o644)
    return folder


@pytest.fixture(params=WAYS)
def service(request, images):
    """A function that starts nova-compute, with one way to root."""
    options, rule = WAYS[request.param]
    nova_compute.CONF_FILE.write_text(NOVA_CONF + options)
    nova_compute.CONF_FILE.chmod(0o640)
    shutil.chown(nova_compute.CONF_FILE, 'root', nova_compute.USER)
    SUDOERS.write_text(f'{nova_compute.USER} ALL = (root) NOPASSWD: {rule}\n')
    SUDOERS.chmod(0o440)
    started: list[nova_compute.Service] = []

    def start() -> nova_compute.Service:
        started.append(nova_compute.Service(images))
        return started[-1]

    yield start
    for each in started:
        each.end()
    SUDOERS.unlink()


class Guest:
    """A guest of Nova, seen by virsh and by its console log."""

    def __init__(self, node: str) -> None:
        self.uuid = str(uuid.uuid4())
        self.log = NOVA_HOME / 'instances' / self.uuid / 'console.log'
        self.arqs = [
            use.arq('MDEV', PARENT, node, asked_type=TYPE),
            use.arq('PCI', VF, node),
        ]
        self.mdev = MDEVS / self.arqs[0]['attach_handle_uuid']

    def instance(self) -> dict[str, Any]:
        return {'uuid': self.uuid, 'name': 'web-1', 'properties': IMAGE}

    def boots(self) -> list[str]:
        """Wait until the guest that was started last lists its devices.

        :returns: those of DEVICES, as vendor:device
        """

        def listed() -> list[str] | None:
            text = self.log.read_text(errors='replace')
            lines = re.findall(r'BEAT \d+ (.*) END', text)
            return lines[-1].split() if len(lines) > 1 else None

        return sorted(each for each in live.wait(listed, 300) if each in DEVICES)

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


def break_devices(guest: Guest) -> None:
    """What an administrator may do by mistake while the guest is off."""
    (guest.mdev / 'remove').write_text('1')
    path = pathlib.Path('/sys/bus/pci/devices') / VF
    (path / 'driver_override').write_text('\n')
    (path / 'driver/unbind').write_text(VF)
    assert not guest.mdev.exists()
    assert use.driver_of(VF) is None


def test_life_of_a_guest(service, snapshot, report):
    """Create, hard reboot, repair, rescue, delete: nothing is left."""
    before = snapshot(), live.virsh('nodedev-list').stdout
    times = {}

    def timed(name: str, act, *args: Any) -> Any:
        started = time.monotonic()
        result = act(*args)
        times[name] = round(time.monotonic() - started, 1)
        return result

    compute = timed('start of the service', service)
    assert compute.call('user') != 0
    compute.call('start')
    guest = Guest(compute.call('node'))
    compute.call('instance', *guest.instance().values())
    timed('spawn', compute.call, 'spawn', guest.uuid, guest.arqs)
    assert timed('boot', guest.boots) == sorted(DEVICES)
    given = guest.hostdevs()
    assert sorted(given) == sorted(
        f'ua-acc-{arq["uuid"]}' for arq in guest.arqs
    )
    # By Nova's own privileges.
    assert 'BEAT' in compute.call('console', guest.uuid)
    found = daemons()
    assert found['os_acc.privileged.context.pctxt'] == 0
    assert found['nova.privsep.sys_admin_pctxt'] == 0

    timed('hard reboot', compute.call, 'hard_reboot', guest.uuid, guest.arqs)
    assert timed('its boot', guest.boots) == sorted(DEVICES)
    assert guest.hostdevs() == given

    compute.call('stop', guest.uuid)
    break_devices(guest)
    timed('start', compute.call, 'start_guest', guest.uuid, guest.arqs)
    assert timed('its boot', guest.boots) == sorted(DEVICES)
    assert guest.hostdevs() == given

    timed('rescue', compute.call, 'rescue', guest.uuid)
    assert guest.kernel() == 'kernel.rescue'
    assert timed('its boot', guest.boots) == sorted(DEVICES)
    assert guest.hostdevs() == given
    timed('unrescue', compute.call, 'unrescue', guest.uuid)
    assert guest.kernel() == 'kernel'
    assert timed('its boot', guest.boots) == sorted(DEVICES)
    assert guest.hostdevs() == given

    timed('delete', compute.call, 'delete', guest.uuid)
    assert not guest.log.parent.exists()
    assert live.virsh('list', '--all').stdout.strip() == ''
    assert compute.call('vans') == []
    assert (snapshot(), live.virsh('nodedev-list').stdout) == before
    report(f'lab: {nova.version.version_string()}: {times}')

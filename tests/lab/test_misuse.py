# SPDX-License-Identifier: Apache-2.0

"""An unprivileged client misuses the calls of the real privileged daemon."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import subprocess

import lab_devices
import misuse
import pytest
import test_unprivileged
import use

from os_acc.kernel import pci
from os_acc.kernel import vfio
from os_acc.privileged import context
from os_acc.privileged import notes as root_notes
from os_acc.privileged import root_folder
from os_acc.privileged.kernel import vfio_binding

service = test_unprivileged.service
sudoers = test_unprivileged.sudoers

PF = pathlib.Path('/sys/bus/pci/devices') / lab_devices.NVME_PF
SPECS = (
    {
        'address': lab_devices.NVME_PF,
        'num_vfs': lab_devices.NVME_PF_VFS,
        'command_empties': True,
    },
    {
        'address': {'domain': '0000', 'bus': '0[1-6]'},
        'command_empties': True,
    },
    {'address': lab_devices.PLAIN},
    {'address': use.MTTY},
)
# Functions that are not entry points.
NO_ENTRIES = (
    'os.system',
    'os_acc.kernel.sysfs.write',
    'os_acc.privileged.pci.functions.vfio_binding.bind',
    'os_acc.privileged.pci.bindings.functions.delete',
)


def run(*command: object) -> None:
    subprocess.run([str(word) for word in command], check=True, timeout=120)


@pytest.fixture
def place(tmp_path_factory, nic_up, mtty):
    """What an administrator has set up on the host."""
    # Not mounted_nvme: it mounts the disk over the service's directory.
    directory = tmp_path_factory.mktemp('mounted')
    disk = lab_devices.NVME_DISK
    (block,) = PF.with_name(disk).glob('nvme/nvme*/nvme*n1')
    with contextlib.ExitStack() as stack:
        run('mkfs.ext2', '-q', '-F', f'/dev/{block.name}')
        run('mount', f'/dev/{block.name}', directory)
        stack.callback(run, 'umount', directory)
        plain = lab_devices.PLAIN
        before = vfio.Binding.of(pci.get(plain))
        vfio_binding.bind(plain, 'vfio-pci', 60)
        stack.callback(vfio_binding.restore, plain, before, 60)
        # The host's driver nvme would take seconds to refuse each VF.
        for name, text, later in (
            ('sriov_drivers_autoprobe', '0', '1'),
            ('sriov_numvfs', '2', '0'),
        ):
            (PF / name).write_text(text)
            stack.callback((PF / name).write_text, later)
        path = pci.get(lab_devices.SHARED_NIC).path
        (interface,) = os.listdir(f'{path}/net')
        run('ip', 'link', 'set', interface, 'up')
        stack.callback(run, 'ip', 'link', 'set', interface, 'down')
        kind = mtty / 'mdev_supported_types/mtty-1'
        (kind / 'create').write_text(misuse.INSTANCE)
        stack.callback(
            pathlib.Path(
                f'/sys/bus/mdev/devices/{misuse.INSTANCE}/remove'
            ).write_text,
            '1',
        )
        yield misuse.Place(
            bound=plain,
            bound_ids=lab_devices.EXPECTED[plain][0],
            disk=disk,
            disk_ids=lab_devices.EXPECTED[disk][0],
            nic=nic_up,
            nic_ids=lab_devices.EXPECTED[nic_up][0],
            bridge=lab_devices.BRIDGE,
            pf=lab_devices.NVME_PF,
            pf_ids=lab_devices.EXPECTED[lab_devices.NVME_PF][0],
            shared=lab_devices.SHARED_FREE,
            shared_nic=lab_devices.SHARED_NIC,
            unnamed=lab_devices.DISPLAY,
            unnamed_ids=lab_devices.EXPECTED[lab_devices.DISPLAY][0],
            mdev=misuse.INSTANCE,
            mdev_parent=use.MTTY,
            mdev_type='mtty-1',
        )


def text_of(outcome: object) -> object:
    return outcome.__name__ if isinstance(outcome, type) else outcome


def notes() -> list[str]:
    """What the daemon has noted that VANs have."""
    directory = pathlib.Path(root_notes.FOLDER)
    return sorted(os.listdir(directory)) if directory.exists() else []


def test_all_misuses(service, sudoers, place, snapshot, report):
    service.write_config(specs=SPECS)
    before = snapshot(), notes()

    def work():
        # Any user can lock a directory of sysfs. No call waits for that.
        for address in (place.bound, place.disk, place.pf):
            fd = os.open(pci.directory(address), os.O_RDONLY)
            fcntl.flock(fd, fcntl.LOCK_EX)
        found = {
            name: text_of(misuse.outcome(name, place))
            for name in misuse.MISUSES
        }
        for name in NO_ENTRIES:
            try:
                context.pctxt.channel.remote_call(name, ('x',), {}, None)
            except (NameError, ImportError):
                found[name] = 'no entry point'
        for path in (root_folder.PATH, f'{root_folder.PATH}/locks'):
            try:
                os.listdir(path)
            except PermissionError:
                found[path] = 'PermissionError'
        return found

    found = service.answer(work)
    assert found == {
        **{
            name: text_of(expected)
            for name, (_, expected) in misuse.MISUSES.items()
        },
        **dict.fromkeys(NO_ENTRIES, 'no entry point'),
        root_folder.PATH: 'PermissionError',
        f'{root_folder.PATH}/locks': 'PermissionError',
    }
    assert (snapshot(), notes()) == before
    report(f'lab: misuses of the privileged calls refused: {len(found)}')

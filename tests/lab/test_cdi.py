# SPDX-License-Identifier: Apache-2.0

"""A VF and a mediated device in a container of podman, by CDI."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess

import lab_devices
import podman as podman_module
import pytest
import use

import os_acc
from os_acc import exception

HERE = pathlib.Path(__file__).resolve().parent


@pytest.fixture(scope='module')
def podman(tmp_path_factory):
    made = podman_module.Podman(tmp_path_factory.mktemp('podman'))
    subprocess.run(
        [
            *('gcc', '-static', '-o', str(made.rootfs / 'bin/vfio_info')),
            str(HERE / 'vfio_info.c'),
        ],
        check=True,
        timeout=120,
    )
    yield made
    made.close()


@pytest.fixture
def cdi(configured, podman):
    """os-acc writes the specs that podman reads."""
    configured.set_override('plugin', 'cdi', 'os_acc')
    configured.set_override('spec_dir', str(podman.specs), 'os_acc_cdi')
    yield configured
    for path in podman.specs.iterdir():
        path.unlink()


def listed(podman, *names: str) -> set[str]:
    command = ('/bin/busybox', 'sh', '-c', podman_module.LIST)
    done = podman.run(list(names), *command)
    return set(podman_module.device_files(done.stdout))


def info(podman, name: str, group: str, device: str) -> re.Match[str]:
    """What a program in a container learns of its device from VFIO."""
    said = podman.run([name], '/bin/vfio_info', group, device).stdout
    found = re.fullmatch(r'flags (\S+) regions (\d+) irqs (\d+)\n', said)
    assert found is not None, said
    return found


# VFIO_DEVICE_FLAGS_PCI, include/uapi/linux/vfio.h
PCI = 0x2


def test_a_vf_and_an_mdev(cdi, podman, snapshot):
    before = snapshot()
    vf, mdev = use.pci_request(use.VFS[0]), use.mdev_request()
    instance = use.instance()
    # Another function of the host that has a file of VFIO.
    other = use.instance()
    os_acc.plug(other, [use.pci_request(lab_devices.PLAIN)])
    vans = os_acc.plug(instance, [vf, mdev])
    groups = [
        use.group_file(use.VFS[0]),
        use.mdev_file(mdev.handle.uuid),
    ]
    assert os.path.exists(use.group_file(lab_devices.PLAIN))
    for van, group, device in zip(
        vans, groups, (use.VFS[0], mdev.handle.uuid), strict=True
    ):
        name = van.guest_config
        assert listed(podman, name) == {group, '/dev/vfio/vfio'}
        found = info(podman, name, group, device)
        assert int(found[1], 16) & PCI
        assert int(found[2]) >= 7
    both = [van.guest_config for van in vans]
    assert listed(podman, *both) == {*groups, '/dev/vfio/vfio'}
    assert os_acc.unplug(instance) == 2
    assert os_acc.unplug(other) == 1
    assert snapshot() == before
    done = podman.run(both[:1], '/bin/busybox', 'true', check=False)
    assert done.returncode != 0
    assert both[0] in done.stderr


def test_a_container_keeps_its_function(cdi, podman, snapshot):
    """It has not opened the file; unplug fails until it has ended."""
    before = snapshot()
    instance = use.instance()
    (van,) = os_acc.plug(instance, [use.pci_request(use.VFS[1])])
    podman.run([van.guest_config], '/bin/busybox', 'sleep', '1000', name='job')
    with pytest.raises(exception.UnplugException, match='in a container'):
        os_acc.unplug(instance)
    assert use.driver_of(use.VFS[1]) == 'vfio-pci'
    podman('rm', '--force', '--time', '0', 'job')
    assert os_acc.unplug(instance) == 1
    assert snapshot() == before


def _group_in(path: pathlib.Path) -> tuple[str, int]:
    """The path and the minor number of the first file in a spec."""
    (device,) = json.loads(path.read_text())['devices']
    node = device['containerEdits']['deviceNodes'][0]
    return node['path'], node['minor']


INSTANCE = '3b0a6bb0-1111-4222-8333-444455556666'
REQUESTS = (
    '3b0a6bb1-1111-4222-8333-444455556666',
    '3b0a6bb2-1111-4222-8333-444455556666',
)


def _configure(lab_state, specs) -> None:
    use.configure(lab_state / 'os-acc-cdi', initialize=False)
    os_acc.CONF.set_override('plugin', 'cdi', 'os_acc')
    from acc_plug_cdi import CDIPlugin

    CDIPlugin.load('cdi')
    os_acc.CONF.set_override('spec_dir', str(specs), 'os_acc_cdi')
    os_acc.initialize()


@pytest.mark.boot1
def test_before_the_reboot(lab_state, leave_all, podman):
    """Groups are numbered in the order in which their devices come.

    So the other VFs and mdevs, which come first here and not at the second
    boot, give the devices of this test other numbers.
    """
    _configure(lab_state, podman.specs)
    extra = use.instance()
    os_acc.plug(extra, [use.mdev_request() for _ in range(3)])
    requests = [use.pci_request(use.VFS[2]), use.mdev_request('mtty-2')]
    for request, uuid in zip(requests, REQUESTS, strict=True):
        request.uuid = uuid
    vans = os_acc.plug(use.instance(INSTANCE), requests)
    seen = {}
    for van in vans:
        (path,) = podman.specs.glob(f'*_{van.uuid}.json')
        seen[path.name] = _group_in(path)
    (lab_state / 'groups').write_text(json.dumps(seen))
    assert os_acc.unplug(extra) == 3
    use.close()


@pytest.mark.boot2
def test_after_the_reboot(lab_state, podman, snapshot):
    before = snapshot()
    assert list(podman.specs.iterdir()) == []
    seen = json.loads((lab_state / 'groups').read_text())
    _configure(lab_state, podman.specs)
    vans = os_acc.get_vans(INSTANCE)
    assert {van.state for van in vans} == {'plugged'}
    for van, device in zip(
        vans, (use.VFS[2], vans[1].handle.uuid), strict=True
    ):
        (path,) = podman.specs.glob(f'*_{van.uuid}.json')
        group, _ = _group_in(path)
        if device != use.VFS[2]:
            # Three mdevs came before it at the first boot.
            assert group != seen[path.name][0]
            assert group == use.mdev_file(device)
        else:
            assert group == use.group_file(device)
        info(podman, van.guest_config, group, device)
    assert os_acc.unplug(use.instance(INSTANCE)) == 2
    assert list(podman.specs.iterdir()) == []
    use.close()
    assert snapshot() == before

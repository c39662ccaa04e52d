# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""A namespace of a target in a running guest, which reads and writes it."""

from __future__ import annotations

import pathlib
import shutil
import subprocess

import live
import nvmet
import pytest
import use

import os_acc
from os_acc import objects

# The guest writes into each virtio disk and reads it back.
WRITE = r"""
    for each in /sys/block/vd*; do
        [ -e $each ] || continue
        name=${each##*/}
        [ -b /dev/$name ] || continue
        echo hello-from-the-guest >/tmp/text
        dd if=/tmp/text of=/dev/$name bs=512 count=1 conv=sync,fsync 2>&-
        read text </dev/$name
        line="$line disk:$text:$(cat $each/serial)"
    done
"""


@pytest.fixture(scope='module')
def disk_guest(libvirtd):
    """A running guest that also reports its disks."""
    root = libvirtd.folder / 'root'
    init = live.INIT.replace(
        '    echo "$line END"', WRITE + '    echo "$line END"'
    )
    init = init.replace('n=0\n', 'export PATH=/bin\nmkdir -p /tmp\nn=0\n', 1)
    for name in ('dd', 'cat', 'mkdir'):
        link = root / 'bin' / name
        if not link.is_symlink():
            link.symlink_to('busybox')
    release = subprocess.run(
        ['uname', '-r'], capture_output=True, text=True, check=True
    ).stdout.strip()
    # Debian's kernel has virtio_blk as a module.
    modules = pathlib.Path(f'/lib/modules/{release}/kernel')
    loads = ''
    for name in (
        'drivers/virtio/virtio.ko',
        'drivers/virtio/virtio_ring.ko',
        'drivers/virtio/virtio_pci_legacy_dev.ko',
        'drivers/virtio/virtio_pci_modern_dev.ko',
        'drivers/virtio/virtio_pci.ko',
        'drivers/block/virtio_blk.ko',
    ):
        if (modules / name).exists():
            shutil.copy(modules / name, root)
            loads += f'/bin/busybox insmod /{pathlib.Path(name).name}\n'
    init = init.replace('exec >/dev/ttyS0\n', f'{loads}exec >/dev/ttyS0\n')
    (root / 'init').write_text(init)
    subprocess.run(
        f'cd {root} && find . | busybox cpio -o -H newc '
        f'> {libvirtd.folder}/initrd',
        shell=True,
        check=True,
        timeout=120,
    )
    made = live.Guest(libvirtd)
    made.start()
    yield made
    made.remove()


@pytest.fixture
def target(tmp_path):
    made = nvmet.Target(tmp_path)
    yield made
    made.stop()


@pytest.fixture
def there(target, tmp_path):
    use.configure(tmp_path / 'state', [target.entry()])
    conf = os_acc.CONF
    conf.set_override('release_timeout', 30.0, 'os_acc')
    conf.set_override('connection_uri', live.URI, 'os_acc_libvirt')
    yield target
    use.close()


def request(target: nvmet.Target) -> objects.AcceleratorRequest:
    wwn = f'uuid.{target.uuids[0]}'
    path = f'/dev/disk/by-id/nvme-{wwn}'
    return objects.AcceleratorRequest(
        uuid='00000009-1111-4222-8333-444455557777',
        handle=objects.BlockHandle(path=path, wwn=wwn),
    )


def disks(guest: live.Guest) -> list[str]:
    return [word for word in guest.bus() if word.startswith('disk:')]


def test_live(disk_guest, there):
    """The guest reads and writes it; after unplug it is gone, and empty."""
    instance = use.instance(disk_guest.uuid)
    assert disks(disk_guest) == []
    wanted = request(there)
    (van,) = os_acc.plug(instance, [wanted], live=True)
    assert os_acc.plug(instance, [wanted], live=True)[0].uuid == van.uuid
    live.wait(lambda: disks(disk_guest), 120)
    (text,) = disks(disk_guest)
    assert text == f'disk:hello-from-the-guest:{there.uuids[0][:20]}'
    assert there.content().startswith(b'hello-from-the-guest')
    assert f'ua-acc-{van.uuid}' in disk_guest.xml()
    assert f'ua-acc-{van.uuid}' in disk_guest.xml('--inactive')
    assert os_acc.unplug(instance, live=True) == 1
    assert disks(disk_guest) == []
    assert van.uuid not in disk_guest.xml()
    assert van.uuid not in disk_guest.xml('--inactive')
    assert nvmet.connections() == []
    assert there.content() == bytes(4096)


def test_cold(disk_guest, libvirtd, there):
    made = live.Guest(libvirtd)
    try:
        instance = use.instance(made.uuid)
        (van,) = os_acc.plug(instance, [request(there)])
        made.define(van.guest_config)
        made.start()
        live.wait(lambda: disks(made), 120)
        made.destroy()
        assert os_acc.unplug(instance) == 1
        assert nvmet.connections() == []
    finally:
        made.remove()

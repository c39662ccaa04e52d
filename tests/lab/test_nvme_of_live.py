# SPDX-License-Identifier: Apache-2.0

"""A namespace of a target in a running guest, which reads and writes it."""

from __future__ import annotations

import live
import nvmet
import pytest
import use

import os_acc
from os_acc import objects


@pytest.fixture
def target(tmp_path):
    made = nvmet.Target(tmp_path)
    yield made
    made.remove()


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


def await_disk(guest: live.Guest, target: nvmet.Target) -> None:
    """Wait until the guest has written to its disk, and has read it."""
    shown = f'disk:{live.TEXT}:{target.uuids[0][:20]}'
    try:
        live.wait(lambda: guest.disks() == [shown], 120)
    except AssertionError as err:
        console = guest.log.read_text(errors='replace')[-3000:]
        raise AssertionError(f'no {shown}: {console}') from err
    assert target.content().startswith(live.TEXT.encode())


def test_cold(libvirtd, there):
    """A guest that is defined with guest_config reads and writes it."""
    made = live.Guest(libvirtd)
    try:
        instance = use.instance(made.uuid)
        (van,) = os_acc.plug(instance, [request(there)])
        made.define(van.guest_config)
        made.start()
        await_disk(made, there)
        made.destroy()
        assert os_acc.unplug(instance) == 1
        assert nvmet.connections() == []
        assert there.content() == bytes(4096)
    finally:
        made.remove()


def test_live(guest, there):
    """The guest reads and writes it; after unplug it is gone, and empty."""
    instance = use.instance(guest.uuid)
    assert guest.disks() == []
    wanted = request(there)
    (van,) = os_acc.plug(instance, [wanted], live=True)
    assert os_acc.plug(instance, [wanted], live=True)[0].uuid == van.uuid
    await_disk(guest, there)
    assert f'ua-acc-{van.uuid}' in guest.xml()
    assert f'ua-acc-{van.uuid}' in guest.xml('--inactive')
    assert os_acc.unplug(instance, live=True) == 1
    assert guest.disks() == []
    assert van.uuid not in guest.xml()
    assert van.uuid not in guest.xml('--inactive')
    assert nvmet.connections() == []
    assert there.content() == bytes(4096)

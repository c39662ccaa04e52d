# SPDX-License-Identifier: Apache-2.0

"""A live plug of a VF and a mediated device into a running guest.

The peer is libvirt's attachDeviceFlags for the same two devices, which are
prepared already.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import pathlib
import subprocess
import uuid

import libvirt
import live
import pytest
import use

from acc_plug_libvirt import connection
import os_acc

ROUNDS = 3
FLAGS = libvirt.VIR_DOMAIN_AFFECT_LIVE | libvirt.VIR_DOMAIN_AFFECT_CONFIG
MDEV = str(uuid.UUID(int=7))
MTTY = pathlib.Path('/sys/class/mdev_bus/mtty/mdev_supported_types/mtty-1')


@pytest.fixture
def guest(tmp_path: pathlib.Path) -> Iterator[live.Guest]:
    daemon = live.Libvirtd(tmp_path / 'libvirt')
    # VFIO maps all of the guest's memory. Guests with a VF are seldom smaller.
    made = live.Guest(daemon, memory=8192)
    made.start()
    # On both sides libvirt binds the VF.
    pf = {**use.SPECS[0], 'bind': 'libvirt'}
    use.configure(tmp_path / 'state', specs=(pf, {'address': use.MTTY}))
    os_acc.CONF.set_override('release_timeout', 20.0, 'os_acc')
    yield made
    use.close()
    made.remove()
    daemon.stop()


def test_live_plug(guest: live.Guest, take_turns: Callable[..., None]) -> None:
    instance = use.instance(guest.uuid)
    wanted = [use.mdev_request('mtty-1', MDEV), use.pci_request(use.VFS[0])]
    # On both sides the VFs exist during all rounds.
    holder = use.instance()
    os_acc.plug(holder, [use.pci_request(use.VFS[3])])
    vans = os_acc.plug(instance, wanted, live=True)
    xmls = [van.guest_config for van in vans]
    os_acc.unplug(instance, live=True)
    connection.run_events()
    domain = libvirt.open(live.URI).lookupByUUIDString(guest.uuid)
    plugged: list[str] = []

    def out() -> None:
        """Detach both devices. This is not measured."""
        if plugged == ['os-acc']:
            os_acc.unplug(instance, live=True)
        plugged.clear()
        _rest()

    def bare() -> None:
        (MTTY / 'create').write_text(MDEV)
        for xml in xmls:
            domain.attachDeviceFlags(xml, FLAGS)
        plugged.append('bare')

    def own() -> None:
        os_acc.plug(instance, wanted, live=True)
        plugged.append('os-acc')

    def bare_out() -> None:
        if plugged != ['bare']:
            return
        for xml in xmls:
            domain.detachDeviceFlags(xml, FLAGS)
        live.wait(lambda: '<hostdev' not in domain.XMLDesc(0), 60)
        path = pathlib.Path('/sys/bus/mdev/devices', MDEV)
        live.wait(lambda: _remove(path), 60)
        # QEMU unmaps the guest's memory later, which would slow down os-acc.
        live.wait(lambda: use.driver_of(use.VFS[0]) is None, 60)
        plugged.clear()
        _rest()

    take_turns(
        own,
        bare,
        ROUNDS,
        warmup_rounds=1,
        before_peer=out,
        after_peer=bare_out,
    )
    out()
    os_acc.unplug(holder)


def _rest() -> None:
    """Wait for udev, so that its work is not measured."""
    subprocess.run(['udevadm', 'settle'], check=True)


def _remove(path: pathlib.Path) -> bool:
    try:
        (path / 'remove').write_text('1')
    except OSError:
        return not path.exists()
    return True

# SPDX-License-Identifier: Apache-2.0

"""A GPU with companions, and functions that leave a shared IOMMU group."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import json

import devices
import pytest

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc.privileged.pci import functions as privileged_pci
from os_acc.testing import mortal

GPU = '0000:3b:00.0'
SOUND = '0000:3b:00.1'
USB = '0000:3b:00.2'
UCSI = '0000:3b:00.3'
COMPANIONS = (SOUND, USB, UCSI)
GROUP = 70


def add_card(kernel) -> None:
    """A graphics card whose four functions are in one IOMMU group."""
    kernel.add_function(GPU, '10de:1e30', 0x030000, 'nvidia', GROUP)
    kernel.add_function(SOUND, '10de:10f7', 0x040300, 'snd_hda_intel', GROUP)
    kernel.add_function(USB, '10de:1ad6', 0x0C0330, 'xhci_hcd', GROUP)
    kernel.add_function(UCSI, '10de:1ad7', 0x0C8000, None, GROUP)


@pytest.fixture
def here(kernel):
    devices.furnish(kernel)
    add_card(kernel)
    devices.spec({'address': GPU, 'companions': True}, {'address': '*:06:*'})
    os_acc.initialize()
    return kernel


def cause(*requests, instance=None) -> Exception:
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(instance or devices.instance(), list(requests))
    assert caught.value.undo_errors == []
    return caught.value.__cause__


def drivers(here, *addresses: str) -> set[str | None]:
    return {here.driver_of(address) for address in addresses}


def free(address: str) -> int | None:
    for device in os_acc.get_devices():
        if device.address == address:
            return device.handles_free
    return None


# --- companions


def test_without_the_option_they_are_in_the_way(here):
    devices.spec({'address': GPU})
    assert f'also contains {SOUND}: driver snd_hda_intel' in str(
        cause(devices.pci(GPU))
    )
    assert here.writes == []


@pytest.mark.parametrize('bind', ['os-acc', 'libvirt'])
def test_taken_and_given_back(here, bind):
    devices.spec({'address': GPU, 'companions': True, 'bind': bind})
    before = here.snapshot()
    assert free(GPU) == 1
    instance = devices.instance()
    (van,) = os_acc.plug(instance, [devices.pci(GPU)])
    assert drivers(here, *COMPANIONS) == {'vfio-pci'}
    assert here.driver_of(GPU) == (
        'vfio-pci' if bind == 'os-acc' else 'nvidia'
    )
    assert van.guest_config.count('<hostdev') == 1
    recorded = json.loads(van.driver_data['companions'])
    assert recorded[USB]['driver_before'] == 'xhci_hcd'
    assert os_acc.unplug(instance) == 1
    assert here.snapshot() == before


def test_chosen_by_its_class(here):
    instance = devices.instance()
    (van,) = os_acc.plug(instance, [devices.wanted('PGPU')])
    assert van.handle.address == GPU
    assert drivers(here, *COMPANIONS) == {'vfio-pci'}
    assert free(GPU) == 0
    os_acc.unplug(instance)
    assert here.driver_of(SOUND) == 'snd_hda_intel'


def test_the_operator_binds_them_with_bind_none(here):
    devices.spec({'address': GPU, 'companions': True, 'bind': 'none'})
    path = here.pci / 'devices' / GPU
    here.write(str(here.pci / 'drivers/nvidia/unbind'), GPU)
    here.write(f'{path}/driver_override', 'vfio-pci')
    here.write(str(here.pci / 'drivers_probe'), GPU)
    assert f'also contains {SOUND}' in str(cause(devices.pci(GPU)))


def test_not_offered_alone(here):
    """The entry names them too."""
    devices.spec({'vendor_id': '10de', 'companions': True})
    assert {free(each) for each in COMPANIONS} == {None}
    err = cause(devices.pci(SOUND))
    assert isinstance(err, exception.DeviceNotFound)
    assert f'it is a companion of {GPU}' in str(err)


def test_another_instance_does_not_get_one_meanwhile(here):
    devices.spec({'address': GPU, 'companions': True}, {'address': SOUND})
    os_acc.plug(devices.instance(), [devices.pci(GPU)])
    assert free(SOUND) == 0
    err = cause(devices.pci(SOUND))
    assert isinstance(err, exception.DeviceBusy)
    assert f'pci/{GPU} of the same IOMMU group' in str(err)


def test_the_same_instance_may_have_one_as_a_device(here):
    devices.spec({'address': GPU, 'companions': True}, {'address': SOUND})
    before = here.snapshot()
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(GPU)])
    sound = devices.pci(SOUND)
    os_acc.plug(instance, [sound])
    os_acc.unplug(instance, [sound])
    assert here.driver_of(SOUND) == 'vfio-pci'
    os_acc.unplug(instance)
    assert here.snapshot() == before


def test_one_that_another_instance_has(here):
    devices.spec({'address': GPU, 'companions': True}, {'address': '*:3b:*'})
    for address, driver in ((GPU, 'nvidia'), (USB, 'xhci_hcd')):
        here.write(str(here.pci / f'drivers/{driver}/unbind'), address)
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(SOUND)])
    err = cause(devices.pci(GPU))
    assert isinstance(err, exception.DeviceBusy)
    assert f'instance {instance.uuid} has its companion {SOUND}' in str(err)


def test_one_that_the_host_uses(here):
    path = (here.pci / 'devices' / USB).resolve()
    directory = path / 'usb1/1-1/host0/block/sda'
    directory.mkdir(parents=True)
    (directory / 'dev').write_text('8:0\n')
    (here.sys / 'class/block/sda').symlink_to(directory)
    here.write_file(
        'proc/self/mountinfo', '36 35 8:0 / /data rw - ext4 /dev/sda rw\n'
    )
    err = cause(devices.pci(GPU))
    assert isinstance(err, exception.DeviceInUseByHost)
    assert f'its companion {USB}: block device sda is mounted' in str(err)
    assert here.writes == []
    assert free(GPU) == 0


def test_one_that_a_program_has_open(here):
    path = (here.pci / 'devices' / SOUND).resolve()
    (path / 'sound/card0/pcmC0D3p').mkdir(parents=True)
    (path / 'sound/card0/pcmC0D3p/uevent').write_text('DEVNAME=snd/pcmC0D3p\n')
    (here.sys / 'dev/char').mkdir(parents=True)
    (here.sys / 'dev/char/116:2').symlink_to(path / 'sound/card0/pcmC0D3p')
    pid = here.hold(here.root / 'dev/snd/pcmC0D3p', 'pipewire', 'c 116:2')
    err = cause(devices.pci(GPU))
    assert isinstance(err, exception.DeviceBusy)
    assert f'process {pid} (pipewire)' in str(err)
    assert here.writes == []


def test_a_companion_that_cannot_be_bound(here):
    before = here.snapshot()
    here.fail('*/drivers/xhci_hcd/unbind', 16)
    err = cause(devices.pci(GPU))
    assert 'unbind from xhci_hcd' in str(err)
    assert here.snapshot() == before


def test_the_cleaning_command_runs_for_each(here, tmp_path):
    path = tmp_path / 'cleaned'
    os_acc.CONF.set_override(
        'cleaning_command', f'sh -c "echo {{address}} >> {path}"', 'os_acc'
    )
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(GPU)])
    os_acc.unplug(instance)
    assert path.read_text().split() == [GPU, *COMPANIONS]


def test_after_a_reboot(here):
    before = here.snapshot()
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(GPU)])
    here.reboot()
    assert here.driver_of(SOUND) == 'snd_hda_intel'
    assert len(os_acc.recover().restored) == 1
    assert drivers(here, GPU, *COMPANIONS) == {'vfio-pci'}
    os_acc.unplug(instance)
    assert here.snapshot() == before


def crashes(here, monkeypatch, act, after: bool) -> Iterator[int]:
    """Let the process die in a call: at its first write, its second, ...

    :returns: the number of the write, for each time that it has died there;
        after that, a new process runs
    """
    for number in range(99):
        here.crash_at(number, after)
        with contextlib.suppress(
            exception.PlugException,
            exception.UnplugException,
            mortal.Crash,
        ):
            act()
        died = here.dead
        here.revive()
        if not died:
            return
        os_acc.initialize(reset=True)
        yield number


@pytest.fixture
def small(kernel):
    """A card with one companion."""
    kernel.add_function(GPU, '10de:1e30', 0x030000, 'nvidia', GROUP)
    kernel.add_function(SOUND, '10de:10f7', 0x040300, 'snd_hda_intel', GROUP)
    devices.spec({'address': GPU, 'companions': True})
    os_acc.initialize()
    return kernel


@pytest.mark.parametrize('after', [False, True])
def test_a_crash_in_plug(small, monkeypatch, after):
    here = small
    before = here.snapshot()
    instance = devices.instance()
    died = []
    for number in crashes(
        here,
        monkeypatch,
        lambda: os_acc.plug(instance, [devices.pci(GPU)]),
        after,
    ):
        assert not os_acc.get_vans()
        assert here.snapshot() == before
        died.append(number)
    assert len(died) >= 6


@pytest.mark.parametrize('after', [False, True])
def test_a_crash_in_unplug(small, monkeypatch, after):
    here = small
    before = here.snapshot()
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(GPU)])
    died = []
    for number in crashes(
        here, monkeypatch, lambda: os_acc.unplug(instance), after
    ):
        assert not os_acc.get_vans()
        assert here.snapshot() == before
        os_acc.plug(instance, [devices.pci(GPU)])
        died.append(number)
    assert len(died) >= 5
    assert here.snapshot() == before


def test_the_privileged_half_takes_a_companion_only_of_the_option(here):
    devices.spec({'address': GPU})
    with pytest.raises(exception.DeviceNotFound, match='device_spec'):
        privileged_pci.take(
            SOUND, 'vfio-pci', [GPU], devices.instance().uuid, 1.0
        )
    devices.spec({'address': GPU, 'companions': True})
    with pytest.raises(exception.DeviceNotFound, match='device_spec'):
        privileged_pci.take(
            devices.DISK, 'vfio-pci', [GPU], devices.instance().uuid, 1.0
        )
    privileged_pci.take(
        SOUND, 'vfio-pci', [GPU, USB], devices.instance().uuid, 1.0
    )
    assert here.driver_of(SOUND) == 'vfio-pci'


# --- one function of a shared group leaves a running guest

BOTH = (devices.SHARED, devices.SHARED_NIC)
VAN = '00000001-1111-4222-8333-444455556666'


class Guest:
    """A running guest that has both functions of the shared group."""

    def __init__(self, kernel, shown: bool) -> None:
        self.kernel = kernel
        self.before = kernel.snapshot()
        self.instance = devices.instance()
        self.requests = [devices.pci(each) for each in BOTH]
        os_acc.plug(self.instance, self.requests)
        self.pid = kernel.hold(kernel.node(devices.SHARED))
        self.files = {
            each: kernel.open_function(self.pid, each, shown) for each in BOTH
        }
        self.domain(*BOTH)

    def domain(self, *addresses: str) -> None:
        """What libvirt says that the guest has."""
        hostdevs = ''.join(
            f'<hostdev type="pci"><source><address domain="0x0000" '
            f'bus="0x06" slot="0x00" function="0x{each[-1]}"/></source>'
            '</hostdev>'
            for each in addresses
        )
        self.kernel.write_file(
            'libvirt/guest.xml',
            f'<domstatus pid="{self.pid}"><domain><name>guest</name>'
            f'<uuid>{self.instance.uuid}</uuid><devices>{hostdevs}</devices>'
            '</domain></domstatus>',
        )

    def unplug(self, address: str) -> None:
        os_acc.unplug(self.instance, [self.requests[BOTH.index(address)]])

    def close(self, address: str) -> None:
        """QEMU closes a function."""
        self.files.pop(address).unlink()

    def end(self) -> None:
        self.kernel.end(self.pid)
        (self.kernel.root / 'libvirt/guest.xml').unlink()


@pytest.fixture
def guest(here):
    """The kernel names the functions that a process has open."""
    return Guest(here, shown=True)


@pytest.fixture
def old(here):
    """A guest on a kernel before 6.17."""
    return Guest(here, shown=False)


@pytest.mark.parametrize('address', BOTH)
def test_one_function_leaves(here, guest, address):
    (other,) = set(BOTH) - {address}
    guest.domain(other)
    guest.close(address)
    guest.unplug(address)
    (van,) = os_acc.get_vans(guest.instance)
    assert van.handle.address == other
    # A driver of the host would make the group unusable for the guest.
    assert here.driver_of(devices.SHARED_NIC) == 'vfio-pci'
    guest.end()
    os_acc.unplug(guest.instance)
    assert here.snapshot() == guest.before


@pytest.mark.parametrize('shown', [True, False])
def test_qemu_has_not_closed_it_yet(here, shown):
    guest = Guest(here, shown)
    guest.domain(devices.SHARED)
    with pytest.raises(exception.UnplugException, match='qemu'):
        guest.unplug(devices.SHARED_NIC)
    states = {v.handle.address: v.state for v in os_acc.get_vans()}
    assert states == {devices.SHARED: 'plugged', devices.SHARED_NIC: 'error'}
    guest.close(devices.SHARED_NIC)
    guest.unplug(devices.SHARED_NIC)
    assert len(os_acc.get_vans()) == 1


def test_an_older_kernel_and_libvirt(here, old):
    old.close(devices.SHARED_NIC)
    with pytest.raises(exception.UnplugException, match='qemu'):
        old.unplug(devices.SHARED_NIC)  # libvirt has not removed it yet
    old.domain(devices.SHARED)
    old.unplug(devices.SHARED_NIC)
    old.end()
    os_acc.unplug(old.instance)
    assert here.snapshot() == old.before


def test_an_older_kernel_without_libvirt(here, old):
    """It cannot be known what the guest still has."""
    (here.root / 'libvirt/guest.xml').unlink()
    old.close(devices.SHARED_NIC)
    with pytest.raises(exception.UnplugException, match='qemu'):
        old.unplug(devices.SHARED_NIC)
    here.end(old.pid)
    old.unplug(devices.SHARED_NIC)


def test_a_guest_that_has_only_opened_the_group(here, guest):
    """As one that starts does: it opens its functions next."""
    for each in BOTH:
        guest.close(each)
    with pytest.raises(exception.UnplugException, match='qemu'):
        guest.unplug(devices.SHARED_NIC)


def test_all_functions_leave_at_once(here, guest):
    """Then the whole group must be closed."""
    guest.close(devices.SHARED_NIC)
    with pytest.raises(exception.UnplugException) as caught:
        os_acc.unplug(guest.instance)
    assert str(caught.value).count('qemu') == 2
    assert drivers(here, *BOTH) == {'vfio-pci'}
    guest.end()
    assert os_acc.unplug(guest.instance) == 2
    assert here.snapshot() == guest.before


def test_it_comes_back_and_leaves_again(here, guest):
    guest.domain(devices.SHARED)
    guest.close(devices.SHARED_NIC)
    guest.unplug(devices.SHARED_NIC)
    guest.requests[1] = devices.pci(devices.SHARED_NIC)
    os_acc.plug(guest.instance, [guest.requests[1]])
    (van,) = [
        v
        for v in os_acc.get_vans(guest.instance)
        if v.handle.address == devices.SHARED_NIC
    ]
    assert van.driver_data['driver_before'] == 'e1000e'
    guest.unplug(devices.SHARED_NIC)
    guest.end()
    os_acc.unplug(guest.instance)
    assert here.snapshot() == guest.before


def test_it_comes_back_and_goes_last(here, guest):
    guest.domain(devices.SHARED)
    guest.close(devices.SHARED_NIC)
    guest.unplug(devices.SHARED_NIC)
    nic = devices.pci(devices.SHARED_NIC)
    os_acc.plug(guest.instance, [nic])
    guest.end()
    guest.unplug(devices.SHARED)
    assert here.driver_of(devices.SHARED_NIC) == 'vfio-pci'
    os_acc.unplug(guest.instance)
    assert here.snapshot() == guest.before


def test_a_reboot_after_one_has_left(here, guest):
    guest.domain(devices.SHARED)
    guest.close(devices.SHARED_NIC)
    guest.unplug(devices.SHARED_NIC)
    guest.end()
    here.reboot()
    assert here.driver_of(devices.SHARED_NIC) == 'e1000e'
    report = os_acc.recover()
    assert [v.handle.address for v in report.restored] == [devices.SHARED]
    assert here.driver_of(devices.SHARED_NIC) == 'vfio-pci'
    os_acc.unplug(guest.instance)
    assert here.snapshot() == guest.before


def test_the_guest_is_off(here):
    """Its definition keeps the other function: the group stays viable."""
    before = here.snapshot()
    instance = devices.instance()
    requests = [devices.pci(each) for each in BOTH]
    os_acc.plug(instance, requests)
    os_acc.unplug(instance, requests[1:])
    assert here.driver_of(devices.SHARED_NIC) == 'vfio-pci'
    os_acc.unplug(instance)
    assert here.snapshot() == before


@pytest.mark.parametrize('after', [False, True])
def test_a_crash_after_one_has_left(here, monkeypatch, after):
    before = here.snapshot()
    instance = devices.instance()

    def plug() -> None:
        requests = [devices.pci(each) for each in BOTH]
        os_acc.plug(instance, requests)
        os_acc.unplug(instance, requests[1:])

    plug()
    died = []
    for number in crashes(
        here, monkeypatch, lambda: os_acc.unplug(instance), after
    ):
        assert here.snapshot() == before
        plug()
        died.append(number)
    assert len(died) >= 5


def test_a_group_that_nobody_shares_is_waited_for(here):
    """A guest that has one function only must have closed the group."""
    here.write(str(here.pci / 'drivers/e1000e/unbind'), devices.SHARED_NIC)
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(devices.SHARED)])
    pid = here.hold(here.node(devices.SHARED))
    with pytest.raises(exception.UnplugException, match=f'process {pid}'):
        os_acc.unplug(instance)
    here.end(pid)
    assert os_acc.unplug(instance) == 1
    assert os_acc.get_vans() == objects.VANList()

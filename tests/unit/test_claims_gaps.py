# SPDX-License-Identifier: Apache-2.0

"""What drivers do not see, and the one rule of os_acc.claims refuses."""

from __future__ import annotations

import device_nodes
import devices
import previews
import pytest

import os_acc
from os_acc import exception
from os_acc.attach import exclusion
from os_acc.drivers import allocation
from os_acc.privileged import notes

PF, VF = '0000:3b:00.0', '0000:3b:00.1'
MDEV = 'c9d1b1f2-3f0f-4f65-8a54-5c3d2e0a1b01'
SATA = 'pci0000:00/0000:00:17.0/ata1/host0/target0:0:0/0:0:0:0'
FILES = {'resource_class': 'CUSTOM_FILE', 'devices': '/dev/dri/card0'}


class Host:
    def __init__(self, kernel, patch):
        self.kernel = kernel
        self.nodes = device_nodes.Nodes(kernel)
        self.nodes.install(patch)

    def parent(self, address, **values):
        """A parent of mediated devices."""
        path = self.kernel.add_function(
            address, '8086:4940', 0x120000, **values
        )
        self.kernel.add_mdev_parent(path, {'type-1': 1}, 4)

    def file(self, address):
        """A device file of a function."""
        directory = f'pci0000:00/{address}/drm/card0'
        self.nodes.add('dri/card0', 'c 226:0', directory, 'drm')

    def use(self, journal):
        path = str(self.kernel.root / journal)
        os_acc.CONF.set_override('state_path', path, 'os_acc')
        os_acc.initialize(reset=True)


@pytest.fixture
def host(kernel, monkeypatch):
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    os_acc.initialize()
    return Host(kernel, monkeypatch)


def both_orders(one, other):
    return pytest.mark.parametrize(
        ('first', 'second'), [(one, other), (other, one)]
    )


def excluded(host, first, second, between=lambda: None):
    """Plug two requests of two instances. The second one is refused.

    What is refused is not reported as free, and a preview tells it.
    """
    instance = devices.instance()
    (van,) = os_acc.plug(instance, [first()])
    between()
    request = second()
    before = host.kernel.snapshot(), notes.files.names()
    assert f'instance {instance.uuid} has' in str(devices.refused(request))
    # Neither the refusal nor its undo has touched anything.
    assert (host.kernel.snapshot(), notes.files.names()) == before
    assert [each.uuid for each in os_acc.get_vans()] == [van.uuid]
    assert previews.agrees(host.kernel.root, [request]) is None
    found = [each for each in os_acc.get_devices() if each.handles_free]
    assert {each.address for each in found} <= {van.device}
    # Once that is released, it is free.
    os_acc.unplug(instance)
    os_acc.plug(devices.instance(), [request])


def file():
    return devices.wanted('CUSTOM_FILE')


def vfio_file():
    return devices.wanted('CUSTOM_VFIO')


def mdev():
    return devices.mdev('type-1', MDEV, VF)


@both_orders(file, mdev)
def test_a_file_of_a_pf_and_an_mdev_of_its_vf(host, first, second):
    """Who has a file of a PF may control its VFs: see file_availability."""
    host.kernel.add_function(PF, '8086:4940', 0x120000, totalvfs=4)
    host.parent(VF, physfn=PF)
    host.kernel.file(PF, 'virtfn0').symlink_to(
        host.kernel.pci / 'devices' / VF
    )
    host.file(PF)
    devices.spec(FILES, {'address': VF, 'mdev_types': ['type-1']})
    excluded(host, first, second)


@both_orders(file, vfio_file)
def test_a_file_of_a_parent_and_the_vfio_file_of_its_mdev(host, first, second):
    """The mdev itself and the file of its parent exclude each other."""
    host.parent(PF)
    kind = host.kernel.pci / f'devices/{PF}/mdev_supported_types/type-1'
    host.kernel.create_mdev(kind.resolve(), MDEV)
    group = (host.kernel.mdev / MDEV / 'iommu_group').readlink().name
    (host.kernel.root / f'dev/vfio/{group}').unlink()
    host.nodes.add(f'vfio/{group}', 'c 244:1', f'virtual/vfio/{group}', 'vfio')
    host.file(PF)
    devices.spec(
        FILES,
        {'resource_class': 'CUSTOM_VFIO', 'devices': f'/dev/vfio/{group}'},
    )
    excluded(host, first, second)


@pytest.mark.parametrize('numbers', ['10', '01'])
def test_a_pf_of_an_fpga_and_one_of_another_class(host, numbers):
    """Who has the first PF may be able to program the whole FPGA.

    It counts which of them comes first: only the second one is looked at.
    """
    host.kernel.add_function(PF, '10ee:5000', 0x120000)
    host.kernel.add_function(f'{PF[:-1]}1', '10ee:5001', 0x020000)
    devices.spec({'address': '*'})
    first, second = (f'{PF[:-1]}{number}' for number in numbers)
    excluded(host, lambda: devices.pci(first), lambda: devices.pci(second))


SLOTS = ('0000:3b:00.0', '0000:3c:00.0')


@pytest.fixture(params=['itself', 'beside it'])
def two_slots(host, request):
    """A card with an FPGA, and a PF in another slot that is no FPGA.

    The PF, or one beside it, shows the serial number of the card.
    """
    shown = SLOTS[1]
    if request.param == 'beside it':
        shown = f'{SLOTS[1][:-1]}1'
    for address, ids in zip(SLOTS, ('1af4:5000', '1af4:5001'), strict=True):
        host.kernel.add_function(address, ids, 0x120000)
    if shown not in SLOTS:
        host.kernel.add_function(shown, '1af4:5002', 0x120000)
    for address in (SLOTS[0], shown):
        path = host.kernel.pci / f'devices/{address}/serial_number'
        path.write_text('64-4c-36-11-1b-a8-00-01\n')
    program = ['/bin/true', '{address}', '{file}']
    devices.spec(
        {'address': SLOTS[0], 'program': program}, {'address': SLOTS[1]}
    )
    return host


@pytest.mark.parametrize('numbers', ['01', '10'])
def test_a_pf_of_an_fpga_and_one_in_another_slot(two_slots, numbers):
    """Who has the FPGA may program what the other PF shows."""
    first, second = (SLOTS[int(number)] for number in numbers)
    excluded(
        two_slots, lambda: devices.pci(first), lambda: devices.pci(second)
    )


@pytest.mark.parametrize('numbers', ['01', '10'])
def test_two_journals_and_an_fpga_in_two_slots(two_slots, numbers):
    first, second = (SLOTS[int(number)] for number in numbers)
    two_slots.use('nova')
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(first)])
    two_slots.use('other')
    text = str(devices.refused(devices.pci(second)))
    assert f'instance {instance.uuid} has it' in text


def test_a_disk_of_which_a_van_has_a_partition_since_before_a_reboot(host):
    """The VAN gets its partition again, with what it has written to it."""
    for name, number, directory in (
        ('sdb', 'b 8:16', f'{SATA}/block/sdb'),
        ('sdb1', 'b 8:17', f'{SATA}/block/sdb/sdb1'),
    ):
        host.nodes.add(name, number, directory, 'block')
        link = host.kernel.sys / 'class/block' / name
        link.symlink_to(host.kernel.sys / 'devices' / directory)
    devices.spec(
        *(
            {
                'devices': f'/dev/{name}',
                'keeps_data': True,
                'resource_class': f'CUSTOM_{name.upper()}',
            }
            for name in ('sdb', 'sdb1')
        )
    )
    excluded(
        host,
        lambda: devices.wanted('CUSTOM_SDB1'),
        lambda: devices.wanted('CUSTOM_SDB'),
        host.kernel.reboot,
    )


def vf():
    return devices.pci(VF)


def test_a_vf_of_an_fpga_since_before_a_reboot_and_another_pf(host):
    """The VF is made again when its VAN is restored."""
    beside = '0000:3b:00.7'
    host.kernel.add_function(PF, '10ee:5000', 0x120000, 'qat', totalvfs=1)
    host.kernel.add_function(beside, '10ee:5001', 0x120000)
    devices.spec({'address': PF, 'num_vfs': 1}, {'address': beside})
    excluded(host, vf, lambda: devices.pci(beside), host.kernel.reboot)


@both_orders(file, vf)
def test_a_file_of_a_pf_and_its_vf(host, first, second):
    two_of_a_pf(host)
    excluded(host, first, second)


@both_orders(file, vf)
def test_a_driver_that_does_not_look(host, first, second, monkeypatch):
    two_of_a_pf(host)
    monkeypatch.setattr(allocation, 'check', lambda obstacles: None)
    instance = devices.instance()
    (van,) = os_acc.plug(instance, [first()])
    text = str(devices.refused(second()))
    label = f'PCI function {VF}' if first is file else 'device file /dev/dri/'
    assert f' {label}' in f' {text}'
    assert f'instance {instance.uuid} has {van.handle.identity}' in text
    assert f'both are of PCI function {PF}' in text


def test_a_driver_that_does_not_look_at_one_function(host, monkeypatch):
    host.kernel.add_function(PF, '8086:4940', 0x120000, 'qat')
    host.file(PF)
    devices.spec(FILES, {'address': PF})
    monkeypatch.setattr(allocation, 'check', lambda obstacles: None)
    os_acc.plug(devices.instance(), [devices.pci(PF)])
    text = str(devices.refused(file()))
    assert f'has pci/{PF}, and both are of PCI function {PF} (VAN' in text


def test_a_driver_that_does_not_look_at_the_group(host, monkeypatch):
    """The instance may have both functions, another one neither."""
    one, other = '0000:07:00.0', '0000:07:00.1'
    for address in (one, other):
        host.kernel.add_function(address, '1234:11e8', 0xFF00, group=60)
    devices.spec({'address': '*'})
    monkeypatch.setattr(allocation, 'check', lambda obstacles: None)
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(one)])
    text = str(devices.refused(devices.pci(other)))
    assert f'instance {instance.uuid} has pci/{one} of the same IOMMU' in text
    os_acc.plug(instance, [devices.pci(other)])


@pytest.mark.parametrize('text', ['nonsense', ''])
def test_what_cannot_be_read_of_a_van_stops_no_other(host, monkeypatch, text):
    host.kernel.add_function(PF, '8086:4940', 0x120000, 'qat', totalvfs=2)
    host.kernel.write_numvfs(PF, 2)
    host.file(PF)
    devices.spec(FILES, {'address': PF, 'num_vfs': 2}, {'address': '*'})
    os_acc.plug(devices.instance(), [vf()])
    (host.kernel.pci / 'devices' / VF / 'modalias').write_text(text)
    other = '0000:07:00.0'
    host.kernel.add_function(other, '1234:11e8', 0xFF00)
    os_acc.plug(devices.instance(), [devices.pci(other)])
    # It still has its claims.
    monkeypatch.setattr(allocation, 'check', lambda obstacles: None)
    assert f'both are of PCI function {PF}' in str(devices.refused(file()))


def test_two_at_once(host, monkeypatch):
    """The one that comes second waits for the lock of their PF."""
    os_acc.CONF.set_override('lock_timeout', 0.5, 'os_acc')
    os_acc.initialize(reset=True)
    two_of_a_pf(host)
    plugs, real = [vf()], exclusion.Exclusion.check

    def look(*args):
        if plugs:
            instance = devices.instance()
            with pytest.raises(exception.PlugException, match=f'lock .*{PF}'):
                os_acc.plug(instance, [plugs.pop()])
        return real(*args)

    monkeypatch.setattr(exclusion.Exclusion, 'check', look)
    (van,) = os_acc.plug(devices.instance(), [file()])
    assert [each.uuid for each in os_acc.get_vans()] == [van.uuid]


@both_orders(file, vf)
def test_two_journals_and_a_file_of_a_pf_and_its_vf(host, first, second):
    """Of a VAN of another journal, only root's notes tell."""
    two_of_a_pf(host)
    host.use('nova')
    instance = devices.instance()
    os_acc.plug(instance, [first()])
    host.use('other')
    text = str(devices.refused(second()))
    assert f'instance {instance.uuid} has it' in text
    assert f'{host.kernel.root}/nova/' in text
    assert f'It shares PCI function {PF} with what is wanted' in text
    host.use('nova')
    assert os_acc.unplug(instance) == 1
    host.use('other')
    os_acc.plug(devices.instance(), [second()])


@pytest.mark.parametrize('bind', ['none', 'libvirt'])
@pytest.mark.parametrize('shares', ['fpga', 'group'])
def test_two_journals_and_an_undo_of_what_was_refused(
    host, tmp_path, shares, bind
):
    """What only root refuses is not cleaned: the VAN never had it.

    That could harm the guest that has another function of the card.
    """
    names = (PF, f'{PF[:-1]}1')
    driver = 'vfio-pci' if bind == 'none' else None
    for address in names:
        if shares == 'fpga':
            host.kernel.add_function(address, '10ee:5000', 0x120000, driver)
        else:
            host.kernel.add_function(
                address, '8086:4940', 0x120000, driver, group=60
            )
    devices.spec({'address': '*', 'bind': bind})
    cleaned = tmp_path / 'cleaned'
    command = f'sh -c "echo {{address}} >> {cleaned}"'
    os_acc.CONF.set_override('cleaning_command', command, 'os_acc')
    host.use('nova')
    instance = devices.instance()
    os_acc.plug(instance, [devices.pci(names[0])])
    host.use('other')
    host.kernel.writes.clear()
    text = str(devices.refused(devices.pci(names[1])))
    assert f'instance {instance.uuid} has it' in text
    assert (os_acc.get_vans().objects, host.kernel.writes) == ([], [])
    assert not cleaned.exists()
    host.use('nova')
    os_acc.unplug(instance)
    assert cleaned.read_text().split() == [names[0]]


def two_of_a_pf(host):
    host.kernel.add_function(PF, '8086:4940', 0x120000, 'qat', totalvfs=1)
    host.kernel.write_numvfs(PF, 1)
    host.file(PF)
    devices.spec(FILES, {'address': PF, 'num_vfs': 1})

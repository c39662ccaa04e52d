# SPDX-License-Identifier: Apache-2.0

"""os-acc's own drivers and plugins keep their contracts."""

from __future__ import annotations

import pathlib
import re
import sys

import accel_model
import device_nodes
import devices
import idxd_model
import libvirt_double
import nvme_of_model
import previews
import pytest
import vendor
import vgpu_card
import way

import acc_plug_cdi
import acc_plug_libvirt
import acc_plug_noop
import os_acc
from os_acc import exception
from os_acc import health
from os_acc import kinds
from os_acc import objects
from os_acc import testing
from os_acc.kernel import vgpu_cards
from os_acc.kinds.devfile.driver.driver import DevfileDriver
from os_acc.kinds.fake.driver.driver import FakeDriver
from os_acc.kinds.fpga.driver import driver as fpga
from os_acc.kinds.idxd.driver.driver import IdxdDriver
from os_acc.kinds.mdev.driver import driver as mdev
from os_acc.kinds.npu.driver.driver import NPUDriver
from os_acc.kinds.nvme_of.driver.driver import NVMeOFDriver
from os_acc.kinds.pci.driver.driver import PCIDriver
from os_acc.kinds.vgpu.driver import driver as nvidia_vgpu

#: The modules that do the work of one kind only.
OF_A_KIND = rf'kinds\..*\.driver|privileged\.({"|".join(kinds.ALL)})\.'
OTHER_GPU = '0000:2b:00.0'


def files(directory: pathlib.Path) -> dict[str, str]:
    """Every file below a directory, with its text."""
    return {
        str(path.relative_to(directory)): path.read_text()
        for path in sorted(directory.rglob('*'))
        if path.is_file()
    }


class OwnDriver(testing.DriverContract):
    """A driver of os-acc, which also does well under --dry-run."""

    __test__ = False
    #: The kind of the driver, and the kinds whose code it uses.
    kinds: tuple[str, ...] = ()

    def test_a_dry_run_says_what_the_plug_does(self, service, tmp_path):
        for request in self.requests():
            previews.check(tmp_path, request)

    def test_a_plug_enters_no_other_kind(self, service):
        """Neither the driver of another kind nor its privileged calls."""
        with way.followed() as found:
            os_acc.plug(devices.instance(), self.requests()[:1])
        sys.stdout.write(
            f'{len(found.modules)} modules, {found.changes} changes of the '
            'package\n'
        )
        entered = {
            module.split('.')[1]
            for module in found.modules
            if re.match(OF_A_KIND, module)
        }
        assert self.kinds[0] in entered
        assert entered <= {*self.kinds}

    def test_device_spec_cannot_be_read_after_a_reboot(self, service):
        """The VANs get their devices back, and can be released."""
        before = self.look()
        instance = devices.instance()
        os_acc.plug(instance, self.requests())
        os_acc.CONF.set_override('device_spec', ['{'], 'os_acc')
        self.reboot()
        service.stop()
        service.reboot()
        service.restart()
        vans = os_acc.get_vans()
        assert [van.error for van in vans] == [None] * len(vans)
        assert {van.state for van in vans} == {'plugged'}
        assert all(map(service.driver.is_intact, vans))
        assert os_acc.unplug(instance) == len(vans)
        assert self.look() == before

    def test_a_dry_run_fails_where_the_plug_does(self, service, tmp_path):
        """Alone and together, free and used, by class and by handle."""
        request, addresses = self.two_devices()
        free = sum(
            each.handles_free
            for each in service.driver.get_devices()
            if each.address in addresses
        )

        def together(count):
            made = [again(request) for _ in range(count)]
            return previews.agrees(tmp_path, made)

        strange = devices.wanted(request.resource_class, 'CUSTOM_NOBODY')
        strange.driver = service.driver.name
        assert previews.agrees(tmp_path, [strange]) is None
        assert together(free + 1) is None
        instance = together(free)
        assert together(1) is None
        taken = again(request)
        taken.handle = os_acc.get_vans(instance)[0].handle
        taken.resource_class = None
        assert previews.agrees(tmp_path, [taken]) is None
        os_acc.unplug(instance)
        first, _ = addresses
        health.mark(os_acc._get().journal, first, 'test', 'it has failed')
        assert together(free) is None
        assert together(1) is not None

    def test_what_is_counted_as_free_can_be_had(self, service):
        """So many plugs succeed one after the other, and no more."""
        request, _ = self.two_devices()
        free = sum(
            each.handles_free
            for each in service.driver.get_devices()
            if each.resource_class == request.resource_class
        )
        assert free > 1
        for _ in range(free):
            os_acc.plug(devices.instance(), [again(request)])
        for device in service.driver.get_devices():
            assert device.resource_class != request.resource_class or (
                not device.handles_free
            )
        with pytest.raises(exception.PlugException):
            os_acc.plug(devices.instance(), [again(request)])


def again(request):
    """The same request with another UUID."""
    return devices.wanted(request.resource_class, *request.traits)


class OnKernel(OwnDriver):
    """A driver for devices of the generated kernel."""

    __test__ = False

    def look(self):
        return self.kernel.snapshot()

    def opened(self, path, *values):
        pid = self.kernel.hold(path, *values)
        return lambda: self.kernel.end(pid)


class TestFake(OwnDriver):
    kinds = ('fake',)
    __test__ = True

    @pytest.fixture(autouse=True)
    def hardware(self, tmp_path):
        self.path = tmp_path / 'hardware'
        self.fakes = ['fake0:test:1', 'fake1:pci:2']

    def make_driver(self):
        made = FakeDriver.load('fake')
        for name, value in {
            'devices': self.fakes,
            'discover': True,
            'hardware_path': str(self.path),
        }.items():
            os_acc.CONF.set_override(name, value, 'os_acc_fake')
        return made

    def requests(self):
        return [devices.wanted(f'CUSTOM_FAKE_{n}') for n in ('TEST', 'PCI')]

    def look(self):
        # Not what a killed process was still writing.
        return {
            name: text
            for name, text in files(self.path).items()
            if not name.startswith('.')
        }

    def hold(self, van):
        pytest.skip('a fake device has no file that a guest could open')

    def remove(self, van):
        """Nobody uses the handle any more."""
        for path in self.path.glob('handle-*'):
            path.unlink()
        return lambda: None

    def two_devices(self):
        self.fakes = ['fake0:test:1', 'fake1:pci:2', 'fake2:test:1']
        os_acc.CONF.set_override('devices', self.fakes, 'os_acc_fake')
        return devices.wanted('CUSTOM_FAKE_TEST'), ('fake0', 'fake2')

    def foreign_handles(self):
        """It invents a handle of each class that it makes, on request."""
        return super().foreign_handles()[-1:]


class TestPCI(OnKernel):
    kinds = ('pci',)
    __test__ = True

    @pytest.fixture(autouse=True)
    def hardware(self, kernel):
        kernel.add_function(devices.GPU, '10de:1eb8', 0x030200, 'nvidia')
        kernel.add_function(
            devices.PF, '8086:4940', 0x0B4000, 'qat', totalvfs=2
        )
        devices.spec(
            {'address': devices.GPU}, {'address': devices.PF, 'num_vfs': 2}
        )

    def two_devices(self):
        cards = ('0000:2b:00.0', '0000:3b:00.0')
        for address in cards:
            self.kernel.add_function(address, '10de:1b38', 0x030200, 'nvidia')
        devices.spec({'product_id': '1b38', 'resource_class': 'CUSTOM_CARD'})
        return devices.wanted('CUSTOM_CARD'), cards

    def make_driver(self):
        return PCIDriver.load('pci')

    def requests(self):
        return [devices.pci(devices.GPU), devices.pci(devices.VFS[0])]

    def hold(self, van):
        return self.opened(self.kernel.node(van.handle.address))

    def remove(self, van):
        self.kernel.take_off(van.device or van.handle.address)
        return self.kernel.come_back


class TestMdev(OnKernel):
    kinds = ('mdev',)
    __test__ = True

    @pytest.fixture(autouse=True)
    def hardware(self, kernel):
        kernel.add_mtty()
        devices.spec({'address': 'mtty'})

    def two_devices(self):
        cards = ('0000:2b:00.0', '0000:3b:00.0')
        for address in cards:
            path = self.kernel.add_function(
                address, '10de:1b38', 0x030200, 'nvidia'
            )
            self.kernel.add_mdev_parent(path, {'nvidia-47': 2}, 24)
        devices.spec(
            {
                'product_id': '1b38',
                'mdev_types': ['nvidia-47'],
                'resource_class': 'CUSTOM_V',
            }
        )
        return devices.wanted('CUSTOM_V'), cards

    def make_driver(self):
        return mdev.MdevDriver.load('mdev')

    def requests(self):
        return [devices.mdev()]

    def hold(self, van):
        link = self.kernel.mdev / van.handle.uuid / 'iommu_group'
        group = link.readlink().name
        return self.opened(self.kernel.root / f'dev/vfio/{group}')

    def remove(self, van):
        path = self.kernel.mdev / van.handle.uuid / 'remove'
        self.kernel.write(str(path), '1')
        return lambda: None


class TestNvidiaVGPU(OnKernel):
    kinds = ('vgpu', 'mdev', 'pci')
    __test__ = True

    @pytest.fixture(autouse=True)
    def hardware(self, kernel, tmp_path, monkeypatch):
        monkeypatch.setattr(vgpu_cards, 'PATH', str(tmp_path / 'none.xml'))
        types = {558: ('NVIDIA A40-1Q', 1), 559: ('NVIDIA A40-2Q', 2)}
        self.card = vgpu_card.Card(
            kernel, '0000:41:00.0', types, size=2, vfs=2
        )
        devices.spec({'vendor_id': '10de', 'vgpu_type': 'NVIDIA A40-1Q'})

    def two_devices(self):
        types = {558: ('NVIDIA A40-1Q', 1), 559: ('NVIDIA A40-2Q', 2)}
        vgpu_card.Card(self.kernel, '0000:61:00.0', types, size=2, vfs=2)
        return devices.wanted('VGPU'), ('0000:41:00.0', '0000:61:00.0')

    def make_driver(self):
        return nvidia_vgpu.NvidiaVGPUDriver.load('nvidia_vgpu')

    def requests(self):
        return [devices.wanted('VGPU')]

    def hold(self, van):
        return self.opened(self.kernel.node(van.handle.address))

    def remove(self, van):
        self.card.reboot()
        return self.card.sriov_manage

    def reboot(self):
        self.card.reboot()
        self.card.sriov_manage()


class TestDevfile(OnKernel):
    kinds = ('devfile',)
    __test__ = True

    @pytest.fixture(autouse=True)
    def hardware(self, kernel, monkeypatch):
        self.nodes = device_nodes.Nodes(kernel)
        self.nodes.install(monkeypatch)
        for number in (1, 2):
            self.add(number, f'c 240:{number}')
        devices.spec({'devices': '/dev/acc*', 'owner': 1001, 'mode': '0600'})

    def add(self, number, text):
        self.nodes.add(
            f'acc{number}', text, f'virtual/acme/acc{number}', 'acme'
        )

    def two_devices(self):
        return devices.wanted('CUSTOM_FILE_ACC'), (
            'virtual+acme+acc1',
            'virtual+acme+acc2',
        )

    def make_driver(self):
        return DevfileDriver.load('devfile')

    def requests(self):
        return [devices.wanted('CUSTOM_FILE_ACC')]

    def look(self):
        return self.nodes.snapshot()

    def hold(self, van):
        (file,) = van.handle.files
        return self.opened(
            file.path, 'python3', f'c {file.major}:{file.minor}'
        )

    def device_number(self, path):
        return self.nodes.number(path)

    def reboot(self):
        """The files have other numbers after it."""
        super().reboot()
        for number in (1, 2):
            self.nodes.remove(f'acc{number}')
            self.add(number, f'c 241:{number + 10}')

    def remove(self, van):
        (file,) = van.handle.files
        number = int(file.path[-1])
        self.nodes.remove(f'acc{number}')
        return lambda: self.add(number, f'c 240:{number}')


class TestIdxd(OnKernel):
    kinds = ('idxd',)
    __test__ = True
    ADDRESS = '0000:6a:01.0'

    @pytest.fixture(autouse=True)
    def hardware(self, kernel):
        self.model = idxd_model.Idxd(kernel)
        self.device = self.model.add(
            self.ADDRESS, queues=2, size=32, groups=1, engines=1
        )
        devices.spec({'idxd': self.ADDRESS, 'wq_size': 16})

    def two_devices(self):
        other = '0000:6f:01.0'
        self.model.add(other, queues=2, size=32, groups=1, engines=1)
        devices.spec(
            {'idxd': self.ADDRESS, 'wq_size': 16},
            {'idxd': other, 'wq_size': 16},
        )
        return devices.wanted('CUSTOM_DSA'), (self.ADDRESS, other)

    def make_driver(self):
        return IdxdDriver.load('idxd')

    def requests(self):
        return [devices.wanted('CUSTOM_DSA')]

    def look(self):
        return self.device.snapshot()

    def hold(self, van):
        (file,) = van.handle.files
        return self.opened(
            file.path, 'python3', f'c {file.major}:{file.minor}'
        )

    def remove(self, van):
        self.device.hide()
        self.kernel.take_off(self.ADDRESS)

        def put_back():
            self.kernel.come_back()
            self.model.sync()

        return put_back

    def reboot(self):
        self.model.reboot()


class TestNPU(OnKernel):
    kinds = ('npu',)
    __test__ = True
    ADDRESS = '0000:00:0b.0'

    @pytest.fixture(autouse=True)
    def hardware(self, kernel, monkeypatch):
        nodes = device_nodes.Nodes(kernel)
        nodes.install(monkeypatch)
        self.model = accel_model.Accel(kernel, nodes)
        self.model.add(self.ADDRESS)
        devices.spec({'npu': {'owner': 1001, 'mode': '0600'}})

    def two_devices(self):
        other = '0000:c5:00.1'
        self.model.add(other, 'amdxdna', '1022:17f0')
        return devices.wanted('CUSTOM_NPU'), (self.ADDRESS, other)

    def make_driver(self):
        return NPUDriver.load('npu')

    def requests(self):
        return [devices.wanted('CUSTOM_NPU')]

    def look(self):
        return self.model.snapshot()

    def device_number(self, path):
        return self.model.nodes.number(path)

    def hold(self, van):
        (file,) = van.handle.files
        return self.opened(
            file.path, 'python3', f'c {file.major}:{file.minor}'
        )

    def remove(self, van):
        self.model.leave(self.ADDRESS)
        return self.model.come_back

    def reboot(self):
        self.model.reboot()


class TestFPGA(OnKernel):
    kinds = ('fpga', 'pci')
    __test__ = True

    @pytest.fixture(autouse=True)
    def hardware(self, kernel, tmp_path):
        self.tool = vendor.installed(kernel, tmp_path / 'vendor')

    def two_devices(self):
        other = '0000:1a:00.0'
        self.kernel.add_function(other, '8086:09c4', 0x120000, 'dfl-pci')
        entry = self.tool.spec(num_vfs=None)
        devices.spec(
            {k: v for k, v in entry.items() if k != 'num_vfs'},
            {
                k: v
                for k, v in {**entry, 'address': other}.items()
                if k != 'num_vfs'
            },
        )
        return devices.wanted('FPGA'), (vendor.FPGA, other)

    def make_driver(self):
        return fpga.FPGADriver.load('fpga')

    def requests(self):
        return [devices.pci(vendor.VFS[0])]

    def hold(self, van):
        return self.opened(self.kernel.node(van.handle.address))

    def remove(self, van):
        self.kernel.take_off(vendor.FPGA)

        def put_back():
            self.kernel.come_back()
            self.make_vfs()

        return put_back

    def reboot(self):
        self.kernel.reboot()
        self.make_vfs()

    def make_vfs(self):
        """Do what another tool does at boot."""
        path = f'{self.kernel.pci}/devices/{vendor.FPGA}/sriov_numvfs'
        self.kernel.write(path, str(len(vendor.VFS)))


class TestNVMeOF(OnKernel):
    kinds = ('nvme_of',)
    __test__ = True
    NAMESPACES = (
        'uuid.1b4e28ba-2fa1-11d2-883f-0016d3cca427',
        'uuid.1b4e28ba-2fa1-11d2-883f-0016d3cca428',
    )

    @pytest.fixture(autouse=True)
    def hardware(self, kernel, monkeypatch):
        self.fabric = nvme_of_model.Fabric(kernel)
        self.fabric.install(monkeypatch)
        self.fabric.target(*self.NAMESPACES)
        names = [each.removeprefix('uuid.') for each in self.NAMESPACES]
        devices.spec(
            {
                'nvme_of': {
                    'nqn': nvme_of_model.NQN,
                    'portals': [['192.0.2.1', 4420, 'tcp']],
                    'namespaces': names,
                },
                'resource_class': 'CUSTOM_FAST',
            }
        )

    def two_devices(self):
        return devices.wanted('CUSTOM_FAST'), self.NAMESPACES

    def make_driver(self):
        return NVMeOFDriver.load('nvme_of')

    def requests(self):
        return [devices.wanted('CUSTOM_FAST') for _ in self.NAMESPACES]

    def look(self):
        """Which hosts are connected, by what name is not the same twice."""
        return [
            {key: each[key] for key in ('nqn', 'host', 'portal')}
            for each in self.fabric.connections()
        ]

    def foreign_handles(self):
        name = 'uuid.00000000-0000-0000-0000-000000000001'
        handle = objects.BlockHandle(
            path=f'/dev/disk/by-id/nvme-{name}', wwn=name
        )
        return [*super().foreign_handles(), handle]

    def hold(self, van):
        pid = self.fabric.hold(van.handle.wwn)
        return lambda: self.kernel.end(pid)

    def remove(self, van):
        """Its target takes the namespace away."""
        (directory,) = list(self.fabric.ctl.iterdir())
        self.fabric.end(directory.name)
        return lambda: None

    def reboot(self):
        self.fabric.reboot()


# --- plugins


class TestNoop(testing.PluginContract):
    def make_plugin(self):
        return acc_plug_noop.NoopPlugin.load('noop')

    def requests(self):
        return [devices.pci(devices.GPU), devices.mdev()]

    def look(self):
        return None

    def run_guest(self, instance):
        """Do nothing: the plugin asks no hypervisor."""

    end_guest = run_guest


class TestAny(TestNoop):
    """The plugin of the kit itself."""

    def make_plugin(self):
        return testing.AnyPlugin.load('any')


class TestLibvirt(testing.PluginContract):
    """On a stand-in for libvirtd."""

    @pytest.fixture(autouse=True)
    def libvirtd(self, monkeypatch):
        made = libvirt_double.Module()
        monkeypatch.setitem(sys.modules, 'libvirt', made)
        self.daemon = made.daemon

    def make_plugin(self):
        made = acc_plug_libvirt.LibvirtPlugin.load('libvirt')
        for name, value in {
            'connect_timeout': 0.1,
            'detach_timeout': 0.3,
            'detach_attempts': 1,
            'detach_attempt_timeout': 0.2,
        }.items():
            os_acc.CONF.set_override(name, value, 'os_acc_libvirt')
        return made

    def requests(self):
        return [devices.pci(devices.GPU), devices.mdev()]

    def two_handles(self):
        return [
            devices.pci(devices.GPU),
            devices.pci(OTHER_GPU),
            devices.mdev(),
            devices.mdev(),
        ]

    def definition(self, van):
        """As libvirt shows it: the guest address and another device."""
        element = van.guest_config.replace(
            '</hostdev>',
            '<address type="pci" domain="0x0000" bus="0x05" slot="0x00" '
            'function="0x0"/></hostdev>',
        )
        return (
            '<domain type="kvm" id="3"><name>x</name><devices>'
            '<disk type="file"/>' + element + '<hostdev mode="subsystem" '
            'type="usb"><source/></hostdev></devices></domain>'
        )

    def look(self):
        return {
            name: [len(domain.live), len(domain.config)]
            for name, domain in self.daemon.domains.items()
        }

    def changes(self):
        return [
            (libvirt_double.Domain, 'attachDeviceFlags'),
            (libvirt_double.Domain, 'detachDeviceFlags'),
        ]

    def run_guest(self, instance):
        self.daemon.domain(instance.uuid)

    def end_guest(self, instance):
        self.daemon.domains[instance.uuid].shut_off()

    def attached(self, van):
        return bool(self.daemon.domains[van.instance_uuid].live)

    def hold(self, van):
        """The guest does not answer."""
        domain = self.daemon.domains[van.instance_uuid]
        domain.answers = False

        def let_go():
            domain.answers = True

        return let_go

    def break_api(self):
        self.daemon.up = False

        def repair():
            self.daemon.up = True

        return repair


class TestCDI(testing.PluginContract):
    @pytest.fixture(autouse=True)
    def hardware(self, kernel):
        for address in (devices.GPU, OTHER_GPU):
            kernel.add_function(address, '10de:1eb8', 0x030200, 'nvidia')
        devices.spec({'address': devices.GPU}, {'address': OTHER_GPU})
        self.directory = kernel.root / 'run/cdi'

    def make_driver(self):
        return PCIDriver.load('pci')

    def make_plugin(self):
        made = acc_plug_cdi.CDIPlugin.load('cdi')
        os_acc.CONF.set_override('spec_dir', str(self.directory), 'os_acc_cdi')
        return made

    def requests(self):
        return [devices.pci(devices.GPU)]

    def two_handles(self):
        return [devices.pci(devices.GPU), devices.pci(OTHER_GPU)]

    def look(self):
        return files(self.directory)

    def reboot(self):
        super().reboot()
        for path in self.directory.iterdir():
            path.unlink()

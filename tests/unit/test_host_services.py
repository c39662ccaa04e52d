# SPDX-License-Identifier: Apache-2.0

"""What serves the host: console, boot, management, kernel, RDMA."""

from __future__ import annotations

import shutil
import uuid

import command
import devices
import disks
from hypothesis import given
from hypothesis import strategies
import pytest
import services

import os_acc
from os_acc.availability import host_use
from os_acc.availability.host_signs import boot_signs
from os_acc.kernel import network
from os_acc.kernel import pci
from os_acc.kernel import sysfs
from os_acc.privileged import context

CARD = services.CARD


@pytest.fixture
def here(kernel):
    devices.furnish(kernel)
    os_acc.initialize()
    return kernel


def use(address=CARD) -> str:
    """What the host uses a function for; empty: nothing."""
    found = host_use.by_host(pci.get(address))
    return found.text if found else ''


def free() -> int:
    (device,) = (x for x in os_acc.get_devices() if x.address == CARD)
    return device.handles_free


# --- console


@pytest.mark.parametrize(
    'name',
    [
        'BOOTFB',
        'efifb',
        'vesafb',
        'simplefb',
        'simpledrm',
        'efidrm',
        'offb',
        'ofdrm',
    ],
)
def test_a_built_in_display_without_boot_vga(here, name):
    """Class 0380: the frame buffer of the firmware is in its memory."""
    services.card(here, pci_class=0x038000)
    services.iomem(here, 'Reserved', name)
    assert f'in its memory ({name})' in use()
    assert use(devices.GPU) == ''


def test_a_frame_buffer_in_no_function(here):
    """It is in memory of its own; the next function has nothing of it."""
    services.card(here, pci_class=0x038000)
    here.write_file(
        'proc/iomem',
        '80000000-807fffff : BOOTFB\n'
        '90000000-9fffffff : PCI Bus 0000:3a\n'
        f'  90000000-9fffffff : {CARD}\n'
        '    90000000-9fffffff : i915\n',
    )
    assert use() == ''


def test_the_second_frame_buffer_has_no_console(here):
    services.frame_buffer(here)
    services.add_device(
        here, here.file(devices.GPU, '').resolve(), 'graphics/fb10'
    )
    assert 'fb0' in use()
    assert use(devices.GPU) == ''


def test_a_console_that_is_unbound_from_frame_buffers(here):
    services.frame_buffer(here)
    directory = 'sys/class/vtconsole/vtcon1'
    here.write_file(f'{directory}/name', '(M) frame buffer device\n')
    here.write_file(f'{directory}/bind', '1\n')
    assert 'fb0' in use()
    here.write_file(f'{directory}/bind', '0\n')
    assert use() == ''


@pytest.mark.parametrize(
    'options, used',
    [
        ('fbcon=map:1', False),
        ('fbcon=font:VGA8x16,map:1 quiet', False),
        ('fbcon=map:10', True),
        ('fbcon=nodefer', True),
    ],
)
def test_a_console_that_the_command_line_maps(here, options, used):
    services.frame_buffer(here)
    services.add_device(
        here, here.file(devices.GPU, '').resolve(), 'graphics/fb1'
    )
    here.write_file('proc/cmdline', f'root=/dev/sda1 {options}\n')
    assert ('fb0' in use()) is used
    assert ('fb1' in use(devices.GPU)) is ('map' in options)


def test_a_boot_display_by_the_file_of_pci(here):
    services.card(here, pci_class=0x038000, files={'boot_display': '1\n'})
    assert 'the host booted' in use()


def test_a_serial_console_by_the_list_of_consoles(here):
    services.line(here)
    here.write_file('sys/class/tty/console/active', 'tty0\n')
    assert use() == ''
    here.write_file(
        'proc/consoles',
        'tty0                 -WU (EC  p  )    4:1\n'
        'ttyS4                -W- (E   p a)    4:68\n',
    )
    assert 'ttyS4 on it is a console' in use()


@pytest.mark.parametrize(
    'handlers, used',
    [
        ('sysrq kbd leds event2', True),
        ('kbd event3', False),  # the buttons of a headset
        ('mouse0 event4', False),
    ],
)
def test_a_keyboard(here, handlers, used):
    services.keyboard(here, handlers)
    assert bool(use()) is used


def test_the_screens_of_other_cards(here):
    path = services.card(here, 'amdgpu', 0x030000)
    services.add_device(
        here, path, 'drm/card0-DP-1', enabled='disabled', status='connected'
    )
    assert use() == ''


def test_a_list_that_cannot_be_read_counts_for_each_function(
    here, monkeypatch
):
    """Which function it would have named is unknown."""
    read = sysfs.read_long

    def deny(path):
        if path.endswith('/consoles'):
            raise PermissionError(13, 'Permission denied', path)
        return read(path)

    monkeypatch.setattr(sysfs, 'read_long', deny)
    assert 'consoles cannot be read (Permission denied)' in use(devices.GPU)


# --- boot and crash


def test_a_boot_partition_on_a_disk_with_an_mbr(here):
    services.partition(here)
    directory = here.root / 'dev/disk/by-partuuid'
    (directory / '0badcafe-03').symlink_to('../../nvme9n1p1')
    signature = bytes.fromhex('fecaad0b').ljust(16, b'\0')
    services.variable(here, 'BootCurrent', bytes(2))
    option = services.boot_option(signature, 1, number=3)
    services.variable(here, 'Boot0000', option)
    assert 'booted the host from block device nvme9n1p1' in use()


def test_a_boot_partition_by_the_boot_loader(here):
    """systemd-boot or GRUB tells it, after a boot over the network too."""
    services.partition(here)
    text = f'{services.PARTITION.upper()}\0'.encode('utf-16-le')
    services.variable(
        here,
        'LoaderDevicePartUUID',
        text,
        '4a67b082-0a4c-41cf-b6c7-440b29bb8c4f',
    )
    assert 'nvme9n1p1' in use()


def test_a_boot_partition_without_the_links_of_udev(here):
    """A container has a /dev of its own; new kernels tell the UUID."""
    part = services.partition(here)
    option = services.boot_option(uuid.UUID(services.PARTITION).bytes_le, 2)
    services.variable(here, 'BootCurrent', bytes(2))
    services.variable(here, 'Boot0000', option)
    shutil.rmtree(here.root / 'dev/disk')
    assert use() == ''
    (part / 'uevent').write_text(
        f'PARTN=1\nPARTUUID={services.PARTITION}\nDEVNAME=nvme9n1p1\n'
    )
    assert 'booted the host from block device nvme9n1p1' in use()


def test_another_boot_partition(here):
    services.partition(here)
    services.variable(here, 'BootCurrent', bytes(2))
    option = services.boot_option(uuid.uuid4().bytes_le, 2)
    services.variable(here, 'Boot0000', option)
    assert use() == ''


def adapter(kernel, option: bytes) -> str:
    """A RAID adapter behind a bridge, and the boot option that was used."""
    kernel.add_function('0000:00:03.2', '8086:6f0a', 0x060400, 'pcieport')
    bridge = kernel.file('0000:00:03.2', '').resolve()
    disks.add_child(kernel, bridge, '0000:0a:00.0')
    services.variable(kernel, 'BootCurrent', bytes((8, 0)))
    services.variable(kernel, 'Boot0008', option)
    return '0000:0a:00.0'


def test_a_boot_option_that_names_an_adapter(here):
    """HPE: PciRoot(0x0)/Pci(0x3,0x2)/Pci(0x0,0x0)/Scsi(0x0,0x4000)."""
    address = adapter(here, services.adapter_option((3, 2), (0, 0)))
    text = 'has booted the host from one of its disks'
    assert text in use(address)
    assert text in str(devices.refused(devices.pci(address)))
    assert use(devices.DISK) == ''


def test_a_boot_option_on_another_root_bus(here):
    option = services.adapter_option((3, 2), (0, 0), root=5)
    address = adapter(here, option)
    assert 'has booted' in use(address)
    directory = 'sys/devices/pci0000:00/firmware_node'
    here.write_file(f'{directory}/uid', '0\n')
    assert use(address) == ''
    here.write_file(f'{directory}/uid', '5\n')
    assert 'has booted' in use(address)


def test_a_boot_option_of_a_partition_tells_more_than_its_adapter(here):
    """The partition may be on another disk since then."""
    option = services.boot_path(
        (2, 1, bytes.fromhex('d041030a00000000')),
        (1, 1, bytes((2, 3))),
        (1, 1, bytes(2)),
        (4, 1, bytes(38)),
    )
    assert use(adapter(here, option)) == ''


def test_a_boot_over_a_network_card_of_usb(here):
    """A management controller has one: Pci(0x14,0x0)/USB(..)/MAC(..)."""
    option = services.boot_path(
        (2, 1, bytes.fromhex('d041030a00000000')),
        (1, 1, bytes((2, 3))),
        (1, 1, bytes(2)),
        (3, 5, bytes(2)),
        (3, 11, bytes(33)),
    )
    assert use(adapter(here, option)) == ''


@pytest.mark.parametrize('pci_class, used', [(0x010700, True), (0x020000, 0)])
def test_a_boot_over_the_network_is_none_from_a_disk(here, pci_class, used):
    services.card(here, pci_class=pci_class)
    places = [(int(services.CARD[8:10], 16), 0)]
    services.variable(here, 'BootCurrent', bytes(2))
    services.variable(here, 'Boot0000', services.adapter_option(*places))
    assert bool(use()) is bool(used)


@pytest.mark.parametrize(
    'options, used',
    [
        ('root=/dev/sda1 quiet', True),
        ('root=UUID=x BOOTIF=01-52-54-00-12-34-56', False),
        ('root=/dev/nfs nfsroot=192.0.2.1:/srv', False),
    ],
)
def test_the_first_disk_of_a_bios(here, options, used):
    """It is there after a boot over the network, too."""
    services.bios(here)
    here.write_file('proc/cmdline', f'{options}\n')
    assert ('has booted the host' in use()) is used


@pytest.mark.parametrize('signature', ['0x0badcafe', '0x00000000'])
def test_the_signature_of_the_first_disk_of_a_bios(here, signature):
    services.partition(here)
    directory = here.root / 'dev/disk/by-partuuid'
    (directory / '0badcafe-01').symlink_to('../../nvme9n1p1')
    place = 'sys/firmware/edd/int13_dev80'
    here.write_file(f'{place}/mbr_signature', f'{signature}\n')
    used = 'booted the host from block device nvme9n1p1' in use()
    assert used is (signature == '0x0badcafe')


def test_the_disk_of_a_bios_without_udevs_links(here):
    part = services.partition(here)
    shutil.rmtree(here.root / 'dev/disk')
    (part / 'uevent').write_text('PARTN=1\nPARTUUID=0badcafe-01\n')
    place = 'sys/firmware/edd/int13_dev80'
    here.write_file(f'{place}/mbr_signature', '0x0badcafe\n')
    assert 'booted the host from block device nvme9n1p1' in use()


@given(option=strategies.binary(max_size=80))
def test_a_boot_option_of_any_bytes(tmp_path_factory, option):
    """A fault of the firmware stops no discovery."""
    directory = tmp_path_factory.mktemp('sys')
    place = directory / 'firmware/efi/efivars'
    place.mkdir(parents=True)
    name = '-8be4df61-93ca-11d2-aa0d-00e098032b8c'
    (place / f'BootCurrent{name}').write_bytes(bytes(6))
    (place / f'Boot0000{name}').write_bytes(bytes(4) + option)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sysfs, 'SYS', str(directory))
        host = host_use.Snapshot({'sda': '/x'}, {})
        (sign, *_) = boot_signs.SIGNS
        assert sign.find(host, 'sda') is None
        assert not boot_signs.shows_boot_disk(host)


@pytest.mark.parametrize(
    'text, used',
    [
        ('xfs UUID=ABCD-1234\n', True),
        ('ext4 "PARTUUID=' + services.PARTITION + '"\n', True),
        ('ext4 /dev/disk/by-uuid/ABCD-1234\n', True),
        ('#raw /dev/nvme9n1p1\npath /var/crash\n', False),
        ('nfs server:/dev/nvme9n1p1\n', False),
        ('raw /dev/nvme9n1\n', True),
        ('dracut_args --mount "/dev/nvme9n1p1 /mnt xfs"\n', True),
        ('dracut_args --debug --mount=UUID=ABCD-1234\n', True),
        ('dracut_args --mount "server:/share /mnt nfs4"\n', False),
        ('dracut_args\nraw\n', False),
    ],
)
def test_the_target_of_a_crash_dump(here, text, used):
    services.crash_kernel(here, text)
    assert ('(kdump)' in use()) is used
    here.write_file('sys/kernel/kexec_crash_loaded', '0\n')
    assert use() == ''


@pytest.mark.parametrize('file', ['fadump/registered', 'fadump_registered'])
def test_a_dump_by_the_firmware_of_power(here, file):
    services.crash_kernel(here)
    here.write_file('sys/kernel/kexec_crash_loaded', '0\n')
    here.write_file(f'sys/kernel/{file}', '1\n')
    assert '(kdump)' in use()


# --- management


@pytest.mark.parametrize(
    'files, text',
    [
        ({'state': 'inactive'}, ''),
        ({}, 'watchdog0 on it may run: the kernel does not show it'),
    ],
)
def test_a_watchdog(here, files, text):
    path = services.card(here, 'iTCO_wdt')
    services.add_device(here, path, 'iTCO_wdt.1/watchdog/watchdog0', **files)
    assert text in use()
    assert bool(use()) is bool(text)


def test_a_tpm_on_a_bus_of_the_function(here):
    path = services.card(here, 'intel-spi')
    services.add_device(here, path, 'spi_master/spi0/spi0.1/tpm/tpm0')
    assert 'TPM tpm0' in use()


def test_a_management_controller_behind_smbus(here):
    path = services.card(here, 'i801_smbus')
    services.add_device(here, path, 'i2c-0/0-0010/ipmi/ipmi0')
    assert 'ipmi0' in use()


@pytest.mark.parametrize('place', ['', 'i2c-0/0-0010'])
def test_a_management_controller_without_a_file(here, place):
    """The module ipmi_devintf is not loaded, and ipmi_watchdog is."""
    path = services.card(here, 'ipmi_si', 0x0C0701) / place
    path.mkdir(parents=True, exist_ok=True)
    bmc = here.sys / 'devices/platform/ipmi_bmc.0'
    bmc.mkdir(parents=True)
    (bmc / 'ipmi0').symlink_to(path)
    directory = here.sys / 'bus/platform/devices'
    directory.mkdir(parents=True, exist_ok=True)
    (directory / 'ipmi_bmc.0').symlink_to(bmc)
    assert '(BMC) through it (ipmi0)' in use()
    assert use(devices.GPU) == ''


def test_the_default_route_of_ipv6_of_any_table(here):
    services.card(here, 'e1000e', 0x020000, net='eth9')
    here.write_file(
        'proc/net/ipv6_route',
        f'{"0" * 32} 00 {"0" * 32} 00 {"f" * 32} 400 1 0 3 eth9\n',
    )
    assert 'eth9 has the default route' in use()


# --- the kernel


def test_an_algorithm_that_nobody_uses(here):
    services.card(here, '4xxx', 0x0B4000)
    services.holder(here, 'intel_qat', '4xxx')
    services.algorithm(here, 'intel_qat', 1)
    assert use() == ''


def test_an_algorithm_of_a_module_above_the_driver(here):
    services.card(here, 'ccp', 0x108000)
    services.holder(here, 'ccp', 'ccp_crypto')
    services.algorithm(here, 'ccp_crypto', 2)
    assert 'xts(aes)' in use()
    assert use(devices.PF) == ''


def test_an_algorithm_of_virtio(here):
    path = services.card(here, 'virtio-pci', 0x100000, '1af4:1054')
    driver = path / 'virtio5/driver'
    driver.mkdir(parents=True)
    (driver / 'module').symlink_to(here.sys / 'module/virtio_crypto')
    services.algorithm(here, 'virtio_crypto', 3)
    assert 'xts(aes)' in use()


def test_an_algorithm_of_software_that_the_driver_needs(here):
    """authenc is used by IPsec, and the driver needs its module too."""
    services.card(here, 'hisi_sec2', 0x100000)
    services.holder(here, 'authenc', 'hisi_sec2')
    services.algorithm(here, 'authenc', 5)
    assert use() == ''


def test_a_function_in_vfio_does_no_algorithm_of_the_host(here):
    services.card(here, 'vfio-pci', 0x0B4000)
    services.holder(here, 'intel_qat', 'vfio-pci')
    services.algorithm(here, 'intel_qat', 2)
    assert use() == ''


@pytest.mark.parametrize('state, used', [('down', False), ('up', True)])
def test_a_qat_device_that_is_stopped(here, state, used):
    services.card(here, '4xxx', 0x0B4000, files={'qat/state': state})
    services.holder(here, 'intel_qat', '4xxx')
    services.algorithm(here, 'intel_qat', 2)
    assert bool(use()) is used


def test_a_dsa_device_beside_an_iaa_device_in_use(here):
    """zswap with deflate-iaa: both have the driver idxd."""
    services.card(here, 'idxd', 0x088000, '8086:0b25')
    services.holder(here, 'idxd', 'iaa_crypto')
    services.algorithm(here, 'iaa_crypto', 2)
    assert use() == ''


def test_cxl_memory_that_is_not_mapped(here):
    services.cxl_memory(here, 0)
    assert use() == ''


def test_cxl_memory_without_an_endpoint(here):
    """The modules cxl_mem and cxl_port are not loaded."""
    path = services.card(here, 'cxl_pci', 0x050210)
    (path / 'mem0').mkdir()
    assert 'memory of CXL device mem0' in use()


@pytest.mark.parametrize('driver', [None, 'vfio-pci', 'cxl_pci'])
def test_cxl_memory_without_a_memory_device(here, driver):
    """The driver cxl_pci has failed, or the function has another one."""
    services.card(here, driver, 0x050210)
    assert use() == ''


def test_an_accelerator_with_cxl_memory_of_its_driver(here):
    """Not a memory device of the host: its driver uses the memory."""
    path = services.card(here, 'sfc', 0x020000)
    (path / 'mem0').mkdir()
    assert use() == ''


def test_a_crypto_device_without_a_secure_processor(here):
    """EPYC 7001 has both kinds, and DPDK gives the second to guests."""
    services.card(here, 'ccp', 0x108000, '1022:1468')
    here.write_file('sys/module/kvm_amd/parameters/sev', 'Y\n')
    assert use() == ''


def test_no_guest_is_protected(here):
    services.card(here, 'ccp', 0x108000, '1022:1486')
    here.write_file('sys/module/kvm_amd/parameters/sev', 'N\n')
    assert use() == ''


# --- functions of class network without an interface


def test_an_infiniband_vf_without_an_interface(here):
    services.infiniband(here)
    assert use() == ''
    assert free() == 1
    os_acc.plug(devices.instance(), [devices.pci(CARD)])
    assert here.driver_of(CARD) == 'vfio-pci'


@pytest.mark.parametrize(
    'name, number, program',
    [
        ('uverbs0', 'c 231:192', 'ib_write_bw'),
        ('umad0', 'c 231:0', 'opensm'),
        ('issm0', 'c 231:64', 'opensm'),
    ],
)
def test_a_program_that_has_its_files_open(here, name, number, program):
    services.infiniband(here)
    pid = here.hold(here.root / f'dev/infiniband/{name}', program, number)
    error = str(devices.refused(devices.pci(CARD)))
    assert f'process {pid} ({program})' in error
    assert f'/infiniband/{name}' in error
    assert 'namespace' not in error
    here.end(pid)
    os_acc.plug(devices.instance(), [devices.pci(CARD)])


def test_a_program_that_has_the_files_of_another_open(here):
    """The PF's verbs: the function's own are free."""
    services.infiniband(here)
    path = here.add_function('0000:3b:00.1', '15b3:1021', 0x020700, 'mlx5')
    services.add_device(here, path, 'infiniband/mlx5_0')
    directory = services.add_device(here, path, 'infiniband_verbs/uverbs7')
    (directory / 'uevent').write_text('DEVNAME=infiniband/uverbs7\n')
    (here.sys / 'dev/char/231:199').symlink_to(directory)
    here.rdma_contexts['mlx5_0'] = 4
    here.hold(here.root / 'dev/infiniband/uverbs7', 'ucx', 'c 231:199')
    assert 'mlx5_0: it has 4 user contexts' in use('0000:3b:00.1')
    os_acc.plug(devices.instance(), [devices.pci(CARD)])


def test_user_contexts_are_seen_without_privilege(here):
    services.infiniband(here, 1)
    assert free() == 0


def test_an_rdma_device_in_another_namespace(here):
    """rdma system set netns exclusive, and rdma dev set DEV netns NAME."""
    path = services.infiniband(here)
    (path / 'infiniband/mlx5_1').rmdir()
    assert 'an RDMA device of it is in another network namespace' in use()


def test_the_files_of_omni_path(here):
    path = services.card(here, 'hfi1', 0x020800, '8086:24f0')
    directory = services.add_device(here, path, 'hfi1_user/hfi1_0')
    (directory / 'uevent').write_text('DEVNAME=hfi1_0\n')
    (here.sys / 'dev/char').mkdir(parents=True)
    (here.sys / 'dev/char/510:0').symlink_to(directory)
    here.add_node('/dev/hfi1_0', 'c 510:0')
    assert use() == ''
    pid = here.hold(here.root / 'dev/hfi1_0', 'mpirun', 'c 510:0')
    assert f'process {pid} (mpirun)' in str(devices.refused(devices.pci(CARD)))


def test_a_network_card_of_dpdk(here):
    path = services.card(here, 'uio_pci_generic', 0x020000)
    directory = services.add_device(here, path, 'uio/uio0')
    (directory / 'uevent').write_text('DEVNAME=uio0\n')
    (here.sys / 'dev/char').mkdir(parents=True)
    (here.sys / 'dev/char/243:0').symlink_to(directory)
    here.add_node('/dev/uio0', 'c 243:0')
    assert use() == ''
    pid = here.hold(here.root / 'dev/uio0', 'testpmd', 'c 243:0')
    error = str(devices.refused(devices.pci(CARD)))
    assert f'process {pid} (testpmd) has' in error


def test_a_driver_that_makes_nothing(here):
    """mlx5_core alone, without mlx5_ib: nobody can use the function."""
    services.card(here, 'mlx5_core', 0x020700, '15b3:101e')
    assert free() == 1


@pytest.mark.parametrize(
    'pci_class, driver, place',
    [
        (0x020000, 'virtio-pci', 'virtio0/net'),
        (0x020000, 'mlx5_core', 'mlx5_core.sf.4/net'),
        (0x0C0330, 'xhci_hcd', 'usb1/1-2/1-2:1.0/net'),
        (0x120000, 'vendor', 'net'),
    ],
)
def test_an_interface_in_another_namespace(here, pci_class, driver, place):
    path = services.card(here, driver, pci_class)
    (path / place).mkdir(parents=True)
    text = 'an interface of it is in another network namespace'
    assert f'{text}: driver {driver}' in use()


def test_one_of_two_interfaces_in_another_namespace(here, monkeypatch):
    """A card of two ports in one function, such as those of mlx4."""
    services.card(here, 'mlx4_core', 0x020000, net='eth9')
    assert use() == ''
    # Directories have no such number of links in each file system of tests.
    monkeypatch.setattr(
        sysfs, 'count_directories', lambda path: 2 * path.endswith('/net')
    )
    assert 'an interface of it is in another network namespace' in use()


def test_the_links_of_a_directory_that_is_gone(tmp_path):
    assert sysfs.count_directories(str(tmp_path / 'net')) == 0


def test_the_kernel_is_not_asked_without_an_rdma_device(here, monkeypatch):
    """A socket of that family could load a module."""

    def load():
        raise AssertionError

    monkeypatch.setattr(network, 'ask', load)
    assert network.user_contexts() == {}


@pytest.mark.parametrize('answer', [b'', b'\1\2\3', bytes(64)])
def test_an_answer_that_tells_nothing(here, monkeypatch, answer):
    services.infiniband(here, None)
    monkeypatch.setattr(network, 'ask', lambda: answer)
    assert network.user_contexts() == {}


def test_a_kernel_without_netlink_for_rdma(here, monkeypatch):
    services.infiniband(here, None)

    def refuse():
        raise OSError(93, 'Protocol not supported')

    monkeypatch.setattr(network, 'ask', refuse)
    assert use() == ''


# --- what the doctor says where no sign can tell


@pytest.fixture
def doctor(here, capsys, monkeypatch):
    """What the doctor says of CARD."""
    monkeypatch.setattr(context, 'whoami', lambda: (0, []))
    monkeypatch.setattr(context, 'check_users', lambda: None)
    devices.spec({'address': CARD})

    def ask() -> str:
        path = os_acc.CONF.os_acc.state_path
        run = command.Command(path, capsys, monkeypatch)
        return '\n'.join(
            f'{row["finding"]} {row["what_to_do"]}'
            for row in run('doctor', '-f', 'json').json
            if CARD in row['subject']
        )

    return ask


def _no_console_file(kernel):
    services.card(kernel, pci_class=0x038000)
    (kernel.root / 'proc/iomem').unlink()


def _firmware_not_mounted(kernel):
    services.partition(kernel)
    kernel.write_file('sys/firmware/efi/runtime', '')


def _option_of_the_maker(kernel):
    """Lenovo: VenMsg(bc7838d2-0f82-4d60-8316-c068ee79d25b,...)."""
    services.partition(kernel)
    services.variable(kernel, 'BootCurrent', bytes(2))
    services.variable(kernel, 'Boot0000', services.boot_path((3, 10, b'x')))


def _booted(kernel):
    """A BIOS, or UEFI, that tells the disk: it is another one."""
    (kernel.sys / 'firmware/edd/int13_dev80').mkdir(parents=True)
    (kernel.sys / 'firmware/edd/int13_dev80/pci_dev').symlink_to(
        kernel.pci / 'devices' / devices.DISK
    )


def _no_links(kernel):
    services.partition(kernel)
    option = services.boot_option(uuid.UUID(services.PARTITION).bytes_le, 2)
    services.variable(kernel, 'BootCurrent', bytes(2))
    services.variable(kernel, 'Boot0000', option)
    shutil.rmtree(kernel.root / 'dev/disk')


def _dump_to_no_disk(kernel):
    services.crash_kernel(kernel, 'xfs UUID=ABCD-1234\n')
    shutil.rmtree(kernel.root / 'dev/disk')


def _pool(kernel):
    services.partition(kernel)
    (kernel.root / 'proc/spl/kstat/zfs/tank').mkdir(parents=True)


def _crash_kernel_of_another_root(kernel):
    services.crash_kernel(kernel)
    (kernel.root / 'etc/kdump.conf').unlink()


def _driver_in_the_kernel(kernel):
    services.card(kernel, 'qat_4xxx', 0x0B4000)
    (kernel.pci / 'drivers/qat_4xxx/module').unlink()


BOOT = 'from which disk the firmware'
BLIND = {
    'console': (_no_console_file, "whether the host's console is on it"),
    'boot disk': (_firmware_not_mounted, BOOT),
    'boot disk of a BIOS': (services.partition, BOOT),
    'boot disk of a maker': (_option_of_the_maker, BOOT),
    'boot disk without links of udev': (_no_links, "udev's links below /dev"),
    'crash dump to no disk': (
        _dump_to_no_disk,
        'kdump names /dev/disk/by-uuid/ABCD-1234, and no block device',
    ),
    'pool': (_pool, 'whether it is a member of a ZFS pool: tank'),
    'crash dump': (_crash_kernel_of_another_root, 'whether the crash kernel'),
    'algorithms': (_driver_in_the_kernel, 'uses its algorithms'),
    'CXL memory': (
        lambda kernel: services.card(kernel, pci_class=0x050210),
        "whether its memory is the host's memory",
    ),
    'RDMA': (
        lambda kernel: services.infiniband(kernel, None),
        'how many programs use its RDMA device mlx5_1',
    ),
}


@pytest.mark.parametrize('what', BLIND)
def test_the_doctor_says_what_cannot_be_told(here, doctor, what):
    make, text = BLIND[what]
    make(here)
    assert text in doctor()


@pytest.mark.parametrize(
    'make',
    [
        lambda kernel: services.card(kernel, pci_class=0x038000),
        lambda kernel: [services.partition(kernel), _booted(kernel)],
        # A disk without partitions has no boot loader.
        lambda kernel: services.card(
            kernel, 'nvme', 0x010802, block='nvme9n1'
        ),
        lambda kernel: [services.crash_kernel(kernel), _booted(kernel)],
        lambda kernel: services.card(kernel, 'qat_4xxx', 0x0B4000),
        lambda kernel: services.cxl_memory(kernel, 0),
        lambda kernel: services.cxl_memory(kernel, None),
        services.infiniband,
        lambda kernel: [
            _pool(kernel),
            _booted(kernel),
            kernel.write_file('run/udev/data/b259:91', 'E:ID_FS_TYPE=xfs\n'),
        ],
    ],
)
def test_the_doctor_is_silent_where_the_signs_tell(here, doctor, make):
    make(here)
    said = doctor()
    assert said
    assert not any(text in said for _, text in BLIND.values())

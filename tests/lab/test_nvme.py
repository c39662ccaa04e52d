# SPDX-License-Identifier: Apache-2.0

"""An NVMe drive between two tenants: nobody reads what the first has written.

The tenant uses the drive through VFIO, with the project's own NVMe driver.
QEMU's NVMe supports Format NVM, and no Sanitize (hw/nvme/ctrl.c).
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import os
import pathlib
import signal
import subprocess
import time

import lab_devices
import processes
import pytest
import use

import os_acc
from os_acc import exception
from os_acc import journal
from os_acc.privileged.nvme import commands
from os_acc.privileged.nvme import controller as controllers
from os_acc.privileged.nvme import function

DISK = lab_devices.NVME_DISK
SECRET = b'what-a-tenant-has-written-'
INSTANCE = '1b0a6bb0-1111-4222-8333-777755556666'
REQUEST = '00000000-1111-4222-8333-777755556666'
MIB = 1 << 20


class Tenant:
    """A guest's own NVMe driver."""

    def __init__(self, controller: controllers.Controller) -> None:
        self._controller = controller
        data = controller.admin(commands.identify_namespace(1))
        self.namespace = commands.Namespace.decode(data)
        controller.start_io()
        self.at_once = controller.blocks_at_once(self.namespace, MIB)

    @property
    def size(self) -> int:
        return self.namespace.blocks * self.namespace.data_size

    def write(self, block: int, data: bytes) -> None:
        number = len(data) // self.namespace.data_size
        # NVM 3.2.6
        write = commands.Command(
            f'Write of block {block}',
            commands.WRITE,
            1,
            block & 0xFFFFFFFF,
            block >> 32,
            number - 1,
        )
        self._controller.transfer(write, self.namespace, number, data)

    def read_all(self) -> Iterator[bytes]:
        blocks = self.namespace.blocks
        for block in range(0, blocks, self.at_once):
            number = min(self.at_once, blocks - block)
            yield self._controller.transfer(
                commands.read(1, block, number), self.namespace, number
            )

    def fill(self) -> None:
        """Write a pattern into every block, and a partition table on top."""
        size = self.namespace.data_size
        for block in range(0, self.namespace.blocks, self.at_once):
            number = min(self.at_once, self.namespace.blocks - block)
            self.write(
                block,
                b''.join(pattern(block + n, size) for n in range(number)),
            )
        self.write(0, partition_table(self.namespace))
        # The label of an LVM physical volume is in one of four sectors.
        self.write(1, b'LABELONE' + pattern(1, size - 8))


def pattern(block: int, size: int) -> bytes:
    """What a block is filled with; it is another one in each block."""
    own = SECRET + b'%d ' % block
    return (own * (size // len(own) + 1))[:size]


def partition_table(namespace: commands.Namespace) -> bytes:
    """An MBR with one partition of Linux, in the first block."""
    sectors = namespace.blocks * namespace.data_size // 512
    entry = b'\0\0\x02\0\x83\xff\xff\xff' + (2048).to_bytes(4, 'little')
    entry += (sectors - 2048).to_bytes(4, 'little')
    table = SECRET.ljust(446, b'.')[:446] + entry
    return (table.ljust(510, b'\0') + b'\x55\xaa').ljust(
        namespace.data_size, b'\0'
    )


@contextlib.contextmanager
def tenant(address: str = DISK) -> Iterator[Tenant]:
    with function.opened(address) as access:
        controller = controllers.Controller(access, address)
        controller.start()
        yield Tenant(controller)
        controller.stop()


def request():
    made = use.pci_request(DISK)
    made.uuid = REQUEST
    return made


def plug(instance: str = INSTANCE) -> None:
    os_acc.plug(use.instance(instance), [request()])


def block_device() -> pathlib.Path:
    """The host's block device of the drive, once its driver has made it."""
    directory = pathlib.Path(f'/sys/bus/pci/devices/{DISK}/nvme')
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for found in directory.glob('nvme*/nvme*n1'):
            if os.path.exists(f'/dev/{found.name}'):
                return pathlib.Path('/dev') / found.name
        time.sleep(0.1)
    raise AssertionError('the host has no block device of the drive')


def read_by_host() -> bytes:
    with open(block_device(), 'rb', buffering=0) as file:
        return b''.join(iter(lambda: file.read(MIB), b''))


@pytest.fixture
def built_in(configured):
    """The drive is emptied by os-acc alone, without cleaning_command."""
    configured.set_override('cleaning_command', '', 'os_acc')
    return configured


@pytest.fixture
def events():
    """What udev is told of block devices, and says of them."""
    what = ['--kernel', '--udev', '--property', '--subsystem-match=block']
    with subprocess.Popen(
        ['udevadm', 'monitor', *what],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        time.sleep(2)

        def stop() -> str:
            subprocess.run(
                ['udevadm', 'settle', '--timeout=60'], check=True, timeout=90
            )
            time.sleep(1)
            process.send_signal(signal.SIGTERM)
            output, _ = process.communicate(timeout=60)
            return output

        yield stop
        process.kill()


def test_nothing_is_left_for_the_host(built_in, events, snapshot, report):
    before = snapshot()
    plug()
    with tenant() as guest:
        guest.fill()
        assert any(SECRET in data for data in guest.read_all())
        size = guest.size
    start = time.monotonic()
    assert os_acc.unplug(use.instance(INSTANCE)) == 1
    took = time.monotonic() - start
    content = read_by_host()
    assert len(content) == size
    assert content.count(0) == size
    seen = events()
    name = block_device().name
    assert f'DEVNAME=/dev/{name}\n' in seen
    assert f'/dev/{name}p1' not in seen
    assert 'ID_PART_TABLE_TYPE' not in seen
    assert 'LVM' not in seen
    assert snapshot() == before
    report(
        f'lab: an NVMe drive of {size // MIB} MiB was emptied and verified in '
        f'{took:.1f} s'
    )


def test_udev_sees_a_partition_that_is_there(built_in, events):
    """The check above would find one."""
    device = block_device()
    with open(device, 'r+b', buffering=0) as file:
        file.write(
            partition_table(commands.Namespace(131072, 0, 0, 0, 512, 0))
        )
    try:
        subprocess.run(
            ['blockdev', '--rereadpt', device], check=True, timeout=60
        )
        seen = events()
        assert f'{device}p1' in seen
    finally:
        with open(device, 'r+b', buffering=0) as file:
            file.write(bytes(4096))
        subprocess.run(
            ['blockdev', '--rereadpt', device], check=True, timeout=60
        )


def test_nothing_is_left_for_the_next_tenant(built_in, events):
    """It stays bound to VFIO in between, so the host sees nothing at all."""
    built_in.set_override('between_tenants', 'vfio', 'os_acc_pci')
    plug()
    with tenant() as guest:
        guest.fill()
    os_acc.unplug(use.instance(INSTANCE))
    assert use.driver_of(DISK) == 'vfio-pci'
    plug(use.instance().uuid)
    with tenant() as guest:
        assert all(data == bytes(len(data)) for data in guest.read_all())
        guest.fill()
    (van,) = os_acc.get_vans()
    built_in.set_override('between_tenants', 'host', 'os_acc_pci')
    os_acc.unplug(use.instance(van.instance_uuid))
    assert use.driver_of(DISK) == 'nvme'
    assert SECRET not in read_by_host()
    assert 'ID_PART_TABLE_TYPE' not in events()


def states(path: pathlib.Path) -> dict[str, str]:
    opened = journal.Journal(str(path / 'state'), 5, read_only=True)
    try:
        return {e.van.instance_uuid: e.van.state for e in opened.entries()}
    finally:
        opened.close()


@pytest.mark.parametrize('after', [False, True])
def test_killed_while_it_is_emptied(tmp_path, snapshot, after):
    """kill -9 just before and just after the erase of the drive."""
    before = snapshot()

    def work() -> None:
        use.configure(tmp_path / 'state')
        os_acc.CONF.set_override('cleaning_command', '', 'os_acc')
        plug()
        with tenant() as guest:
            guest.fill()
        original = controllers.Controller.admin

        def admin(self, command, *args, **kwargs):
            erases = command.opcode == commands.FORMAT_NVM
            if erases and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = original(self, command, *args, **kwargs)
            if erases:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        controllers.Controller.admin = admin
        os_acc.unplug(use.instance(INSTANCE))

    assert processes.run(work) == -signal.SIGKILL
    assert states(tmp_path).keys() == {INSTANCE}
    assert states(tmp_path)[INSTANCE] != 'plugged'
    assert use.driver_of(DISK) == 'vfio-pci'

    def others() -> None:
        """It is not given out in between, whatever recovery is held up by."""
        use.configure(tmp_path / 'state', initialize=False)
        os_acc.CONF.set_override('cleaning_command', '', 'os_acc')
        with function.opened(DISK):
            # Like a guest, this has it open: recovery cannot clean it.
            os_acc.CONF.set_override('release_timeout', 0.0, 'os_acc')
            os_acc.initialize()
            with pytest.raises(exception.PlugException) as caught:
                os_acc.plug(use.instance(), [use.pci_request(DISK)])
            assert isinstance(caught.value.__cause__, exception.DeviceBusy)

    assert processes.run(others) == 0
    assert states(tmp_path) == {INSTANCE: 'error'}

    def recovered() -> None:
        use.configure(tmp_path / 'state', initialize=False)
        os_acc.CONF.set_override('cleaning_command', '', 'os_acc')
        os_acc.initialize()
        assert not os_acc.get_vans()

    assert processes.run(recovered) == 0
    assert use.driver_of(DISK) == 'nvme'
    assert SECRET not in read_by_host()
    assert snapshot() == before


def test_a_vf_that_cannot_be_emptied_is_refused(built_in, snapshot):
    """The secondary controllers of QEMU's VFs are offline."""
    before = snapshot()
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(use.instance(), [use.pci_request(use.VFS[0])])
    assert 'offline' in str(caught.value.__cause__)
    assert caught.value.undo_errors == []
    assert not os_acc.get_vans()
    assert snapshot() == before

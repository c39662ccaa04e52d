# SPDX-License-Identifier: Apache-2.0

"""Devices of Intel DSA and IAA in the generated kernel of os_acc.testing.

The files are those of Documentation/ABI/stable/sysfs-driver-dma-idxd. What a
write does, and when it is refused with which error, follows
drivers/dma/idxd/sysfs.c, device.c, cdev.c and bus.c of Linux 6.7.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import errno
import functools
import os
import pathlib
import shutil
from typing import Any

from os_acc.kernel import device_files
from os_acc.kernel import open_files
from os_acc.testing import kernel as kernel_module

NO_GROUP = -1
DEFAULT_TRANSFER, DEFAULT_BATCH = 2097152, 32


@dataclasses.dataclass
class Queue:
    """A work queue. driver_name survives wipe(), as size and group do."""

    number: int
    size: int = 0
    group: int = NO_GROUP
    driver_name: str = ''
    state: str = 'disabled'
    type: str = 'none'
    dedicated: bool = False
    priority: int = 0
    threshold: int = 0
    name: str = ''
    max_transfer_size: int = DEFAULT_TRANSFER
    max_batch_size: int = DEFAULT_BATCH
    clients: int = 0
    minor: int | None = None
    driver: str | None = None

    def wipe(self) -> None:
        """idxd_wq_disable_cleanup() in device.c."""
        fresh = Queue(self.number, self.size, self.group, self.driver_name)
        self.__dict__.update(fresh.__dict__)


class Device:
    """A DSA or IAA with its PCI function.

    :param number: the kernel's number of it, as in dsa0
    :ivar swq: whether CPU and kernel support shared work queues
    :ivar refused: errno of the next enabling of a work queue, by its number
    """

    def __init__(
        self,
        model: Idxd,
        address: str,
        number: int,
        kind: str,
        queues: int,
        size: int,
        groups: int,
        engines: int,
    ) -> None:
        self.model, self.address = model, address
        self.number, self.kind = number, kind
        self.max_queues, self.max_size = queues, size
        self.max_groups, self.max_engines = groups, engines
        self.configurable, self.pasid, self.swq = 1, 1, True
        self.refused: dict[int, int] = {}
        self._shown: dict[str, str] = {}
        self.start()

    def start(self) -> None:
        """As after the driver has found it."""
        self.state, self.status, self.driver = 'disabled', 0, False
        self.queues = [Queue(number) for number in range(self.max_queues)]
        self.engines = [NO_GROUP] * self.max_engines

    @property
    def name(self) -> str:
        return f'{self.kind}{self.number}'

    @property
    def path(self) -> pathlib.Path:
        return self.model.kernel.pci / 'devices' / self.address / self.name

    @property
    def major(self) -> int:
        return {'dsa': 240, 'iax': 241}[self.kind]

    def snapshot(self) -> dict[str, object]:
        """All that can be configured."""
        return {
            'state': self.state,
            'engines': list(self.engines),
            'queues': [dataclasses.asdict(each) for each in self.queues],
        }

    def dump(self) -> dict[str, Any]:
        """All of its state, for load() in another process."""
        state = {**self.__dict__, 'queues': list(map(vars, self.queues))}
        del state['model']
        return state

    def load(self, state: dict[str, Any]) -> None:
        queues = [Queue(**each) for each in state['queues']]
        self.__dict__.update(state, queues=queues)

    # What the files contain.

    def show(self) -> None:
        if not self.path.parent.is_dir():
            return
        values = {
            'state': self.state,
            'configurable': self.configurable,
            'pasid_enabled': self.pasid,
            'max_work_queues': self.max_queues,
            'max_work_queues_size': self.max_size,
            'max_groups': self.max_groups,
            'max_engines': self.max_engines,
            'cdev_major': self.major,
            'cmd_status': f'{self.status:#x}',
        }
        self._files(self.path, values)
        for number, group in enumerate(self.engines):
            directory = self.path / f'engine{self.number}.{number}'
            self._files(directory, {'group_id': group})
        for queue in self.queues:
            self._show_queue(queue)

    def _show_queue(self, queue: Queue) -> None:
        directory = self.directory(queue.number)
        values = {
            'state': queue.state,
            'type': queue.type,
            'mode': 'dedicated' if queue.dedicated else 'shared',
            'size': queue.size,
            'group_id': queue.group,
            'priority': queue.priority,
            'threshold': queue.threshold,
            'name': queue.name,
            'clients': queue.clients,
            'max_transfer_size': queue.max_transfer_size,
        }
        if self.kind == 'dsa':
            values['max_batch_size'] = queue.max_batch_size
        if not self.model.legacy:
            values['driver_name'] = queue.driver_name
        if queue.minor is not None:
            values['cdev_minor'] = queue.minor
        self._files(directory, values)
        link = directory / 'driver'
        if queue.minor is None and self._shown.pop(
            f'{directory}/cdev_minor', 0
        ):
            (directory / 'cdev_minor').unlink()
        if queue.driver is None and link.is_symlink():
            link.unlink()
        elif queue.driver is not None and not link.is_symlink():
            link.symlink_to(self.model.drivers / queue.driver)

    def directory(self, number: int) -> pathlib.Path:
        return self.path / f'wq{self.number}.{number}'

    def _files(
        self, directory: pathlib.Path, values: dict[str, object]
    ) -> None:
        """Write the files whose values have changed."""
        if str(directory) not in self._shown:
            os.makedirs(directory, exist_ok=True)
            self._shown[str(directory)] = ''
        for name, value in values.items():
            path = f'{directory}/{name}'
            if self._shown.get(path) != str(value):
                with open(f'{path}.new', 'w') as file:
                    file.write(f'{value}\n')
                os.replace(f'{path}.new', path)
                self._shown[path] = str(value)

    def hide(self) -> None:
        """Its driver has left the function, or the function the bus."""
        for queue in self.queues:
            if queue.minor is not None:
                self._remove_file(queue)
        shutil.rmtree(self.path, ignore_errors=True)
        self._shown.clear()

    # The device files.

    def _add_file(self, queue: Queue) -> None:
        queue.minor = self.model.minor()
        root, name = self.model.kernel.root, f'wq{self.number}.{queue.number}'
        number = f'{self.major}:{queue.minor}'
        cdev = self.directory(queue.number) / f'{self.kind}!{name}'
        self._files(
            cdev, {'dev': number, 'uevent': f'DEVNAME={self.kind}/{name}'}
        )
        char = root / 'sys/dev/char'
        char.mkdir(parents=True, exist_ok=True)
        (char / number).symlink_to(cdev)
        for place, text in (
            (root / f'dev/{self.kind}/{name}', ''),
            (root / f'dev/number/{name}', f'c {number}'),
        ):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)

    def _remove_file(self, queue: Queue) -> None:
        root, name = self.model.kernel.root, f'wq{self.number}.{queue.number}'
        cdev = self.directory(queue.number) / f'{self.kind}!{name}'
        shutil.rmtree(cdev, ignore_errors=True)
        for path in [each for each in self._shown if str(cdev) in each]:
            del self._shown[path]
        char = root / f'sys/dev/char/{self.major}:{queue.minor}'
        char.unlink(missing_ok=True)
        (root / f'dev/{self.kind}/{name}').unlink(missing_ok=True)
        (root / f'dev/number/{name}').unlink(missing_ok=True)
        queue.minor = None

    def file(self, number: int) -> str:
        path = f'dev/{self.kind}/wq{self.number}.{number}'
        return str(self.model.kernel.root / path)

    def opened(
        self, number: int, shown: bool = True, mapped: bool = False
    ) -> int:
        """A program opens a work queue.

        :param shown: False: no process shows it, as while its process ends
        :param mapped: it has mapped the portal; with shown=False, it has
            closed the file since
        :returns: for closed()
        """
        queue = self.queues[number]
        queue.clients += 1
        self._show_queue(queue)
        path = self.file(number)
        pid = self.model.kernel.hold(
            path if shown else '/dev/null',
            'dto',
            f'c {self.major}:{queue.minor}' if shown else 'c 1:3',
        )
        if mapped:
            self.model.kernel.write_file(
                f'proc/{pid}/maps',
                '7f0000000000-7f0000001000 -w-s 00000000 '
                f'{open_files.place_of(path)} {path} (deleted)\n',
            )
        return pid

    def closed(self, number: int, pid: int) -> None:
        """The count falls below 0 if the queue was disabled meanwhile.

        idxd_cdev_release() calls idxd_wq_put() in any case.
        """
        self.queues[number].clients -= 1
        self._show_queue(self.queues[number])
        self.model.kernel.end(pid)

    # What a write does.

    def write(self, path: pathlib.Path, text: str) -> None:
        """A write to one of its files."""
        part = path.parent.name
        try:
            if part.startswith('wq'):
                queue = self.queues[int(part.rpartition('.')[2])]
                self._write_queue(queue, path.name, text)
            elif part.startswith('engine'):
                self._write_engine(int(part.rpartition('.')[2]), text)
            else:
                kernel_module.fail(errno.EACCES)
        finally:
            self.show()

    def _write_engine(self, number: int, text: str) -> None:
        self.engines[number] = self._group(text)

    def _group(self, text: str) -> int:
        group = _number(text)
        self._need(self.configurable, errno.EPERM)
        self._need(NO_GROUP <= group < self.max_groups, errno.EINVAL)
        return group

    @staticmethod
    def _need(fine: object, number: int) -> None:
        if not fine:
            kernel_module.fail(number)

    def _write_queue(self, queue: Queue, name: str, text: str) -> None:
        if name == 'size':
            self._set_size(queue, text)
            return
        if name not in ('type', 'name', 'driver_name'):
            self._need(self.configurable, errno.EPERM)
        wrong = errno.ENXIO if name == 'threshold' else errno.EPERM
        self._need(queue.state == 'disabled', wrong)
        if name in ('mode', 'type', 'name', 'driver_name'):
            self._set_text(queue, name, text)
        elif name == 'group_id':
            queue.group = self._group(text)
        else:
            self._set_number(queue, name, _number(text))

    def _set_text(self, queue: Queue, name: str, text: str) -> None:
        value = text.strip()
        if name == 'mode':
            self._need(value in ('dedicated', 'shared'), errno.EINVAL)
            queue.dedicated = value == 'dedicated'
            if queue.dedicated:
                queue.threshold = 0
        elif name == 'type':
            self._need(value in ('none', 'kernel', 'user'), errno.EINVAL)
            if value != queue.type:
                queue.type, queue.name = value, ''
        else:
            self._need(text, errno.EINVAL)
            setattr(queue, name, value)

    def _set_number(self, queue: Queue, name: str, value: int) -> None:
        if name == 'priority':
            self._need(0 <= value <= 15, errno.EINVAL)
            queue.priority = value
        elif name == 'threshold':
            fine = 0 < value <= queue.size and not queue.dedicated
            self._need(fine, errno.EINVAL)
            queue.threshold = value
        else:
            most = {'max_transfer_size': 2**31, 'max_batch_size': 1024}[name]
            self._need(0 < value <= most, errno.EINVAL)
            setattr(queue, name, 1 << (value - 1).bit_length())

    def _set_size(self, queue: Queue, text: str) -> None:
        size = _number(text)
        self._need(self.configurable, errno.EPERM)
        self._need(self.state != 'enabled', errno.EPERM)
        total = sum(each.size for each in self.queues)
        fits = size >= 0 and total - queue.size + size <= self.max_size
        self._need(fits, errno.EINVAL)
        queue.size = size

    def _fail(self, status: int, number: int) -> None:
        self.status = status
        kernel_module.fail(number)

    def _check(self, number: int) -> None:
        """idxd_device_config(): all work queues at once."""
        grouped = [each for each in self.queues if each.group != NO_GROUP]
        if any(not each.dedicated for each in grouped) and not self.swq:
            self._fail(0x800C0000, number)
        if not grouped:
            self._fail(0x800D0000, number)
        if all(group == NO_GROUP for group in self.engines):
            kernel_module.fail(number)

    def bind(self) -> None:
        self._need(not self.driver, errno.EBUSY)
        if self.state != 'disabled':
            self._fail(0x80000010, errno.ENXIO)
        self._check(errno.ENXIO)
        self.state, self.status, self.driver = 'enabled', 0, True

    def unbind(self) -> None:
        self._need(self.driver, errno.ENODEV)
        for queue in self.queues:
            if queue.driver is not None:
                self.unbind_queue(queue)
        self.start()

    def bind_queue(self, queue: Queue, driver: str) -> None:
        self._need(queue.driver is None, errno.EBUSY)
        self._need(self.state == 'enabled', errno.ENXIO)
        if not self.pasid:
            self._fail(0x80110000, errno.EOPNOTSUPP)
        if not self.model.legacy and queue.driver_name != driver:
            self._fail(0x80200000, errno.ENODEV)
        if driver == 'dsa':
            self._need(queue.type != 'none', errno.ENODEV)
        try:
            self._check_queue(queue)
        except OSError:
            queue.type = 'none'
            raise
        queue.state, queue.driver, queue.type = 'enabled', driver, 'user'
        queue.clients, self.status = 0, 0
        self._add_file(queue)

    def _check_queue(self, queue: Queue) -> None:
        number = errno.ENXIO
        if queue.group == NO_GROUP:
            self._fail(0x80030000, number)
        if not queue.name:
            self._fail(0x80040000, number)
        if not queue.dedicated and not self.swq:
            self._fail(0x80050000, number)
        if not queue.dedicated and not queue.threshold:
            self._fail(0x80060000, number)
        self._check(errno.EINVAL)
        # What the hardware refuses
        self._need(queue.size and queue.group in self.engines, number)
        if (given := self.refused.pop(queue.number, None)) is not None:
            kernel_module.fail(given)

    def unbind_queue(self, queue: Queue) -> None:
        """__drv_disable_wq() in device.c, which only warns of clients.

        Programs keep the file open, and the portal mapped.
        """
        self._need(queue.driver, errno.ENODEV)
        self._remove_file(queue)
        queue.wipe()


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL)) from None


class Idxd:
    """The kernel driver idxd with its devices. Make it after the kernel.

    :param legacy: as up to Linux 5.13: one driver, no driver_name
    """

    FILES = (
        'size',
        'mode',
        'type',
        'name',
        'group_id',
        'priority',
        'threshold',
        'driver_name',
        'max_transfer_size',
        'max_batch_size',
    )

    def __init__(
        self, kernel: kernel_module.Kernel, legacy: bool = False
    ) -> None:
        self.kernel, self.legacy = kernel, legacy
        self.devices: list[Device] = []
        self.drivers = kernel.sys / 'bus/dsa/drivers'
        self._minors = 0
        for name in ('dsa',) if legacy else ('idxd', 'user', 'dsa'):
            (self.drivers / name).mkdir(parents=True)
            for file in ('bind', 'unbind'):
                (self.drivers / name / file).write_text('')
        kernel.add_driver('idxd')
        for name in self.FILES:
            kernel.handlers[name] = self._write
        for name in ('bind', 'unbind', 'drivers_probe', 'remove', 'rescan'):
            kernel.handlers[name] = self._bind

    def add(
        self,
        address: str = '0000:6a:01.0',
        kind: str = 'dsa',
        queues: int = 8,
        size: int = 128,
        groups: int = 4,
        engines: int = 4,
    ) -> Device:
        """Put a device into the tree."""
        ids = {'dsa': '8086:0b25', 'iax': '8086:0cfe'}[kind]
        self.kernel.add_function(address, ids, 0x088000, 'idxd')
        number = len(self.devices)
        device = Device(
            self, address, number, kind, queues, size, groups, engines
        )
        self.devices.append(device)
        device.show()
        return device

    def minor(self) -> int:
        self._minors += 1
        return self._minors - 1

    def reboot(self, order: tuple[int, ...] = ()) -> None:
        """Boot the host.

        :param order: the new numbers of the devices
        """
        for device in self.devices:
            device.hide()
        self._minors = 7
        for device, number in zip(self.devices, order, strict=False):
            device.number = number
        self.kernel.reboot()
        for device in self.devices:
            device.start()
            device.show()

    def sync(self) -> None:
        """Show the devices whose functions are bound to idxd, and only them.

        What is shown again was reset.
        """
        for device in self.devices:
            bound = self.kernel.driver_of(device.address) == 'idxd'
            if bound and not device.path.exists():
                device.start()
                device.show()
            elif not bound:
                device.hide()

    def _write(self, path: pathlib.Path, text: str) -> None:
        there = path.resolve()
        for device in self.devices:
            if device.path.resolve() in there.parents:
                device.write(path, text)
                return
        self.kernel.built_in(path, text)

    def _bind(self, path: pathlib.Path, text: str) -> None:
        if self.drivers not in path.parents:
            self.kernel.built_in(path, text)
            self.sync()
            return
        for device in self.devices:
            act = self._binding(device, path, text)
            if act is not None:
                try:
                    act()
                finally:
                    device.show()
                return
        kernel_module.fail(errno.ENODEV)

    @staticmethod
    def _binding(
        device: Device, path: pathlib.Path, text: str
    ) -> Callable[[], None] | None:
        """What binds or unbinds a device or a work queue of that name."""
        driver, binds = path.parent.name, path.name == 'bind'
        if text == device.name and driver != 'user':
            return device.bind if binds else device.unbind
        for queue in device.queues if driver != 'idxd' else []:
            if text == f'wq{device.number}.{queue.number}':
                if binds:
                    return functools.partial(device.bind_queue, queue, driver)
                return functools.partial(device.unbind_queue, queue)
        return None


def show_files(patch: Any) -> None:
    """Let device_files see the device files, which are ordinary files."""

    def status(fd: int) -> device_files.Status:
        number = device_files.number_of(os.readlink(f'/proc/self/fd/{fd}'))
        return device_files.Status(number, 0, 0, 0o600, os.fstat(fd).st_ino)

    patch.setattr(device_files, 'status', status)

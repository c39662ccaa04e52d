# SPDX-License-Identifier: Apache-2.0

"""The writes that set up work queues of Intel DSA and IAA, as root.

Each function writes only what is not there yet, so that it can be called again
after a crash. What the kernel accepts, and when: see kernel.idxd. The caller
holds the operation lock of the PCI function.
"""

from __future__ import annotations

from os_acc import exception
from os_acc.deadlines import waiting
from os_acc.kernel import device_files
from os_acc.kernel import idxd
from os_acc.kernel import sysfs
from os_acc.kinds.idxd import entry as spec_idxd
from os_acc.kinds.idxd import rules as idxd_availability

# Writing white space empties name and driver_name: sysfs.c strips it.
_EMPTY = '\n'

# The files of a work queue that have a value before os-acc writes them. The
# kernel resets the others itself, or os-acc writes none, shared or 0.
_RESTORED = (
    'priority',
    'max_transfer_size',
    'max_batch_size',
    'driver_name',
)


def read(address: str) -> idxd.Device:
    """Read the device of a function."""
    device = idxd.find(address)
    if device is None:
        raise exception.DeviceNotFound(
            wanted=f'a DSA or IAA at {address}',
            reason='the kernel driver idxd shows none',
        )
    return device


def lay_out(device: idxd.Device, layout: idxd_availability.Layout) -> None:
    """Set sizes, groups and modes of a device that is disabled."""
    for number, group in layout.queues.items():
        queue = _queue(device, number)
        if queue.mode != layout.mode:
            _write(f'{queue.path}/mode', layout.mode, device)
        if queue.size != layout.size:
            _write(f'{queue.path}/size', str(layout.size), device)
        if queue.group != group:
            _write(f'{queue.path}/group_id', str(group), device)
    for number, group in layout.engines.items():
        if device.engines.get(number) != group:
            _write(_engine(device, number), str(group), device)


def clear(device: idxd.Device, layout: idxd_availability.Layout) -> None:
    """Undo lay_out() on a device that is disabled.

    What is not as lay_out() leaves it stays, because it is somebody else's.
    """
    for number, group in layout.engines.items():
        if device.engines.get(number) == group:
            _write(_engine(device, number), str(idxd.NO_GROUP), device)
    for number, group in layout.queues.items():
        queue = device.queue(number)
        if queue is None or not queue.is_idle:
            continue
        if queue.group == group:
            _write(f'{queue.path}/group_id', str(idxd.NO_GROUP), device)
        if queue.size == layout.size:
            _write(f'{queue.path}/size', '0', device)
        if queue.mode == layout.mode == spec_idxd.DEDICATED:
            _write(f'{queue.path}/mode', spec_idxd.SHARED, device)


def changed_by_others(
    device: idxd.Device, layout: idxd_availability.Layout
) -> list[str]:
    """Say what others have configured on a device that os-acc has enabled.

    :returns: a clause for each part; empty if the device can be disabled
    """
    found = []
    for queue in device.queues:
        size, group = 0, idxd.NO_GROUP
        if queue.number in layout.queues:
            size, group = layout.size, layout.queues[queue.number]
        if not queue.is_idle:
            found.append(f'{queue.name} is configured ({queue.label!r})')
        elif (queue.size, queue.group) != (size, group):
            found.append(f'{queue.name} is in group {queue.group}')
    for number, there in device.engines.items():
        if there != layout.engines.get(number, idxd.NO_GROUP):
            found.append(f'engine {number} is in group {there}')
    return found


def start(device: idxd.Device, seconds: float) -> None:
    """Enable a device."""
    directory = idxd.bus_directory('idxd')
    _write(f'{directory}/bind', device.name, device)
    _wait(device, idxd.ENABLED, seconds)


def stop(device: idxd.Device, seconds: float) -> None:
    """Disable a device. The kernel then resets all that is set on it."""
    directory = idxd.bus_directory('idxd')
    _write(f'{directory}/unbind', device.name, device)
    _wait(device, idxd.DISABLED, seconds)


def _wait(device: idxd.Device, state: str, seconds: float) -> None:
    path = f'{device.path}/state'
    waiting.until(
        lambda: sysfs.read(path) == state,
        seconds,
        f'{device.name} to be {state}',
        'dsa',
    )


def before(queue: idxd.Queue) -> dict[str, str]:
    """What the files of a work queue contain that os-acc is about to write."""
    found = {name: sysfs.read(f'{queue.path}/{name}') for name in _RESTORED}
    return {name: text for name, text in found.items() if text is not None}


def configure(
    device: idxd.Device,
    queue: idxd.Queue,
    settings: spec_idxd.Queues,
    label: str,
) -> None:
    """Configure a work queue that is disabled for programs.

    The order matters: the kernel clears the name when the type changes, and
    the threshold when the mode becomes dedicated.
    """
    wanted = {
        'mode': settings.wq_mode,
        'type': idxd.USER,
        'name': label,
        # From Linux 6.7 on; without it the driver user refuses the queue.
        'driver_name': 'user',
        'priority': str(settings.priority),
    }
    if settings.wq_mode == spec_idxd.SHARED:
        threshold = min(settings.threshold or queue.size, queue.size)
        wanted['threshold'] = str(threshold)
    for name in ('max_transfer_size', 'max_batch_size'):
        if (value := getattr(settings, name)) is not None:
            wanted[name] = str(value)
    for name, text in wanted.items():
        path = f'{queue.path}/{name}'
        now = sysfs.read(path)
        # IAA has no batches, and older kernels have no driver_name.
        if now is not None and now != text:
            _write(path, text, device)


def enable(device: idxd.Device, queue: idxd.Queue, seconds: float) -> None:
    """Enable a work queue that is configured, and wait for its device file."""
    directory = idxd.bus_directory('user')
    _write(f'{directory}/bind', queue.name, device)
    waiting.until(
        lambda: _has_file(device.address, queue.number),
        seconds,
        f'the device file of {queue.name} to appear',
        'dsa',
    )


def _has_file(address: str, number: int) -> bool:
    now = read(address)
    queue = now.queue(number)
    file = None if queue is None else now.file(queue)
    return (
        file is not None and device_files.number_of(file.path) == file.number
    )


def disable(device: idxd.Device, queue: idxd.Queue, seconds: float) -> None:
    """Disable a work queue. The kernel waits for the work in it."""
    driver = queue.driver or 'user'
    directory = idxd.bus_directory(driver)
    _write(f'{directory}/unbind', queue.name, device)
    waiting.until(
        lambda: sysfs.read(f'{queue.path}/state') == idxd.DISABLED,
        seconds,
        f'{queue.name} to be disabled',
        'dsa',
    )


def reset(
    device: idxd.Device, queue: idxd.Queue, earlier: dict[str, str], mode: str
) -> None:
    """Undo configure() on a work queue that is disabled.

    :param mode: the mode of a queue that is not configured for a program
    """
    if queue.threshold:
        # This clears the threshold, to which 0 cannot be written.
        _write(f'{queue.path}/mode', spec_idxd.DEDICATED, device)
    if queue.kind != idxd.NONE:
        # This clears the name, too.
        _write(f'{queue.path}/type', idxd.NONE, device)
    elif queue.label:
        # The kernel has cleared the type when it could not enable the queue.
        _write(f'{queue.path}/name', _EMPTY, device)
    for name, text in earlier.items():
        path = f'{queue.path}/{name}'
        if name in _RESTORED and sysfs.read(path) != text:
            _write(path, text or _EMPTY, device)
    if sysfs.read(f'{queue.path}/mode') != mode:
        _write(f'{queue.path}/mode', mode, device)


def _queue(device: idxd.Device, number: int) -> idxd.Queue:
    queue = device.queue(number)
    if queue is None:
        raise exception.DeviceNotFound(
            wanted=f'work queue {number} of {device.address}',
            reason=f'{device.name} has none',
        )
    return queue


def _engine(device: idxd.Device, number: int) -> str:
    part = device.name.removeprefix(device.kind)
    return f'{device.path}/engine{part}.{number}/group_id'


def _write(path: str, text: str, device: idxd.Device) -> None:
    try:
        sysfs.write(path, text)
    except OSError as err:
        where = '/'.join(path.split('/')[-2:])
        raise exception.DeviceError(
            device=f'{device.name} of PCI function {device.address}',
            reason=f'the kernel refuses {text.strip()!r} for {where}: '
            f'{err.strerror} ({device.error()})',
        ) from err

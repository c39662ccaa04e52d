# SPDX-License-Identifier: Apache-2.0

"""Programming through an FPGA manager of the kernel, as root.

The kernel reads the image from below its firmware folder. So root's copy is
there while the device is programmed, under a name that nobody can guess.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import os

from os_acc import exception
from os_acc.deadlines import waiting
from os_acc.kernel import fpga_manager
from os_acc.kernel import overlay
from os_acc.kernel import pci
from os_acc.kernel import sysfs
from os_acc.privileged import arguments
from os_acc.privileged import context
from os_acc.privileged import root_copy
from os_acc.privileged import turn
from os_acc.spec import device_spec

# FPGA_MGR_PARTIAL_RECONFIG in include/linux/fpga/fpga-mgr.h; 0 replaces the
# whole content of the FPGA.
_FLAGS = {True: '1', False: '0'}


@context.entry
def check(address: str, path: str) -> None:
    """Check that programming can begin. This changes nothing.

    :param path: the image
    :raises DeviceBusy: if somebody has a function of the card open, or is
        programming it
    :raises BitstreamError: if the image is in none of the allowed folders
    :raises DeviceError: if the card has no FPGA manager, or this kernel cannot
        program it
    """
    function, _ = _device(address)
    manager = fpga_manager.the_manager(function)
    manager.way(fpga_manager.regions(function))
    turn.check_unused(function, '')
    with turn.taken(function, ''):
        pass
    with root_copy.opened(path):
        pass


@context.entry
def program(address: str, path: str, digest: str, seconds: float) -> None:
    """Program a device. If it takes too long, it goes on, and stays locked.

    :param digest: the file's SHA-256
    :param seconds: how long to wait for it
    :raises DeviceBusy, BitstreamError, DeviceError: as check()
    :raises DeviceError: if the kernel refuses, or the FPGA manager is not
        operating afterwards
    :raises Timeout: if it has not ended in time
    """
    function, spec = _device(address)
    partial = (spec.activation or device_spec.PARTIAL) == device_spec.PARTIAL

    def act() -> None:
        with turn.taken(function, ''):
            turn.check_unused(function, '')
            manager = fpga_manager.the_manager(function)
            regions = fpga_manager.regions(function)
            way = manager.way(regions)
            with _firmware(path, digest) as copy:
                if way == fpga_manager.FIRMWARE:
                    _load(manager, copy, partial)
                else:
                    _apply(manager, regions[0], copy, partial)
            now = fpga_manager.the_manager(function)
            if now.state != fpga_manager.OPERATING:
                raise exception.DeviceError(
                    device=address,
                    reason=f'FPGA manager {now.name} is not operating after '
                    'its programming',
                )

    waiting.at_most(
        act,
        arguments.seconds(seconds),
        f'the FPGA manager of {address} to be programmed',
    )


@context.entry
def clear(address: str, seconds: float) -> None:
    """Remove the overlay by which a device was programmed.

    :raises DeviceBusy: as check()
    :raises DeviceError: if there is none: the kernel cannot clear the device
    :raises Timeout: if it has not ended in time
    """
    function, _ = _device(address)

    def act() -> None:
        with turn.taken(function, ''):
            turn.check_unused(function, '')
            manager = fpga_manager.the_manager(function)
            if not os.path.isdir(_overlay(manager)):
                raise exception.DeviceError(
                    device=address,
                    reason='the kernel cannot remove a function that it has '
                    f'not loaded with the overlay {_overlay(manager)}',
                )
            sysfs.remove_folder(_overlay(manager))

    waiting.at_most(
        act,
        arguments.seconds(seconds),
        f'the FPGA manager of {address} to be cleared',
    )


def _device(address: str) -> tuple[pci.Function, device_spec.Spec]:
    return turn.device(address, '', device_spec.PROGRAMMER_FPGA_MANAGER)


@contextlib.contextmanager
def _firmware(path: str, digest: str) -> Iterator[root_copy.Copy]:
    """Make root's copy of an image below the kernel's firmware folder."""
    with root_copy.opened(path) as (real, file):
        # Some kernels keep no more than 254 characters of the whole name.
        name = 'image' + os.path.splitext(real)[1][:32]
        folder = fpga_manager.copies_folder()
        if not os.path.isdir(os.path.dirname(folder)):
            raise exception.DeviceError(
                device=os.path.dirname(folder),
                reason="this folder of the kernel's firmware does not exist",
            )
        with root_copy.made(file, name, digest, folder) as copy:
            yield copy


def _firmware_name(path: str) -> str:
    """The name of a file for the kernel: its path in the firmware folder."""
    top = os.path.dirname(fpga_manager.copies_folder())
    return os.path.relpath(path, top)


def _load(
    manager: fpga_manager.Manager, copy: root_copy.Copy, partial: bool
) -> None:
    flags = f'{manager.folder}/flags'
    if os.path.exists(flags):
        _write(manager, flags, _FLAGS[partial])
    _write(manager, f'{manager.folder}/firmware', _firmware_name(copy.path))


def _apply(
    manager: fpga_manager.Manager,
    region: str,
    copy: root_copy.Copy,
    partial: bool,
) -> None:
    """Replace the overlay that os-acc has applied before.

    The kernel applies no second overlay to a region that has a firmware-name.
    """
    content = overlay.make(region, _firmware_name(copy.path), partial)
    file = root_copy.put(copy, 'overlay.dtbo', content)
    folder = _overlay(manager)
    if os.path.isdir(folder):
        sysfs.remove_folder(folder)
    sysfs.make_folder(folder)
    try:
        _write(manager, f'{folder}/path', _firmware_name(file))
        status = sysfs.read(f'{folder}/status')
        if status != 'applied':
            raise exception.DeviceError(
                device=f'FPGA manager {manager.name}',
                reason=f'overlay {folder} is {status}. The kernel log says '
                f'why. The region {region} may have another overlay',
            )
    except BaseException:
        with contextlib.suppress(OSError):
            sysfs.remove_folder(folder)
        raise


def _overlay(manager: fpga_manager.Manager) -> str:
    """The folder of the overlay by which os-acc programs a manager."""
    return f'{fpga_manager.overlays()}/os-acc-{manager.name}'


def _write(manager: fpga_manager.Manager, path: str, text: str) -> None:
    try:
        sysfs.write(path, text)
    except OSError as err:
        raise exception.DeviceError(
            device=f'FPGA manager {manager.name}',
            reason=f'the kernel refused {text!r} in {path}: {err.strerror}',
        ) from err

# SPDX-License-Identifier: Apache-2.0

"""The kernel's FPGA managers, and whether they can be programmed from here.

An FPGA manager shows its name, state and status in /sys/class/fpga_manager
(Documentation/ABI/testing/sysfs-class-fpga-manager in Linux). The mainline
kernel has no file to program one. There are two ways that other kernels have:

- the files ``firmware`` and ``flags`` of a manager, in the kernels of Xilinx.
  The name of a firmware file is written to the first;
- device-tree overlays in configfs, in the kernels of several vendors. An
  overlay of an FPGA region names a firmware file (of-fpga-region.c).
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
import contextlib
import dataclasses
import os

from os_acc import exception
from os_acc.kernel import chip as chips
from os_acc.kernel import pci
from os_acc.kernel import sysfs

#: The ways in which a manager can be programmed.
FIRMWARE, OVERLAY = 'firmware', 'overlay'

#: States of a manager, enum fpga_mgr_states in include/linux/fpga/fpga-mgr.h.
OPERATING, POWER_OFF = 'operating', 'power off'

_MANAGERS, _REGIONS = 'class/fpga_manager', 'class/fpga_region'
_OVERLAYS = 'kernel/config/device-tree/overlays'
#: The kernel's default folder of firmware files, _request_firmware() in
#: drivers/base/firmware_loader/main.c.
FIRMWARE_FOLDER = '/lib/firmware'

_TREE = '/firmware/devicetree/base'


@dataclasses.dataclass(frozen=True)
class Manager:
    """An FPGA manager.

    :ivar name: such as fpga0
    :ivar folder: its folder in sysfs
    :ivar title: the name that its driver gives it
    :ivar state: one of the states of the kernel, such as OPERATING or 'write
        error'
    :ivar status: what is wrong, as its driver says; empty if nothing
    """

    name: str
    folder: str
    title: str
    state: str
    status: str

    @property
    def line(self) -> str:
        """Its name, state and status, for an operator."""
        text = f'{self.name} ({self.title}): {self.state}'
        return f'{text}, {self.status}' if self.status else text

    def way(self, regions: Iterable[str]) -> str:
        """In which way this kernel can program it.

        :param regions: as regions()
        :returns: FIRMWARE or OVERLAY
        :raises DeviceError: if this kernel cannot
        """
        if os.path.exists(f'{self.folder}/firmware'):
            return FIRMWARE
        folder = overlays()
        if not os.path.isdir(folder):
            lacks = (
                f'no folder {folder}: it has no device-tree overlays in '
                'configfs, or configfs is not mounted'
            )
        elif len(list(regions)) != 1:
            lacks = (
                'not exactly one FPGA region with a node in the device tree '
                'for an overlay'
            )
        else:
            return OVERLAY
        raise exception.DeviceError(
            device=f'FPGA manager {self.name}',
            reason='this kernel cannot program it. It has no file '
            f'{self.folder}/firmware, which kernels of Xilinx have, and '
            f'{lacks}. The mainline kernel has neither',
        )


def overlays() -> str:
    """The folder of the device-tree overlays in configfs."""
    return f'{sysfs.SYS}/{_OVERLAYS}'


def copies_folder() -> str:
    """The folder for root's copies of images, which the kernel reads.

    It is below the folder that the kernel searches first for firmware.
    """
    path = f'{sysfs.SYS}/module/firmware_class/parameters/path'
    return f'{_read(path) or FIRMWARE_FOLDER}/os-acc'


def managers(function: pci.Function) -> list[Manager]:
    """The FPGA managers of the chip that a function belongs to."""
    return [
        Manager(
            name=name,
            folder=folder,
            title=_read(f'{folder}/name') or 'unnamed',
            state=_read(f'{folder}/state') or 'unknown',
            status=', '.join(_read(f'{folder}/status').splitlines()),
        )
        for name, folder in _below(_MANAGERS, function)
    ]


def the_manager(function: pci.Function) -> Manager:
    """The FPGA manager of a chip.

    :raises DeviceError: if it has none, or several
    """
    found = managers(function)
    if len(found) != 1:
        names = ', '.join(each.name for each in found) or 'none'
        raise exception.DeviceError(
            device=f'PCI function {function.address}',
            reason='expected one FPGA manager below it in '
            f'{sysfs.SYS}/{_MANAGERS}, found {names}',
        )
    return found[0]


def regions(function: pci.Function) -> list[str]:
    """The FPGA regions of a chip that are in the device tree.

    :returns: their paths in the device tree
    """
    found = []
    for _, folder in _below(_REGIONS, function):
        target = sysfs.target(f'{folder}/of_node')
        if target is not None and _TREE in target:
            found.append(target.partition(_TREE)[2])
    return found


def _below(kind: str, function: pci.Function) -> Iterator[tuple[str, str]]:
    """The devices of a class that are below the functions of a chip.

    :returns: the name and the folder of each
    """
    tops = [
        os.path.realpath(pci.folder(each)) + '/'
        for each in chips.of(function).parents
    ]
    for name in sysfs.names(f'{sysfs.SYS}/{kind}'):
        folder = f'{sysfs.SYS}/{kind}/{name}'
        if os.path.realpath(folder).startswith(tuple(tops)):
            yield name, folder


def _read(path: str) -> str:
    """Read an attribute; '' if it cannot be read."""
    try:
        return sysfs.read(path) or ''
    except OSError:
        return ''


@contextlib.contextmanager
def told(address: str) -> Iterator[None]:
    """Add the state of a card's FPGA managers to the errors of programming.

    :param address: of the PCI function that is programmed
    """
    try:
        yield
    except (exception.DeviceError, exception.Timeout) as err:
        function = pci.find(address)
        found = managers(function) if function is not None else []
        if not found:
            raise
        lines = '; '.join(each.line for each in found)
        raise type(err)(f'{err}. FPGA manager: {lines}') from err

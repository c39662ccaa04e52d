# SPDX-License-Identifier: Apache-2.0

"""The signs that the console of the host is on a PCI function.

A display needs no driver for that: the kernel writes to the frame buffer that
the firmware has set up, which is in the memory of the display.
"""

from __future__ import annotations

import re

from os_acc.availability.host_signs import sign
from os_acc.availability.host_signs.snapshot import Snapshot
from os_acc.kernel import pci
from os_acc.kernel import sysfs
from os_acc.refusals import host_refusals
from os_acc.refusals import refusals
from os_acc.refusals.reasons import Reason

# The platform devices of drivers/firmware/sysfb.c.
_FIRMWARE = re.compile(r'(simple|efi|vesa|vga|ega|platform)-framebuffer\.\d+')

# How sysfb and the drivers for its devices name the memory in /proc/iomem:
# drivers/firmware/sysfb_simplefb.c, drivers/video/fbdev and
# drivers/gpu/drm/sysfb in the kernel.
_REGIONS = frozenset(
    {'BOOTFB', 'efifb', 'vesafb', 'simplefb'}
    | {'simpledrm', 'efidrm', 'vesadrm', 'simple-framebuffer'}
    | {'offb', 'ofdrm'}  # Open Firmware, on POWER
)

_FRAME_BUFFER = re.compile(r'fb(\d+)')

# One digit for each console: fb_console_setup() in drivers/video/fbdev/core.
_MAP = re.compile(r'\bfbcon=(?:\S*,)?map:([0-9]+)')


def _is_one(function: pci.Function, name: str) -> bool:
    return name in function.entries and (
        sysfs.read(f'{function.path}/{name}') == '1'
    )


def _boot_vga(host: Snapshot, function: pci.Function) -> Reason | None:
    if _is_one(function, 'boot_vga'):
        return refusals.BOOT_DISPLAY.reason()
    return None


def _boot_display(host: Snapshot, function: pci.Function) -> Reason | None:
    if _is_one(function, 'boot_display'):
        return host_refusals.BOOT_SCREEN.reason()
    return host.once(_boot_cards).get(function.address)


def _boot_cards(host: Snapshot) -> dict[str, Reason]:
    return sign.by_function(
        (path, host_refusals.BOOT_SCREEN.reason())
        for _, path in sign.of_class('drm')
        if sysfs.read(f'{path}/boot_display') == '1'
    )


def _platform(host: Snapshot, function: pci.Function) -> Reason | None:
    for entry in function.entries:
        # Most entries are none, and there are many functions.
        if '-framebuffer.' in entry and _FIRMWARE.fullmatch(entry):
            return host_refusals.FIRMWARE_SCREEN.reason(name=entry)
    return None


def _regions(host: Snapshot) -> dict[str, Reason]:
    """The functions whose memory contains a frame buffer of the firmware.

    Ordinary users read zeros as addresses, but the order, the indentation and
    the names of the lines are the same: r_show() in kernel/resource.c.
    """
    found: dict[str, Reason] = {}
    above: list[tuple[int, str]] = []
    for line in sysfs.read_long(f'{sysfs.PROC}/iomem').splitlines():
        depth = len(line) - len(line.lstrip())
        name = line.partition(' : ')[2].strip()
        while above and above[-1][0] >= depth:
            above.pop()
        if name in _REGIONS:
            reason = host_refusals.FIRMWARE_SCREEN.reason(name=name)
            owners = [owner for _, owner in above if pci.is_address(owner)]
            found |= dict.fromkeys(owners, reason)
        above.append((depth, name))
    return found


def _console_screen(host: Snapshot) -> dict[str, Reason]:
    """The functions that have the frame buffers of the consoles.

    The kernel shows all consoles on the first one, unless the kernel command
    line says otherwise: fbcon=map:N in Documentation/fb/fbcon.rst.
    """
    found = [
        (int(match[1]), name, path)
        for name, path in sign.of_class('graphics')
        if (match := _FRAME_BUFFER.fullmatch(name))
    ]
    if not found or _is_unbound():
        return {}
    chosen = _MAP.findall(sysfs.read_long(f'{sysfs.PROC}/cmdline'))
    numbers = {int(each) for each in chosen[-1]} if chosen else {min(found)[0]}
    return sign.by_function(
        (path, host_refusals.CONSOLE_SCREEN.reason(name=name))
        for number, name, path in found
        if number in numbers
    )


def _is_unbound() -> bool:
    """Whether an operator has unbound the console from frame buffers.

    Documentation/ABI/testing/sysfs-class-vtconsole in the kernel.
    """
    bound = [
        sysfs.read(f'{path}/bind')
        for _, path in sign.of_class('vtconsole')
        if 'frame buffer' in (sysfs.read(f'{path}/name') or '')
    ]
    return bool(bound) and all(each == '0' for each in bound)


def _connectors(host: Snapshot) -> dict[str, Reason]:
    """The functions with a connector that shows a picture.

    The file says whether the connector has an encoder: enabled_show() in
    drivers/gpu/drm/drm_sysfs.c.
    """
    return sign.by_function(
        (path, host_refusals.SHOWS_PICTURE.reason(name=name))
        for name, path in sign.of_class('drm')
        if sysfs.read(f'{path}/enabled') == 'enabled'
    )


def _lines(host: Snapshot) -> dict[str, Reason]:
    """The functions with a serial port that is a console.

    Documentation/admin-guide/serial-console.rst and, for the two files,
    Documentation/ABI/testing/sysfs-tty and proc(5) in the kernel.
    """
    tty = f'{sysfs.SYS}/class/tty'
    consoles = sysfs.read_long(f'{sysfs.PROC}/consoles').splitlines()
    active = (sysfs.read(f'{tty}/console/active') or '').split()
    names = {line.split()[0] for line in consoles if line.strip()} | {*active}
    reason = host_refusals.CONSOLE_LINE.reason
    return sign.by_function(
        (sysfs.place(f'{tty}/{name}'), reason(name=name))
        for name in sorted(names)
    )


def _keyboards(host: Snapshot) -> dict[str, Reason]:
    """The functions to which a keyboard is connected.

    A keyboard has the handler kbd, and sysrq or lights: the other devices with
    keys, such as the buttons of a headset, have neither of the two.
    """

    found = []
    text = sysfs.read_long(f'{sysfs.PROC}/bus/input/devices')
    for device in text.split('\n\n'):
        values = {
            line[:2]: line[2:].strip().partition('=')[2].strip('" ')
            for line in device.splitlines()
        }
        handlers = set(values.get('H:', '').split())
        if 'kbd' in handlers and handlers & {'sysrq', 'leds'}:
            name, path = values.get('N:', ''), values.get('S:', '')
            found.append((path, host_refusals.KEYBOARD.reason(name=name)))
    return sign.by_function(found)


SIGNS = (
    sign.FunctionSign(
        '/sys/bus/pci/devices/ADDRESS/boot_vga',
        'It is the VGA controller that the firmware has chosen.',
        'Linux 2.6.27',
        _boot_vga,
    ),
    sign.FunctionSign(
        '/sys/class/drm/NAME/boot_display, '
        '/sys/bus/pci/devices/ADDRESS/boot_display',
        'The host has booted on a screen that is connected to it. Displays '
        'that are not VGA controllers (class 0380) have this file, too.',
        'Linux 6.17 (PCI), 6.18 (DRM)',
        _boot_display,
    ),
    sign.FunctionSign(
        '/sys/bus/pci/devices/ADDRESS/KIND-framebuffer.N',
        'The frame buffer of the firmware is on it, with or without a driver '
        'for the display.',
        'Linux 6.9',
        _platform,
    ),
    sign.HostSign(
        '/proc/iomem',
        'The frame buffer of the firmware (BOOTFB, efifb, simpledrm and '
        'others) is in its memory.',
        'Linux 2.6.12',
        _regions,
    ),
    sign.HostSign(
        '/sys/class/graphics/fbN, /sys/class/vtconsole/NAME/bind, with '
        '/proc/cmdline',
        'The first frame buffer, or that of fbcon=map, is on it, and the '
        'console is not unbound from frame buffers.',
        'Linux 2.6.18',
        _console_screen,
    ),
    sign.HostSign(
        '/sys/class/drm/NAME/enabled',
        'A screen that is connected to it shows a picture.',
        'Linux 2.6.29',
        _connectors,
    ),
    sign.HostSign(
        '/sys/class/tty/console/active, /proc/consoles',
        'A console of the kernel is on its serial port.',
        'Linux 2.6.38',
        _lines,
    ),
    sign.HostSign(
        '/proc/bus/input/devices',
        'A keyboard is connected to it.',
        'Linux 2.6.12',
        _keyboards,
    ),
)

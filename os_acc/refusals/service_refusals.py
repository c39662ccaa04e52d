# SPDX-License-Identifier: Apache-2.0

"""Refusals of what services of the host use: console, management, kernel.

The signs of these uses are in host_signs: console_signs, service_signs and
network_signs. See host_refusals for disks.
"""

from __future__ import annotations

from os_acc.refusals.reasons import Category
from os_acc.refusals.reasons import Refusal

_MOVE_CONSOLE = (
    "move the host's console to another display in the firmware, or add "
    'initcall_blacklist=sysfb_init to the kernel command line, so that the '
    'kernel does not use the frame buffer of the firmware'
)

# --- The console

BOOT_SCREEN = Refusal(
    Category.HOST_USE,
    'the screen on which the host booted is connected to it',
    'Linux 6.17 and later show it in the file boot_display, also for displays '
    'that are not VGA controllers.',
    'choose another boot display in the firmware',
)
FIRMWARE_SCREEN = Refusal(
    Category.HOST_USE,
    'the frame buffer that the firmware has set up is in its memory '
    '({name}), and the host shows its console there',
    'The kernel writes to it without a driver for the display: see '
    '/proc/iomem.',
    _MOVE_CONSOLE,
)
CONSOLE_SCREEN = Refusal(
    Category.HOST_USE,
    "the host's console is on its frame buffer {name}",
    'It has the first frame buffer, and the kernel shows its console there.',
    'give the console another display, or unbind the console: write 0 to the '
    'file bind of the frame buffer device in /sys/class/vtconsole',
)
SHOWS_PICTURE = Refusal(
    Category.HOST_USE,
    'it shows a picture on its connector {name}',
    'A console or a desktop is on a screen that is connected to it.',
    'end the program that shows it, or disconnect the screen',
)
CONSOLE_LINE = Refusal(
    Category.HOST_USE,
    "{name} on it is a console of the host's kernel",
    'The kernel command line has console= with a serial port on the device.',
    'remove console={name} from the kernel command line',
)
KEYBOARD = Refusal(
    Category.HOST_USE,
    'a keyboard of the host is connected to it: {name}',
    'The management controllers of servers have such a keyboard, too.',
    'connect the keyboard to another controller, or disconnect it',
)

# --- Management

MANAGEMENT = Refusal(
    Category.HOST_USE,
    'the host reaches its management controller (BMC) through it ({name})',
    'A driver for IPMI, or for the management controller, is bound to it.',
    'choose another device: the host needs this one',
)
WATCHDOG = Refusal(
    Category.HOST_USE,
    'watchdog {name} on it {state}',
    'The watchdog resets the host when nothing serves it any more.',
    'stop the service that uses the watchdog, for example set '
    'RuntimeWatchdogSec=off for systemd',
)
TPM = Refusal(
    Category.HOST_USE,
    'TPM {name} of the host is on it',
    'The TPM holds keys of the host.',
    'choose another device: the host needs this one',
)
BOOTS_FROM = Refusal(
    Category.HOST_USE,
    'the firmware boots the host through it (iBFT {name})',
    'The root disk is an iSCSI disk, which may be connected in hardware.',
    'choose another device: the host needs this one',
)
DEFAULT_ROUTE = Refusal(
    Category.HOST_USE,
    'interface {name} has the default route',
    'The host reaches other networks through its interface.',
    'give the default route to another interface, and set the interface down: '
    'ip link set {name} down',
)

# --- Network

INTERFACE_ELSEWHERE = Refusal(
    Category.HOST_USE,
    'an {what} of it is in another network namespace: driver {driver} has '
    'made one that this network namespace does not show',
    'A container may have it, or os-acc runs in another network namespace '
    'from the host.',
    'return it to the network namespace of the host: end the container, or ip '
    'netns exec NAMESPACE ip link set INTERFACE netns 1. For an RDMA device: '
    'rdma dev set NAME netns NAMESPACE',
)
RDMA_USERS = Refusal(
    Category.HOST_USE,
    'programs use RDMA device {name}: it has {number} user contexts',
    'A program has its verbs open: see rdma resource show context dev NAME.',
    'end the programs: fuser -v /dev/infiniband/uverbs* shows them',
)

# --- The kernel

DMA_CHANNEL = Refusal(
    Category.HOST_USE,
    "the host's kernel uses DMA channel {name} on it",
    'md, a network bridge (NTB) or another part of the kernel uses it.',
    'unload the module that uses it: dmesg and lsmod show it',
)
CRYPTO = Refusal(
    Category.HOST_USE,
    "the host's kernel uses the algorithm {name}, which driver {driver} runs "
    'on its devices, and it is unknown on which of them',
    'dm-crypt, IPsec, kTLS, zswap or a program (AF_ALG) uses it, or has set '
    'up another algorithm with it: /proc/crypto has a refcnt above 1.',
    'stop what uses it, or bind the function to no driver: a function without '
    "the host's driver is not affected",
)
CXL_MEMORY = Refusal(
    Category.HOST_USE,
    'memory of CXL device {name} is mapped: {number} decoders are committed',
    'It is memory of the host, or persistent memory.',
    'take the memory offline (daxctl offline-memory), and remove its region '
    '(cxl disable-region, cxl destroy-region); memory that the firmware has '
    'mapped can be changed in the firmware only',
)
GUEST_PROTECTION = Refusal(
    Category.HOST_USE,
    "KVM protects the memory of guests with it (AMD's SEV)",
    'The parameter sev of the module kvm_amd is on.',
    'choose another device: the host needs this one',
)

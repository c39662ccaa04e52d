# SPDX-License-Identifier: Apache-2.0

"""The signs that a PCI function serves the management of the host."""

from __future__ import annotations

from collections.abc import Iterator
import re

from os_acc.availability.host_signs import classes
from os_acc.availability.host_signs import routes
from os_acc.availability.host_signs import sign
from os_acc.availability.host_signs import snapshot
from os_acc.kernel import sysfs
from os_acc.refusals import reasons
from os_acc.refusals import service_refusals

Reason = reasons.Reason
Snapshot = snapshot.Snapshot

_IPMI = re.compile(r'ipmi\d+')


def _controllers(host: Snapshot) -> dict[str, Reason]:
    """The functions that lead to the management controller of the host.

    drivers/char/ipmi/ipmi_devintf.c and drivers/misc/hpilo.c: both make their
    devices below the function, also through SMBus (ipmi_ssif).
    """

    def found() -> Iterator[tuple[str, str]]:
        for kind in ('ipmi', 'iLO'):
            yield from classes.of_class(kind)
        # Without the module ipmi_devintf the class is empty, and the kernel
        # has a watchdog or the power switch by it all the same:
        # __ipmi_bmc_register() in drivers/char/ipmi/ipmi_msghandler.c.
        directory = f'{sysfs.SYS}/bus/platform/devices'
        for each in sysfs.names(directory):
            if each.startswith('ipmi_bmc.'):
                place = sysfs.place(f'{directory}/{each}')
                for name in filter(_IPMI.fullmatch, sysfs.names(place)):
                    yield name, sysfs.place(f'{place}/{name}')

    return classes.by_function(
        (path, service_refusals.MANAGEMENT.say(name=name))
        for name, path in found()
    )


def _watchdogs(host: Snapshot) -> dict[str, Reason]:
    """The functions with a watchdog that runs.

    Documentation/ABI/testing/sysfs-class-watchdog. Without the file, which
    needs CONFIG_WATCHDOG_SYSFS, the watchdog may run.
    """

    def found() -> Iterator[tuple[str, Reason]]:
        for name, path in classes.of_class('watchdog'):
            state = sysfs.read(f'{path}/state')
            if state != 'inactive':
                text = 'runs' if state else 'may run: the kernel does not '
                'show it'
                yield (
                    path,
                    service_refusals.WATCHDOG.say(name=name, state=text),
                )

    return classes.by_function(found())


def _tpms(host: Snapshot) -> dict[str, Reason]:
    return classes.by_function(
        (path, service_refusals.TPM.say(name=name))
        for name, path in classes.of_class('tpm')
    )


def _boot_cards(host: Snapshot) -> dict[str, Reason]:
    """Documentation/ABI/testing/sysfs-ibft: the link device of each NIC."""
    directory = f'{sysfs.SYS}/firmware/ibft'
    return classes.by_function(
        (
            sysfs.place(f'{directory}/{name}/device'),
            service_refusals.BOOTS_FROM.say(name=name),
        )
        for name in sysfs.names(directory)
        if name.startswith('ethernet')
    )


def _route(host: Snapshot, name: str) -> Reason | None:
    if name in host.once(_defaults):
        return service_refusals.DEFAULT_ROUTE.say(name=name)
    return None


def _defaults(host: Snapshot) -> frozenset[str]:
    """The interfaces with a default route.

    Other routes need an interface that is up, and that is a sign of its own.
    """
    return frozenset(
        name
        for network, name in routes.Routes().networks()
        if network.prefixlen == 0
    )


SIGNS = (
    sign.HostSign(
        '/sys/class/ipmi/NAME, /sys/class/iLO/NAME, '
        '/sys/bus/platform/devices/ipmi_bmc.N/ipmiM',
        'The host reaches its management controller (BMC) through it.',
        'Linux 2.6.15',
        _controllers,
    ),
    sign.HostSign(
        '/sys/class/watchdog/NAME/state',
        'A watchdog on it runs, and resets the host when nothing serves it. '
        'Without the file it counts as running.',
        'Linux 4.5',
        _watchdogs,
    ),
    sign.HostSign(
        '/sys/class/tpm/NAME',
        'The TPM of the host is on it, for example on its SPI bus.',
        'Linux 4.0',
        _tpms,
    ),
    sign.HostSign(
        '/sys/firmware/ibft/ethernetN/device',
        'The firmware boots the host from a disk of iSCSI through it.',
        'Linux 2.6.26',
        _boot_cards,
    ),
    sign.InterfaceSign(
        '/proc/net/route, /proc/net/ipv6_route',
        'It has a default route: of IPv4 in the main table, of IPv6 in any '
        'table. Other routes need an interface that is up.',
        'Linux 2.6.12',
        _route,
    ),
)

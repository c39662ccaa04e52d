# SPDX-License-Identifier: Apache-2.0

"""The signs that a PCI function serves the host's management or kernel."""

from __future__ import annotations

from collections.abc import Iterator
import re

from os_acc.availability.host_signs import sign
from os_acc.availability.host_signs import ways
from os_acc.availability.host_signs.snapshot import Snapshot
from os_acc.kernel import idxd
from os_acc.kernel import pci
from os_acc.kernel import sysfs
from os_acc.kernel import vfio
from os_acc.refusals import host_refusals
from os_acc.refusals.reasons import Reason

_IPMI = re.compile(r'ipmi\d+')
_MEMDEV = re.compile(r'mem\d+')


def _controllers(host: Snapshot) -> dict[str, Reason]:
    """The functions that lead to the management controller of the host.

    drivers/char/ipmi/ipmi_devintf.c and drivers/misc/hpilo.c: both make their
    devices below the function, also through SMBus (ipmi_ssif).
    """

    def found() -> Iterator[tuple[str, str]]:
        for kind in ('ipmi', 'iLO'):
            yield from sign.of_class(kind)
        # Without the module ipmi_devintf the class is empty, but the kernel
        # still has a watchdog or the power switch through it:
        # __ipmi_bmc_register() in drivers/char/ipmi/ipmi_msghandler.c.
        directory = f'{sysfs.SYS}/bus/platform/devices'
        for each in sysfs.names(directory):
            if each.startswith('ipmi_bmc.'):
                place = sysfs.place(f'{directory}/{each}')
                for name in filter(_IPMI.fullmatch, sysfs.names(place)):
                    yield name, sysfs.place(f'{place}/{name}')

    return sign.by_function(
        (path, host_refusals.MANAGEMENT.reason(name=name))
        for name, path in found()
    )


def _watchdogs(host: Snapshot) -> dict[str, Reason]:
    """The functions with a watchdog that runs.

    Documentation/ABI/testing/sysfs-class-watchdog. Without the file, which
    needs CONFIG_WATCHDOG_SYSFS, the watchdog may run.
    """

    found = []
    for name, path in sign.of_class('watchdog'):
        state = sysfs.read(f'{path}/state')
        if state != 'inactive':
            text = 'runs' if state else 'may run: the kernel does not show it'
            reason = host_refusals.WATCHDOG.reason(name=name, state=text)
            found.append((path, reason))
    return sign.by_function(found)


def _tpms(host: Snapshot) -> dict[str, Reason]:
    return sign.by_function(
        (path, host_refusals.TPM.reason(name=name))
        for name, path in sign.of_class('tpm')
    )


def _boot_cards(host: Snapshot) -> dict[str, Reason]:
    """Documentation/ABI/testing/sysfs-ibft: the link device of each NIC."""
    directory, reason = f'{sysfs.SYS}/firmware/ibft', host_refusals.BOOTS_FROM
    return sign.by_function(
        (sysfs.place(f'{directory}/{name}/device'), reason.reason(name=name))
        for name in sysfs.names(directory)
        if name.startswith('ethernet')
    )


def _defaults(host: Snapshot) -> frozenset[str]:
    """The interfaces with a default route.

    Other routes need an interface that is up, and that is a sign of its own.
    """
    found = ways.Routes().networks
    return frozenset(name for network, name in found if not network.prefixlen)


# The signs that the host's kernel itself uses a PCI function.

# A module that registers the algorithms of the drivers that hold it:
# drivers/crypto/intel/qat/qat_common. The other drivers do it themselves, or
# in a module that holds theirs, such as ccp_crypto.
_LIBRARY = 'intel_qat'

# These do algorithms, but have no secure processor (PSP), which SEV needs:
# dev_vdata and sp_pci_table in drivers/crypto/ccp/sp-pci.c.
_WITHOUT_PSP = frozenset({'1022:1468', '1022:1537'})


def _channels(host: Snapshot) -> dict[str, Reason]:
    return sign.by_function(
        (path, host_refusals.DMA_CHANNEL.reason(name=name))
        for name, path in sign.of_class('dma')
        if sysfs.read_int(f'{path}/in_use')
    )


def _crypto(host: Snapshot, function: pci.Function) -> Reason | None:
    # Few hosts use one, and only then are the modules of interest.
    used = host.once(_algorithms)
    if not used or function.driver is None or vfio.is_bound(function):
        return None
    # iaa_crypto uses work queues that are enabled, and they are a sign of
    # their own. DSA has the same driver, and does no algorithm.
    if function.driver == idxd.DRIVER or _is_down(function):
        return None
    for module in crypto_modules(function):
        if module in used:
            name, driver = used[module]
            return host_refusals.CRYPTO.reason(name=name, driver=driver)
    return None


def _is_down(function: pci.Function) -> bool:
    """Whether an operator has stopped a QAT device: it does no algorithm.

    Documentation/ABI/testing/sysfs-driver-qat, since Linux 6.0, and
    qat_crypto_get_instance_node(), which takes devices that are started only.
    """
    return 'qat' in function.entries and (
        sysfs.read(f'{function.path}/qat/state') == 'down'
    )


def crypto_modules(function: pci.Function) -> Iterator[str]:
    """The modules that can do algorithms on a function that has a driver."""
    drivers = [pci.driver_directory(function.driver or '')] + [
        f'{function.path}/{entry}/driver'
        for entry in sorted(function.entries)
        if entry.startswith('virtio')
    ]
    for each in drivers:
        if module := sysfs.link(f'{each}/module'):
            yield module
            yield from _holders(module)
            if module in _holders(_LIBRARY):
                yield _LIBRARY


def _holders(module: str) -> list[str]:
    return sysfs.names(f'{sysfs.SYS}/module/{module}/holders')


def _algorithms(host: Snapshot) -> dict[str, tuple[str, str]]:
    """The algorithm and its driver, by the module, of algorithms in use.

    An algorithm that nobody uses has one reference, its registration:
    c_show() in crypto/proc.c and crypto_alg_mod_lookup() in crypto/api.c.
    """
    found = {}
    for text in sysfs.read_long(f'{sysfs.PROC}/crypto').split('\n\n'):
        values = {}
        for line in text.splitlines():
            key, _, value = line.partition(':')
            values[key.strip()] = value.strip()
        count = values.get('refcnt', '')
        if count.isdigit() and int(count) > 1:
            found[values.get('module', '')] = (
                values.get('name', ''),
                values.get('driver', ''),
            )
    return found


def _cxl(host: Snapshot) -> dict[str, Reason]:
    return {
        address: host_refusals.CXL_MEMORY.reason(name=name, number=number)
        for address, (name, number) in host.once(endpoints).items()
        if number
    }


def endpoints(host: Snapshot) -> dict[str, tuple[str, int | None]]:
    """By function: the endpoint of a CXL device, and its decoders in use.

    Documentation/ABI/testing/sysfs-bus-cxl: uport is the memory device, which
    is below the function. The bridges above it have ports of their own. The
    number of decoders is None before Linux 6.7, which has no file for it.
    """
    directory = f'{sysfs.SYS}/bus/cxl/devices'
    found = {}
    for name in sysfs.names(directory):
        path = sysfs.place(f'{directory}/{name}')
        functions = ways.functions_in(sysfs.place(f'{path}/uport'))
        if name.startswith('endpoint') and functions:
            number = sysfs.read_int(f'{path}/decoders_committed')
            found[functions[-1]] = (name, number)
    return found


def _cxl_untold(host: Snapshot, function: pci.Function) -> Reason | None:
    name = memdev(function)
    if name is None:
        return None
    _, number = host.once(endpoints).get(function.address, ('', None))
    if number is not None:
        return None
    return host_refusals.CXL_UNTOLD.reason(name=name)


def memdev(function: pci.Function) -> str | None:
    """The memory device that the driver cxl_pci has made of a function.

    cxl_memdev_alloc() in drivers/cxl/core/memdev.c: it is below the function.
    """
    if function.driver != 'cxl_pci':
        return None
    return next(filter(_MEMDEV.fullmatch, sorted(function.entries)), None)


def _protects(host: Snapshot, function: pci.Function) -> Reason | None:
    if (
        function.driver == 'ccp'
        and function.ids not in _WITHOUT_PSP
        and sysfs.read(f'{sysfs.SYS}/module/kvm_amd/parameters/sev')
        in ('Y', '1')
    ):
        return host_refusals.GUEST_PROTECTION.reason()
    return None


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
        sign.in_set(_defaults, host_refusals.DEFAULT_ROUTE),
    ),
    sign.HostSign(
        '/sys/class/dma/dmaNchanM/in_use',
        'The kernel uses a DMA channel on it, for example for md or NTB.',
        'Linux 2.6.18',
        _channels,
    ),
    sign.FunctionSign(
        '/proc/crypto, with /sys/bus/pci/drivers/NAME/module and '
        '/sys/module/NAME/holders',
        'Somebody uses an algorithm of its driver (refcnt above 1): dm-crypt, '
        'IPsec, kTLS, zswap or a program through AF_ALG. Each function with '
        'the driver counts, because the file does not show which one is used; '
        'but not a QAT device whose file qat/state says down, nor one of the '
        'driver idxd, whose work queues are a sign of their own.',
        'Linux 2.6.15',
        _crypto,
    ),
    sign.HostSign(
        '/sys/bus/cxl/devices/endpointN/uport and decoders_committed',
        'Memory of this CXL device is mapped: it may be memory of the host.',
        'Linux 6.7',
        _cxl,
    ),
    sign.FunctionSign(
        '/sys/bus/pci/devices/ADDRESS/memN',
        'It is a CXL memory device with the driver cxl_pci, and the kernel '
        'has no file decoders_committed for it: its memory may be memory of '
        'the host.',
        'Linux 5.14',
        _cxl_untold,
    ),
    sign.FunctionSign(
        '/sys/module/kvm_amd/parameters/sev',
        'KVM protects the memory of guests with it, if it has the driver ccp '
        'and a secure processor (PSP).',
        'Linux 4.16',
        _protects,
    ),
)

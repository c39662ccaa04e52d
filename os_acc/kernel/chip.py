# SPDX-License-Identifier: Apache-2.0

"""The chip that PCI functions belong to.

An FPGA can have several PCI functions, such as a management function .0 and a
user function .1, and each of them can have VFs. Programming through one of
them changes what all of them give access to.

All of this is read from sysfs without privilege. What a driver shows, such as
a serial number, is unknown while no such driver is bound.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
import dataclasses
import glob
import itertools
import json
import re
from typing import Any

from os_acc.kernel import pci
from os_acc.kernel import sysfs

#: The ids of FPGAs of AMD, and of Intel and Altera.
FPGA_IDS = re.compile(
    '10ee:.*|1172:.*|8086:(09c4|09c5|0b2b|0b2c|0b30|0b31|bcce)'
)

# PCI_BASE_CLASS_ACCELERATOR in include/linux/pci_ids.h. An FPGA that serves
# as a network card has another class, and its PFs may have different owners.
CLASS_ACCELERATOR = 0x12

_MODALIAS = re.compile(
    'pci:v0000([0-9A-F]{4})d[0-9A-F]{8}'
    'sv0000([0-9A-F]{4})sd0000([0-9A-F]{4})bc([0-9A-F]{2})'
)

# Files with the serial number of a card, by the name of what shows them. XRT's
# drivers, xclmgmt and xocl, make directories such as xmc.m.1 below the
# function. The MAC address of a card with an Intel MAX 10 is unique:
# mac_address in Documentation/ABI/testing/sysfs-driver-intel-m10-bmc. OPAE
# looks for it in the same places.
_SERIALS = (
    ('xrt', 'xmc.', ('xmc.*/serial_num',)),
    ('xrt', 'hwmon_sdm.', ('hwmon_sdm.*/serial_num',)),
    (
        'max10',
        'fpga_region',
        (
            'fpga_region/region*/dfl-fme*/dfl*/mac_address',
            'fpga_region/region*/dfl-fme*/dfl*/*spi*/spi_master/spi*/spi*.*/'
            'mac_address',
        ),
    ),
    # The capability "Device Serial Number", from Linux 6.18 on. Only root can
    # read it (DEVICE_ATTR_ADMIN_RO in drivers/pci/pci-sysfs.c).
    ('pci', 'serial_number', ('serial_number',)),
)

# No serial numbers: all digits 0 or f, and what AMD's PCIe cores have if the
# design sets none.
_NO_SERIAL = re.compile('[0:.-]*|[fF:.-]*|00-00-00-01-01-00-0a-35')

_FME = 'fpga_region/region*/dfl-fme*'


@dataclasses.dataclass(frozen=True)
class Chip:
    """One FPGA, and all PCI functions that belong to it.

    What the kernel does not show is None or empty.
    """

    # the lowest address of its PFs. Locks and records of the chip have this
    # name
    address: str
    # the addresses of its functions without the VFs, sorted
    parents: tuple[str, ...]
    functions: tuple[str, ...]  # the addresses of all its functions, sorted
    ids: str = ''  # vendor:product of the function at the lowest address
    subsystem: str = ''  # the subsystem's vendor:device of that function
    serial: str | None = None
    # what shows the serial number. Numbers from different sources cannot be
    # compared
    serial_source: str = ''
    board: str | None = None  # the name of its board and shell
    # the IDs of the shell's interfaces, for which an image for a region must
    # be built
    interface_ids: tuple[str, ...] = ()
    shell_ids: tuple[str, ...] = ()

    @property
    def identity(self) -> str:
        """The data that is_other() needs later, as JSON.

        It knows only what the kernel shows: without a serial number, cards of
        the same model cannot be distinguished.
        """
        return json.dumps(self._facts(), sort_keys=True)

    def is_other(self, identity: str, reprogrammed: bool = False) -> bool:
        """Say whether this is another card than the one that was there.

        Only what is known of both cards is compared. The serial number
        decides if both have one from the same source.

        :param reprogrammed: the one that was there has been programmed with a
            new shell, which may have other ids and another name
        """
        then, now = json.loads(identity), self._facts()
        if 'serial' in then and 'serial' in now:
            before, found = then['serial'], now['serial']
            if before[0] == found[0]:
                return bool(before != found)
        if reprogrammed:
            return False
        return any(
            then[key] != now[key]
            for key in ('ids', 'subsystem', 'board')
            if key in then and key in now
        )

    def covers(self, address: str) -> bool:
        """Whether a device is a PF of the chip, or was one and is gone."""
        return address in self.parents or (
            address in slot_addresses(self.address)
            and pci.find(address) is None
        )

    def _facts(self) -> dict[str, Any]:
        serial = [self.serial_source, self.serial] if self.serial else None
        facts = {
            'ids': self.ids,
            'subsystem': self.subsystem,
            'board': self.board,
            'serial': serial,
        }
        return {key: value for key, value in facts.items() if value}


def slot_addresses(address: str) -> list[str]:
    """The addresses with the domain, bus and device number of an address."""
    slot = address.rpartition('.')[0]
    return [f'{slot}.{number}' for number in range(8)]


def of(function: pci.Function) -> Chip:
    """Find the chip of a PCI function and its other functions.

    These are the functions of the same vendor with the same domain, bus and
    device number, those of the same vendor and class elsewhere that show the
    same serial number, and the VFs of all of them. The interfaces are read
    from DFL's management engine (FME), below the PF that has it.
    """
    parts = _parents(function)
    functions = {each.address for each in parts}
    for each in parts:
        functions.update(each.vf_addresses)
    source, serial = _first_serial(parts)
    text = _MODALIAS.match(parts[0].modalias)
    return Chip(
        address=parts[0].address,
        parents=tuple(each.address for each in parts),
        functions=tuple(sorted(functions)),
        ids=parts[0].ids,
        subsystem=f'{text[2]}:{text[3]}'.lower() if text else '',
        serial=serial,
        serial_source=source,
        board=next(_texts(parts, 'rom.', 'rom.*/VBNV'), None),
        interface_ids=_ids(
            parts,
            'interface_uuids',
            f'{_FME}/dfl-fme-region*/fpga_region/region*/compat_id',
        ),
        shell_ids=_ids(parts, 'logic_uuids', f'{_FME}/bitstream_id'),
    )


def parents(function: pci.Function) -> list[str]:
    """The addresses of the PFs of a function's chip, sorted. See of()."""
    return [each.address for each in _parents(function)]


def _parents(function: pci.Function) -> list[pci.Function]:
    whole = pci.find(function.parent) or function
    found = {whole.address: whole}
    for address in slot_addresses(whole.address):
        each = pci.find(address)
        if (
            each is not None
            and not each.is_vf
            and each.vendor_id == whole.vendor_id
        ):
            found[address] = each
    serial = _first_serial(found.values())
    if serial[1] is not None:
        for each in _elsewhere(whole):
            if _first_serial([each]) == serial:
                found[each.address] = each
    return [found[address] for address in sorted(found)]


def _elsewhere(function: pci.Function) -> Iterator[pci.Function]:
    """The PFs of the same vendor and class in other slots."""
    slot = function.address.rpartition('.')[0] + '.'
    wanted = function.vendor_id.upper(), f'{function.base_class:02X}'
    for address in pci.addresses():
        if address.startswith(slot):
            continue
        # Most functions of a host do not match: read only one file of those.
        path = f'{pci.directory(address)}/modalias'
        text = _MODALIAS.match(sysfs.read_if_possible(path))
        if text is None or (text[1], text[4]) != wanted:
            continue
        found = pci.find(address)
        if found is not None and not found.is_vf:
            yield found


def shows_serial(function: pci.Function) -> bool:
    """Whether a function may show a serial number. This reads nothing."""
    starts = tuple(entry for _, entry, _ in _SERIALS)
    return any(name.startswith(starts) for name in function.entries)


def _first_serial(
    functions: Collection[pci.Function],
) -> tuple[str, str | None]:
    """The first serial number that functions show, and what shows it."""
    for source, entry, patterns in _SERIALS:
        for pattern in patterns:
            for text in _texts(functions, entry, pattern):
                if not _NO_SERIAL.fullmatch(text):
                    return source, text
    return '', None


def _texts(
    functions: Iterable[pci.Function], entry: str, pattern: str
) -> Iterator[str]:
    """Read the files that functions have, by a glob below their directories.

    :param entry: how a name in the function's directory begins. If there is
        none, nothing is read
    """
    for function in functions:
        if any(name.startswith(entry) for name in function.entries):
            for path in sorted(glob.glob(f'{function.path}/{pattern}')):
                if text := sysfs.read_if_possible(path):
                    yield text


def _ids(
    functions: Collection[pci.Function], of_xrt: str, of_dfl: str
) -> tuple[str, ...]:
    """The ids in the files of XRT's or DFL's drivers, one ID per line."""
    texts = itertools.chain(
        _texts(functions, of_xrt, of_xrt),
        _texts(functions, 'fpga_region', of_dfl),
    )
    return tuple(
        dict.fromkeys(line.lower() for text in texts for line in text.split())
    )

# SPDX-License-Identifier: Apache-2.0

"""FPGA cards with a device feature list (DFL), as the kernel shows them.

Such a card has an FPGA management engine (FME) and one port or more. Each port
gives access to one accelerator function. The driver dfl-pci makes the
directories that this module reads: see Documentation/fpga/dfl.rst and, for the
files, Documentation/ABI/testing/sysfs-platform-dfl-fme,
sysfs-platform-dfl-port, sysfs-class-fpga-region of the kernel. All users may
read them.
"""

from __future__ import annotations

import dataclasses
import errno

from os_acc.kernel import pci
from os_acc.kernel import sysfs

#: The driver of the cards.
DRIVER = 'dfl-pci'


@dataclasses.dataclass(frozen=True)
class Port:
    """A port that the PF or a VF has. The kernel hides a released port."""

    path: str
    # its number on the card; None if the port has no driver. In Linux 6.1,
    # that is so after the port was given back to the PF
    number: int | None
    # the id of its accelerator function, 32 hex digits; None if the port is in
    # reset, has no driver or is being programmed
    afu_id: str | None
    # whether the port is in reset, or is being programmed. After a failed
    # programming, Linux 6.1 leaves the port in reset. Later programming seems
    # to succeed, and the port stays in reset
    in_reset: bool


@dataclasses.dataclass(frozen=True)
class Card:
    """The management engine of a card, and the ports that its PF has."""

    address: str
    fme: str  # the directory of the management engine in sysfs
    number_of_ports: int  # how many ports the card has, released ones included
    # those that the PF has, in the order of their directories
    ports: tuple[Port, ...]
    # the id of the interface between the card's static region and its ports,
    # 32 hex digits. An image must be built for it. None if the kernel does not
    # show it
    interface_id: str | None

    def port(self, number: int) -> Port | None:
        """Return a port that the PF has; None if it is released."""
        return next((x for x in self.ports if x.number == number), None)

    @property
    def released(self) -> tuple[int, ...]:
        """The numbers of the ports that the PF does not have.

        Empty while a port has no driver, because its number is unknown then.
        """
        there = {each.number for each in self.ports}
        if None in there:
            return ()
        every = range(self.number_of_ports)
        return tuple(number for number in every if number not in there)

    @property
    def node(self) -> str:
        """The character device of the management engine, such as dfl-fme.0.

        Its device number is in the file dev of its directory.
        """
        return f'{sysfs.DEV}/{self.fme.rpartition("/")[2]}'


def find(address: str) -> Card | None:
    """Find the card of a PF; None: dfl-pci has made no FME for it."""
    for region in _below(pci.directory(address), 'fpga_region', 'region'):
        for name in sysfs.names(region):
            if name.startswith('dfl-fme.'):
                return _card(address, region, f'{region}/{name}')
    return None


def _card(address: str, region: str, fme: str) -> Card:
    ids = [
        compat_id
        for name in sysfs.names(fme)
        if name.startswith('dfl-fme-region.')
        for each in _below(f'{fme}/{name}', 'fpga_region', 'region')
        if (compat_id := sysfs.read(f'{each}/compat_id'))
    ]
    return Card(
        address=address,
        fme=fme,
        number_of_ports=sysfs.read_int(f'{fme}/ports_num') or 0,
        ports=tuple(
            _port(f'{region}/{name}')
            for name in sysfs.names(region)
            if name.startswith('dfl-port.')
        ),
        interface_id=ids[0] if len(set(ids)) == 1 else None,
    )


def _port(path: str) -> Port:
    number = sysfs.read_int(f'{path}/id')
    try:
        return Port(path, number, sysfs.read(f'{path}/afu_id'), False)
    except OSError as err:
        # afu_id_show() in drivers/fpga/dfl-afu-main.c
        if err.errno != errno.EBUSY:
            raise
        return Port(path, number, None, True)


def _below(path: str, directory: str, prefix: str) -> list[str]:
    """The directories with a prefix in a directory of a device."""
    return [
        f'{path}/{directory}/{name}'
        for name in sysfs.names(f'{path}/{directory}')
        if name.startswith(prefix)
    ]

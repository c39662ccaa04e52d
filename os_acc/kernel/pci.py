# SPDX-License-Identifier: Apache-2.0

"""PCI functions as /sys/bus/pci shows them. Needs no privilege."""

from __future__ import annotations

import dataclasses
import os
import re

from os_acc import exception
from os_acc.kernel import sysfs

_MODALIAS = re.compile(
    'pci:v0000([0-9A-F]{4})d0000([0-9A-F]{4})'
    'sv[0-9A-F]{8}sd[0-9A-F]{8}'
    'bc([0-9A-F]{2})sc([0-9A-F]{2})i([0-9A-F]{2})'
)

# pci_register_host_bridge() in drivers/pci/probe.c
_ROOT_BUS = re.compile('pci[0-9a-f]{4,8}:[0-9a-f]{2}')

NO_OVERRIDE = '(null)'  # what an unset driver_override reads as

# Directories that any function may have: drivers/base/power/sysfs.c,
# drivers/pci/pcie/aspm.c, kernel/irq/msi.c
_OF_ANY = frozenset({'power', 'link', 'msi_irqs'})

# Base classes of include/linux/pci_ids.h
CLASS_STORAGE = 0x01
CLASS_NETWORK = 0x02
CLASS_DISPLAY = 0x03
CLASS_BRIDGE = 0x06
CLASS_SERIAL = 0x0C
CLASS_PCI_BRIDGE = 0x0604  # PCI_CLASS_BRIDGE_PCI, a sub-class too
_CLASS_BRIDGE_OTHER = 0x0680  # PCI_CLASS_BRIDGE_OTHER


def is_address(text: str) -> bool:
    """Whether a text is an address as the kernel writes it."""
    return _CANONICAL.fullmatch(text) is not None


def is_root_bus(name: str) -> bool:
    """Whether a name in /sys/devices is that of a root bus."""
    return _ROOT_BUS.fullmatch(name) is not None


def directory(address: str) -> str:
    """The directory of a function in sysfs.

    :raises InvalidRequest: if the address is malformed
    """
    if not is_address(address):
        raise exception.InvalidRequest(
            subject='PCI function',
            field='address',
            value=address,
            expected='a PCI address, dddd:bb:ss.f, in lower case',
        )
    return f'{sysfs.SYS}/bus/pci/devices/{address}'


def driver_directory(driver: str) -> str:
    return f'{sysfs.SYS}/bus/pci/drivers/{driver}'


def addresses() -> list[str]:
    """The addresses of all functions of this host, sorted."""
    return sysfs.names(f'{sysfs.SYS}/bus/pci/devices')


@dataclasses.dataclass(frozen=True, slots=True)
class Link:
    """A PCIe link."""

    width: int  # the lanes that it uses now
    max_width: int  # the lanes that its device has
    speed: str  # of each lane now, such as '8.0 GT/s PCIe'


@dataclasses.dataclass(slots=True)
class Function:
    """A PCI function as it was when it was read."""

    address: str
    vendor_id: str  # 4 hex digits, as product_id
    product_id: str
    pci_class: int  # 24 bits: base class, sub-class, programming interface
    modalias: str
    driver: str | None  # the driver that it is bound to
    entries: frozenset[str]  # the names in its directory in sysfs
    # the address of a VF's PF, if known without reading the link
    pf: str | None = None

    @property
    def path(self) -> str:
        return directory(self.address)

    @property
    def ids(self) -> str:
        """vendor:product"""
        return f'{self.vendor_id}:{self.product_id}'

    @property
    def base_class(self) -> int:
        return self.pci_class >> 16

    @property
    def is_bridge(self) -> bool:
        """Whether it is a bridge, or a part of the host such as an ISA bridge.

        The kernel shows secondary_bus_number for functions whose header is
        that of a bridge (drivers/pci/pci-sysfs.c). Of the other functions of
        class 06, sub-class 80 is a device: NVSwitch, a PCIe switch's endpoint.
        """
        return 'secondary_bus_number' in self.entries or (
            self.base_class == CLASS_BRIDGE
            and self.pci_class >> 8 != _CLASS_BRIDGE_OTHER
        )

    @property
    def is_vf(self) -> bool:
        return 'physfn' in self.entries

    @property
    def is_pf(self) -> bool:
        """Whether it can have VFs."""
        return 'sriov_totalvfs' in self.entries

    @property
    def physfn(self) -> str | None:
        """The address of a VF's PF."""
        if self.pf is None and self.is_vf:
            return sysfs.link(f'{self.path}/physfn')
        return self.pf

    @property
    def parent(self) -> str:
        """The address of the PF for a VF, else its own."""
        return self.physfn or self.address

    @property
    def parts(self) -> list[str]:
        """The directories in sysfs that the function's driver created below
        it."""
        return [
            name for name in sysfs.folders(self.path) if name not in _OF_ANY
        ]

    @property
    def vf_addresses(self) -> list[str]:
        """The addresses of a PF's VFs, in the order of their numbers."""
        links = [e for e in self.entries if e.startswith('virtfn')]
        links.sort(key=lambda name: int(name.removeprefix('virtfn')))
        found = (sysfs.link(f'{self.path}/{name}') for name in links)
        return [address for address in found if address is not None]

    @property
    def above(self) -> list[str]:
        """The functions that it is behind: bridges, and a VMD endpoint.

        The path of a function in sysfs has each of them, also that of a PCI
        domain of Intel's VMD: drivers/pci/controller/vmd.c.
        """
        place = sysfs.place(self.path)
        return [part for part in place.split('/')[:-1] if is_address(part)]

    @property
    def behind(self) -> list[str]:
        """The functions of its PCI domain, if it is a VMD endpoint."""
        if (
            self.driver is None
            or self.is_vf
            or not any(map(is_root_bus, self.entries))
        ):
            return []
        directories = (
            (each, sysfs.place(directory(each))) for each in addresses()
        )
        part = f'/{self.address}/'
        return [each for each, place in directories if part in place]

    @property
    def iommu_group(self) -> str | None:
        """The number of its IOMMU group; None if it is behind no IOMMU."""
        return sysfs.link(f'{self.path}/iommu_group')

    @property
    def numa_node(self) -> int | None:
        """Its NUMA node; None if the firmware does not say (shown as -1)."""
        node = sysfs.read_int(f'{self.path}/numa_node')
        return None if node is None or node < 0 else node

    @property
    def pcie_link(self) -> Link | None:
        """Its PCIe link; None: it has none, or does not answer.

        A VF shares the link of its PF, and shows an unknown speed. So does a
        function that is part of the root complex: current_link_speed_show()
        in drivers/pci/pci-sysfs.c.
        """
        path = directory(self.parent)
        width, max_width, speed = (
            sysfs.read_if_possible(f'{path}/{name}')
            for name in (
                'current_link_width',
                'max_link_width',
                'current_link_speed',
            )
        )
        if not (width and max_width and speed) or speed.startswith('Unknown'):
            return None
        return Link(int(width), int(max_width), speed)

    @property
    def driver_override(self) -> str | None:
        """Reading it may block: see vfio_binding.read_binding()."""
        text = sysfs.read(f'{self.path}/driver_override')
        return None if text in (None, '', NO_OVERRIDE) else text


def get(address: str) -> Function:
    """Read a function that must be there."""
    found = find(address)
    if found is None:
        raise exception.DeviceNotFound(
            wanted=f'PCI function {address}', reason='this host has none'
        )
    return found


def find(address: str) -> Function | None:
    """Read a function; None if there is none, or it is going away."""
    path = directory(address)
    try:
        entries = frozenset(os.listdir(path))
    except FileNotFoundError:
        return None
    text = sysfs.read(f'{path}/modalias')
    if not text:
        # An undo does nothing if the function is gone, so be sure of it.
        if os.path.exists(f'{path}/modalias'):
            raise exception.DeviceError(
                device=f'PCI function {address}',
                reason='its modalias cannot be read',
            )
        return None
    return _function(address, text, entries)


def find_plain(address: str) -> Function | None:
    """Read a function that is bound to no driver, and is no VF.

    This is for scans of thousands of functions: it reads less than find().
    ``entries`` of the result is empty. None: the function is a PF, a bridge or
    a display, or cannot be read.
    """
    path = directory(address)
    text = sysfs.read(f'{path}/modalias')
    if (
        not text
        or os.access(f'{path}/sriov_totalvfs', os.F_OK)
        or os.access(f'{path}/secondary_bus_number', os.F_OK)
    ):
        return None
    found = _function(address, text, frozenset())
    if found.base_class in (CLASS_BRIDGE, CLASS_DISPLAY):
        return None
    return found


def _function(address: str, text: str, entries: frozenset[str]) -> Function:
    # modalias has all ids in one file: modalias_show() in
    # drivers/pci/pci-sysfs.c. Reading uevent instead may wait for the device's
    # lock while an unbind of it is blocked (seen on Debian's Linux 6.1).
    match = _MODALIAS.match(text)
    if match is None:
        raise exception.DeviceError(
            device=f'PCI function {address}',
            reason=f'its modalias is {text!r}',
        )
    return Function(
        address=address,
        vendor_id=match[1].lower(),
        product_id=match[2].lower(),
        pci_class=int(match[3] + match[4] + match[5], 16),
        modalias=text,
        driver=driver_of(address) if 'driver' in entries else None,
        entries=entries,
    )


def inode(address: str) -> int | None:
    """The inode number of a function's directory; None if it is gone.

    The kernel makes a new directory, with another number, for a function that
    has left the bus and has come back.
    """
    try:
        return os.stat(directory(address)).st_ino
    except FileNotFoundError:
        return None


def answers(address: str) -> bool:
    """Whether a function is there and answers.

    The config space of one that does not answer reads as all ones. Any user
    may read the first 64 bytes: pci_read_config() in drivers/pci/pci-sysfs.c.
    The ids of a VF always read as ones (SR-IOV specification, 3.4.1), so all
    64 bytes count.
    """
    try:
        with open(f'{directory(address)}/config', 'rb') as file:
            header = file.read(64)
    except FileNotFoundError:
        return inode(address) is not None
    except OSError:
        return False
    return not header or header.strip(b'\xff') != b''


def has_ids_of_vf(address: str) -> bool:
    """Whether the ids in the config space are all ones, as for every VF.

    See answers(). A function that does not answer shows all ones, too.
    """
    try:
        with open(f'{directory(address)}/config', 'rb') as file:
            return file.read(4) == b'\xff' * 4
    except OSError:
        return False


def driver_of(address: str) -> str | None:
    """The driver that a function is bound to now; None if to none."""
    return sysfs.link(f'{directory(address)}/driver')


def group_members(group: str) -> list[str]:
    """The members of an IOMMU group: addresses, or names of other devices."""
    return sysfs.names(f'{sysfs.SYS}/kernel/iommu_groups/{group}/devices')


# How PCI addresses are written: parsing and formatting them.


#: The parts of an address with their largest values. The kernel keeps a domain
#: in an int: those of Intel VMD begin at 10000 (vmd_find_free_domain() in
#: drivers/pci/controller/vmd.c).
LARGEST = {'domain': 0xFFFFFFFF, 'bus': 0xFF, 'slot': 0x1F, 'function': 0x7}

#: How many hex digits each part has at least, as in LARGEST.
WIDTHS = (4, 2, 2, 1)

_PCI = re.compile(
    r'(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([01][0-9a-f])\.([0-7])', re.I
)

# As join() writes it.
_CANONICAL = re.compile(
    r'(?:[0-9a-f]{4}|[1-9a-f][0-9a-f]{4,7})'
    r':[0-9a-f]{2}:[01][0-9a-f]\.[0-7]'
)


def parse(text: str) -> tuple[int, int, int, int] | None:
    """Domain, bus, slot and function of a PCI address; None: it is none.

    :param text: ``[dddd:]bb:ss.f`` in hex digits of any case; the domain may
        have up to 8 digits, as the kernel prints it with %04x (see
        drivers/pci/probe.c)
    """
    match = _PCI.fullmatch(text)
    if match is None:
        return None
    domain, bus, slot, function = match.groups()
    return int(domain or '0', 16), int(bus, 16), int(slot, 16), int(function)


def join(domain: int, bus: int, slot: int, function: int) -> str:
    """Write an address in its canonical form, as the kernel does.

    The domain has 4 hex digits, or as many as it needs: dev_set_name() in
    drivers/pci/probe.c.
    """
    return f'{domain:04x}:{bus:02x}:{slot:02x}.{function:x}'


def parse_node_name(text: str) -> tuple[int, int, int, int] | None:
    """Split libvirt's name of a PCI function, such as pci_0000_3b_00_0."""
    match = re.fullmatch('pci_(.+)_(.+)_(.+)_(.+)', text)
    return parse('{}:{}:{}.{}'.format(*match.groups())) if match else None


def canonical(text: str) -> str | None:
    """The canonical form of an address that a person writes; None: it is none.

    :param text: an address as parse() or parse_node_name() takes it
    """
    parts = parse(text) or parse_node_name(text)
    return None if parts is None else join(*parts)

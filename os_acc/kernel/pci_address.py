# SPDX-License-Identifier: Apache-2.0

"""How PCI addresses are written: parsing and formatting them."""

from __future__ import annotations

import re

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


def is_canonical(text: str) -> bool:
    """Whether a text is an address as the kernel writes it."""
    return _CANONICAL.fullmatch(text) is not None


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

# SPDX-License-Identifier: Apache-2.0

"""The ``address`` of an entry of device_spec: which devices it names.

The forms and their meaning are those of Nova's ``[pci] device_spec``: see
WhitelistPciAddress in Nova's nova/pci/devspec.py. In addition, the name of a
parent of mediated devices that is no PCI function is an address too.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from typing import Any

from os_acc.kernel import pci
from os_acc.spec import values as spec_values

#: The fields of a PCI address with their largest values. Nova takes domains
#: up to ffff only, and the kernel makes larger ones.
LARGEST = pci.LARGEST

_ANY, _ANY_REGEX = '*', '.*'
_SYNTAX = (
    '[[[domain:]bus:]slot][.function] in hex digits, such as 0000:3b:00.0 or '
    '*:3b:00.*; or an object with regular expressions for domain, bus, slot '
    'and function; or the name of a parent of mediated devices'
)
# A text without a colon is a slot and a function, or else a device's name.
_SLOT = re.compile(
    r'\s*(\*|(0x)?[0-9a-f]*)\s*(\.\s*(\*|(0x)?[0-9a-f]*)\s*)?', re.I
)

# Bus, slot and function with a colon for the dot. Nova would read it as a
# domain, a bus and a slot, but nobody writes a domain with two digits.
_TWISTED = re.compile(
    r'(?:0{4}:)?([0-9a-f]{1,2}):([0-9a-f]{1,2}):([0-7])', re.I
)


@dataclasses.dataclass(frozen=True)
class Address:
    """Which devices an entry names by their addresses or names.

    :ivar complete: the PCI address, if the entry leaves nothing open. If a PF
        is there, the entry names its VFs too
    :ivar fields: else the fields of a PCI address that are not open: the place
        in LARGEST, and a regular expression for the start of the field; None:
        the entry names no PCI function
    :ivar name: a glob over names of parents of mediated devices that are no
        PCI functions; None: it names none of them
    """

    complete: str | None = None
    fields: tuple[tuple[int, re.Pattern[str]], ...] | None = None
    name: str | None = None

    def names(self, function: pci.Function) -> bool:
        """Whether it names a PCI function, by itself or as a VF of its PF."""
        if self.complete is not None:
            return (
                self.complete == function.address
                or self.complete == function.physfn
            )
        if not self.fields:
            return self.fields is not None
        parts = function.address.replace('.', ':').split(':')
        return all(
            pattern.match(parts[place]) for place, pattern in self.fields
        )

    @property
    def is_open(self) -> bool:
        """Whether it names PCI functions on every bus and in every slot."""
        if self.complete is not None or self.fields is None:
            return False
        said = {list(LARGEST)[place] for place, _ in self.fields}
        return said.isdisjoint({'bus', 'slot'})

    def names_parent(self, name: str) -> bool:
        """Whether it names a parent of mdevs that is no PCI function."""
        return self.name is not None and fnmatch.fnmatchcase(name, self.name)


#: Every device. This is what an entry without an address names.
ANY = Address(fields=(), name=_ANY)

#: No PCI function and no parent of mdevs: an entry for device files has it.
NONE = Address()


def read(key: str, value: Any) -> Address:
    """Read an address in any of its forms.

    An empty object names every device, as in Nova. So does an empty text in
    Nova; it is refused here, because it is more likely to be a mistake.
    """
    if value == {}:
        return ANY
    if isinstance(value, dict):
        return _regexes(key, value)
    if not isinstance(value, str) or not value.strip():
        spec_values.refuse(key, value, _SYNTAX)
    if value.strip() == _ANY:
        return ANY
    if ':' not in value and not _SLOT.fullmatch(value):
        return Address(name=value.strip())
    return _glob(key, value)


def _glob(key: str, value: str) -> Address:
    """Read an address with fields that are a hex number, ``*`` or left out."""
    if match := _TWISTED.fullmatch(value.strip()):
        spec_values.refuse(
            key,
            value,
            'a dot before the function; did you mean '
            f"'0000:{match[1]:0>2}:{match[2]:0>2}.{match[3]}'?",
        )
    rest, _, function = value.partition('.')
    parts = rest.split(':')
    if len(parts) > len(LARGEST) - 1:
        spec_values.refuse(key, value, _SYNTAX)
    parts = [_ANY] * (len(LARGEST) - 1 - len(parts)) + parts + [function]
    fields = []
    for (name, largest), width, part in zip(
        LARGEST.items(), pci.WIDTHS, parts, strict=True
    ):
        if part.strip() in ('', _ANY):
            fields.append(_ANY)
            continue
        number = spec_values.hex_number(part, largest)
        if number is None:
            spec_values.refuse(
                key,
                value,
                f'a {name} that is a hex number of at most {largest:X}, or '
                f"'*': {part.strip()!r} is not",
            )
        fields.append(f'{number:0{width}x}')
    if _ANY not in fields:
        return Address('{}:{}:{}.{}'.format(*fields))
    return Address(
        fields=tuple(
            (place, re.compile(f'{field}$'))
            for place, field in enumerate(fields)
            if field != _ANY
        )
    )


def _regexes(key: str, value: dict[str, Any]) -> Address:
    """Read an address with a regular expression for each field.

    Each must match the start of the field, which has lower-case hex digits.
    A field that is left out may be anything.
    """
    if unknown := sorted(value.keys() - LARGEST.keys()):
        spec_values.refuse(
            key,
            value,
            f'only the fields {", ".join(LARGEST)}, not {unknown[0]!r}',
        )
    patterns = []
    for place, name in enumerate(LARGEST):
        text = value.get(name, _ANY_REGEX)
        if name == 'domain' and _is_whole_domain(text):
            text += '$'  # 1000 is not the start of 10000
        try:
            patterns.append((place, re.compile(text)))
        except (
            re.error,
            TypeError,
            OverflowError,
            RecursionError,
        ) as err:
            spec_values.refuse(
                key, value, f'a regular expression as {name} ({err})'
            )
    complete = '{}:{}:{}.{}'.format(*(p.pattern for _, p in patterns))
    complete = complete.replace('$', '', 1)
    if pci.is_address(complete):
        return Address(complete)
    return Address(
        fields=tuple(
            (place, pattern)
            for place, pattern in patterns
            if pattern.pattern != _ANY_REGEX
        )
    )


def _is_whole_domain(text: Any) -> bool:
    return (
        isinstance(text, str)
        and re.fullmatch('[0-9a-f]{4,8}', text) is not None
    )

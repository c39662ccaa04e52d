# SPDX-License-Identifier: Apache-2.0

"""The values of an entry of device_spec: read, checked and normalised.

Each reader takes the key and the value as JSON gives it, and returns the value
that Spec stores. It raises InvalidRequest if the value is invalid. The error
names the key, the value and what was expected.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
import re
from typing import Any
from typing import NoReturn

from os_acc import exception
from os_acc.kernel import modules
from os_acc.options import values

#: The keys that entries for device files and for work queues have, too.
OF_EACH_KIND = frozenset(
    {
        'vendor_id',
        'product_id',
        'resource_class',
        'traits',
        'env',
        'mounts',
        'hooks',
    }
)

_HEX = re.compile('(?:0x)?([0-9a-f]+)', re.I)
_IDS = re.compile('[0-9a-f]{4}:[0-9a-f]{4}', re.I)
_LARGEST_ID = 0xFFFF
_ACCOUNT = re.compile(r'[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}\$?')
_MODE = re.compile('0?[0-7]{3}')
_LARGEST_ACCOUNT = 2**32 - 2  # (uid_t) -1 is no user: chown(2)

# The texts that oslo.utils, and so Nova, takes for booleans:
# strutils.bool_from_string().
_TRUE = ('1', 't', 'true', 'on', 'y', 'yes')
_FALSE = ('0', 'f', 'false', 'off', 'n', 'no')

# Placement's limit for the names of traits and resource classes.
_CUSTOM = re.compile('CUSTOM_[A-Z0-9_]+')
_LONGEST_NAME = 255

# dev_valid_name() in net/core/dev.c: shorter than IFNAMSIZ, and a file name.
_INTERFACE = re.compile(r'(?!\.{1,2}$)[^\s/:]{1,15}')


def refuse(key: str, value: Any, expected: str) -> NoReturn:
    """Raise the error for an invalid entry."""
    raise exception.InvalidRequest(
        subject='[os_acc] device_spec',
        field=key,
        value=value,
        expected=expected,
    )


def refuse_key(key: str, known: Collection[str], where: str = '') -> NoReturn:
    """Raise the error for a key that does not exist.

    :param where: such as ', in an entry with idxd'
    """
    near = values.meant(key, known)
    names = (
        'a key that exists' if near else f'one of {", ".join(sorted(known))}'
    )
    refuse('key', key, f'{names}{where}{near}')


def check_keys(key: str, value: Any, known: Collection[str]) -> None:
    """Check that an object, the value of a key, has known keys only."""
    for name in value:
        if name not in known:
            refuse(
                f'{key}.{name}',
                value[name],
                f'only the keys {", ".join(sorted(known))}',
            )


def ids(key: str, value: Any) -> str:
    """Read the ids of a device: vendor:product, 4 hex digits each."""
    if not isinstance(value, str) or not _IDS.fullmatch(value):
        refuse(key, value, 'vendor:product, 4 hex digits each')
    return value.lower()


def hex_number(text: str, largest: int) -> int | None:
    """Read a hex number, with or without 0x.

    :returns: None if the text is not a hex number of at most ``largest``
    """
    match = _HEX.fullmatch(text.strip())
    number = int(match[1], 16) if match else None
    return number if number is not None and number <= largest else None


def text(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        refuse(key, value, 'a string')
    return value.strip()


def texts(key: str, value: Any) -> tuple[str, ...]:
    """A list, or, as in Nova, a string with commas."""
    items = value.split(',') if isinstance(value, str) else value
    if not isinstance(items, list):
        refuse(key, value, 'a list, or a string with commas')
    return tuple(text(key, item) for item in items)


def pci_id(key: str, value: Any) -> str | None:
    """Read a vendor_id or product_id.

    :returns: 4 hex digits; None for ``*``, which means any
    """
    if value == '*':
        return None
    number = None
    if isinstance(value, str):
        number = hex_number(value, _LARGEST_ID)
    if number is None:
        refuse(
            key,
            value,
            f"a string with a hex number of at most {_LARGEST_ID:x}, or '*'",
        )
    return f'{number:04x}'


def flag(key: str, value: Any) -> bool:
    """Read a boolean: true, false, or one of Nova's texts, in any case."""
    word = str(value).strip().lower()
    if word not in (*_TRUE, *_FALSE):
        words = ', '.join((*_TRUE, *_FALSE))
        refuse(key, value, f'true or false, or one of {words}')
    return word in _TRUE


def count(key: str, value: Any) -> int:
    try:
        number = int(str(value))
    except ValueError:
        number = -1
    if isinstance(value, bool) or not 1 <= number <= 65535:
        what = 'VFs' if key == 'num_vfs' else 'instances'
        refuse(key, value, f'a number of {what}, 1 to 65535')
    return number


def one_of(*choices: str) -> Callable[[str, Any], str]:
    def read(key: str, value: Any) -> str:
        if value not in choices:
            refuse(key, value, f'one of {", ".join(choices)}')
        return str(value)

    return read


def interface(key: str, value: Any) -> str | None:
    """Read the name of a network interface; None if it is empty."""
    if value == '':
        return None
    if not isinstance(value, str) or not _INTERFACE.fullmatch(value):
        refuse(key, value, 'the name of a network interface')
    return value


def kernel_driver(key: str, value: Any) -> str:
    if not modules.is_name(value):
        refuse(key, value, 'the name of a kernel driver, such as vfio-pci')
    return str(value)


def host_driver(key: str, value: Any) -> str:
    if not modules.is_name(value) or 'vfio' in value:
        refuse(
            key,
            value,
            'the name of a kernel driver as in /sys/bus/pci/drivers, such as '
            'iavf; without the key, it is a VFIO driver',
        )
    return str(value)


def resource_class(key: str, value: Any) -> str | None:
    """Read the name of a resource class, and normalise it as Nova does.

    See _normalize_resource_class() in Nova's
    nova/compute/pci_placement_translator.py.

    :returns: None if the text is empty
    """
    import os_resource_classes

    if value == '':
        return None
    name = text(key, value).upper()
    return _placement_name(
        key, name, os_resource_classes.STANDARDS, os_resource_classes
    )


def traits(key: str, value: Any) -> tuple[str, ...]:
    """Read names of traits, and normalise them as Nova does.

    See _normalize_traits() in Nova's nova/compute/pci_placement_translator.py.
    A standard trait must be in upper case: Nova turns any other text into a
    custom trait.
    """
    import os_traits

    if value == '':
        return ()
    standard = frozenset(os_traits.get_traits())
    names = (
        _placement_name(key, name, standard, os_traits)
        for name in texts(key, value)
    )
    return tuple(dict.fromkeys(names))


def _placement_name(
    key: str, name: str, standard: Collection[str], library: Any
) -> str:
    """Return a standard name as it is, and any other one as a custom name.

    :param library: os_resource_classes or os_traits
    """
    if name in standard:
        return name
    custom = name.upper()
    if library.is_custom(custom):
        # Nova keeps the characters that Placement refuses in such a name.
        custom = re.sub('[^A-Z0-9_]+', '_', custom)
    else:
        custom = library.normalize_name(custom)
    if not _CUSTOM.fullmatch(custom) or len(custom) > _LONGEST_NAME:
        refuse(
            key,
            name,
            f'a name of at most {_LONGEST_NAME} characters, with the prefix '
            'CUSTOM_, for Placement',
        )
    return str(custom)


def glob_below(key: str, value: Any) -> str:
    """Read a glob below the directory of a device in sysfs."""
    path = text(key, value)
    if path.startswith('/') or '..' in path.split('/'):
        refuse(key, value, 'a glob below the directory of the device in sysfs')
    return path


def account(key: str, value: Any) -> str:
    """Read the name or the number of a user or group."""
    if type(value) is int and 0 <= value <= _LARGEST_ACCOUNT:
        return str(value)
    if not isinstance(value, str) or not _ACCOUNT.fullmatch(value):
        noun = 'group' if key == 'group' else 'user'
        refuse(key, value, f'the name or number of a {noun}')
    if value.isdigit() and int(value) > _LARGEST_ACCOUNT:
        refuse(key, value, f'a number up to {_LARGEST_ACCOUNT}')
    return value


def mode(key: str, value: Any) -> int:
    """Read permissions: a string with octal digits, such as "0660"."""
    if not isinstance(value, str) or not _MODE.fullmatch(value):
        refuse(key, value, 'a string of three octal digits, such as "0600"')
    return int(value, 8)

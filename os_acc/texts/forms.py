# SPDX-License-Identifier: Apache-2.0

"""The forms of values: what is a name, a path, a MAC address, a UUID."""

from __future__ import annotations

import posixpath
import re

#: A name that is safe as one component of a path.
NAME = re.compile(r'[A-Za-z0-9_][A-Za-z0-9_.:+@=-]{0,254}')
# Visible characters of ASCII, without quotes and backslashes.
_PATH = re.compile(r'/[!#-\[\]-~]+')

# What the errors say that is expected.
A_NAME = 'a name of letters, digits and _.:+@=- (at most 255)'
A_DEVICE_PATH = (
    'an absolute path in ASCII without ".", "..", blanks, quotes or '
    'backslashes'
)
A_COUNT = 'an int of at least 0'
PERMISSIONS = 'one or more of the letters r, w and m'


def is_name(value: object) -> bool:
    """Whether a value is a name that is safe as one component of a path."""
    return isinstance(value, str) and NAME.fullmatch(value) is not None


def is_device_path(value: object) -> bool:
    """Whether a value is an absolute, normal path, such as /dev/dsa/wq0.0."""
    return (
        isinstance(value, str)
        and len(value) <= 4096
        and _PATH.fullmatch(value) is not None
        and posixpath.normpath(value) == value
        and not value.startswith('//')
    )


def is_count(value: object) -> bool:
    """Whether a value is an int that is not negative."""
    return type(value) is int and value >= 0


def is_permissions(value: object) -> bool:
    """Whether a value says what a container may do with a device file."""
    return (
        isinstance(value, str)
        and value != ''
        and set(value) <= set('rwm')
        and len(set(value)) == len(value)
    )


# Which MAC addresses and VLANs a network port can have.


_MAC = re.compile('[0-9a-f]{2}(:[0-9a-f]{2}){5}', re.I)

#: The MAC address that a VF without one shows.
NO_MAC = '00:00:00:00:00:00'
#: Ids of IEEE 802.1Q: 4095 is reserved, and 0 means that there is no VLAN.
HIGHEST_VLAN = 4094
HIGHEST_VLAN_PRIORITY = 7


def is_mac(text: str) -> bool:
    """Whether a text is a MAC address: 6 bytes in hex, with colons."""
    return _MAC.fullmatch(text) is not None


def is_unicast_mac(text: str) -> bool:
    """Whether a text is a MAC address that an interface can have."""
    # The lowest bit of the first byte marks a group of interfaces.
    return is_mac(text) and text != NO_MAC and not int(text[:2], 16) & 1


# The ways in which people and vendors' tools write a UUID.


_UUID = re.compile(
    r'(?:urn:uuid:)?(\{)?([0-9a-f]{8})(-?)([0-9a-f]{4})\3([0-9a-f]{4})\3'
    r'([0-9a-f]{4})\3([0-9a-f]{12})(?(1)\})',
    re.I | re.ASCII,
)


def uuid(text: str) -> str | None:
    """Give a UUID in lower case and with hyphens.

    :param text: a UUID in lower or upper case, with or without hyphens, with
        or without braces, and with or without 'urn:uuid:' in front
    :returns: None if the text is not a UUID
    """
    match = _UUID.fullmatch(text)
    if match is None:
        return None
    return '-'.join(match.group(2, 4, 5, 6, 7)).lower()


# Ids of functions: vendors' tools write one id in several ways.


def function_id(function_id: str | None) -> str:
    """Return the form of a function ID by which IDs are compared.

    :param function_id: a UUID in any form that uuid() knows, or a name
    :returns: it in lower case and without hyphens; '' for None
    """
    text = function_id or ''
    return (uuid(text) or text.lower()).replace('-', '')


def same_function(one: str | None, other: str | None) -> bool:
    """Say whether two ids name the same function; None means no function."""
    return function_id(one) == function_id(other)

# SPDX-License-Identifier: Apache-2.0

"""Which names, paths and permissions an attach handle can have."""

from __future__ import annotations

import posixpath
import re

#: A name that is safe as one component of a path.
NAME = re.compile(r'[A-Za-z0-9_][A-Za-z0-9_.:+@=-]{0,254}')
_PATH = re.compile(r'/[^\x00-\x20\x7f-\uffff"\\]+')

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

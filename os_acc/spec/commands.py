# SPDX-License-Identifier: Apache-2.0

"""The commands of an entry of device_spec, and the pattern of their progress.

See spec_values: each reader takes the key and the value as JSON gives it, and
raises InvalidRequest if the value is invalid.
"""

from __future__ import annotations

import re
import shlex
from typing import Any

from os_acc.spec import values as spec_values

# The placeholders that name the device, written in braces. {function} is the
# number of the PCI function.
_DEVICE = ('address', 'domain', 'bus', 'device', 'function')
# What has to be in a command besides {address}, if {address} is not in it. A
# tool may need another function of the card than the one that instances get:
# for example, xbmgmt needs function 0. So {function} may be left out.
_WHOLE_ADDRESS = frozenset({'domain', 'bus', 'device'})

_LONGEST_PATTERN = 200
_MOST_REPEATED = 3
# The end of a command's output that a pattern is applied to, in characters.
_LONGEST_LINE = 120
_ESCAPED = re.compile(r'\\.|\[\^?\]?(?:\\.|[^\]\\])*\]', re.DOTALL)


def program(key: str, value: Any) -> tuple[str, ...]:
    """Read the command that programs a device."""
    words = _command(key, value, (*_DEVICE, 'region', 'file', 'function_id'))
    if 'file' not in _placeholders(words):
        spec_values.refuse(key, value, '{file}, the image to program')
    return words


def check(key: str, value: Any) -> tuple[str, ...]:
    """Read the command that checks the function of a device.

    It has no {file}: the copy of the image is gone when it runs.
    """
    return _command(key, value, (*_DEVICE, 'region', 'function_id'))


def clear(key: str, value: Any) -> tuple[str, ...]:
    """Read the command that removes the function from a device."""
    return _command(key, value, (*_DEVICE, 'region'))


def _command(
    key: str, value: Any, allowed: tuple[str, ...]
) -> tuple[str, ...]:
    """Read a list of arguments, or a text that is split as a shell would."""
    words = value if isinstance(value, list) else []
    if isinstance(value, str):
        try:
            words = shlex.split(value)
        except ValueError:  # a quotation mark without its partner
            words = []
    if not words or not all(isinstance(word, str) for word in words):
        spec_values.refuse(key, value, 'a command, or a list of its arguments')
    if not words[0].startswith('/'):
        spec_values.refuse(key, value, 'a command by its absolute path')
    if any('\0' in word for word in words):
        spec_values.refuse(key, value, 'a command without null characters')
    found = _placeholders(words)
    if not found <= set(allowed):
        listed = ', '.join(f'{{{name}}}' for name in allowed)
        spec_values.refuse(key, value, f'only the placeholders {listed}')
    if 'address' not in found and not found >= _WHOLE_ADDRESS:
        spec_values.refuse(
            key,
            value,
            'a command that names the device by its whole address: with '
            '{address}, or with {domain}, {bus} and {device}. Without the '
            'domain, a tool can use another card with the same number',
        )
    return tuple(words)


def _placeholders(words: Any) -> set[str]:
    """The names in braces, in all arguments but the command itself."""
    return set(re.findall(r'\{(.*?)\}', ' '.join(words)))


def progress(key: str, value: Any) -> str:
    """Read the pattern that finds the percentage in a command's output.

    A regular expression can take exponential time for a short text. The
    conditions here keep that from happening, see percent().
    """
    pattern = spec_values.text(key, value)
    try:
        groups = re.compile(pattern).groups
    except (re.error, OverflowError, RecursionError) as err:
        spec_values.refuse(key, value, f'a regular expression: {err}')
    if groups != 1:
        spec_values.refuse(
            key,
            value,
            'a regular expression with one group, the percentage, as in '
            r'(\d+)%. Other parentheses are written (?:...)',
        )
    if len(pattern) > _LONGEST_PATTERN:
        spec_values.refuse(
            key, value, f'at most {_LONGEST_PATTERN} characters'
        )
    plain = _ESCAPED.sub('x', pattern)
    if (
        re.search(r'\)[*+{]', plain)
        or len(re.findall(r'[*+{]', plain)) > _MOST_REPEATED
        or re.search(r'\\[1-9]|\(\?P=|\(\?[a-wyz]*x', pattern)
    ):
        spec_values.refuse(
            key,
            value,
            f'at most {_MOST_REPEATED} of the repetitions *, + and {{n}}, '
            'none of them after a parenthesis, no reference to a group, no '
            'flag x: other expressions can take very long',
        )
    return pattern


def percent(pattern: str, said: str) -> float | None:
    """Find the percentage that a command has reported last.

    This takes less than a second, because only the end of the output is
    searched and progress() refuses patterns that are too slow.

    :returns: 0.0 to 100.0; None if it is not in the end of the output
    """
    found = list(re.finditer(pattern, said[-_LONGEST_LINE:]))
    try:
        number = float(found[-1][1]) if found else -1.0
    except (TypeError, ValueError):  # the group is optional, or no number
        return None
    return number if 0 <= number <= 100 else None

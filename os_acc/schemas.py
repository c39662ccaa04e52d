# SPDX-License-Identifier: Apache-2.0

"""Checks documents by their JSON schema, and says in words what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import difflib
from typing import Any
from typing import NoReturn
from typing import TypeAlias

from os_acc import exception

#: A key of the document, or the number of an item of a list.
Path: TypeAlias = Sequence[str | int]
#: Says where a key is.
Place: TypeAlias = Callable[[Path], str]


def check(schema: Mapping[str, Any], found: Any, place: Place) -> None:
    """Check a document.

    An integer is one in Python, too: 2.0 is none, other than in JSON schema.

    :param schema: its descriptions say what is expected
    :param place: says where a key is, for the errors
    """
    import jsonschema

    validator = jsonschema.validators.extend(
        jsonschema.Draft202012Validator,
        type_checker=jsonschema.Draft202012Validator.TYPE_CHECKER.redefine(
            'integer', lambda checker, value: type(value) is int
        ),
    )(schema)
    # A misspelled key is reported before the required key that it should be.
    for error in sorted(validator.iter_errors(found), key=_order):
        keys = list(error.absolute_path)
        if error.validator == 'additionalProperties':
            known = error.schema['properties']
            key = next(each for each in error.instance if each not in known)
            _unknown(key, error.instance[key], keys, list(known), place)
        if error.validator == 'required':
            missing = next(
                each
                for each in error.validator_value
                if each not in error.instance
            )
            keys.append(missing)
            _refuse(place(keys[:-1]), named(keys), None, 'a value')
        expected = error.schema.get('description', error.message)
        _refuse(place(keys), named(keys), error.instance, expected)


def _order(error: Any) -> tuple[bool, list[str]]:
    is_missing = error.validator in ('required', 'anyOf')
    return is_missing, list(map(str, error.path))


def _unknown(
    key: str,
    value: Any,
    keys: list[str | int],
    known: list[str],
    place: Place,
) -> NoReturn:
    """Refuse a key that the schema does not have."""
    expected = f'no such key; the keys are {", ".join(known)}'
    if close := difflib.get_close_matches(str(key), known, 1):
        expected = f'a key that exists; did you mean {close[0]!r}?'
    _refuse(place([*keys, key]), named([*keys, key]), value, expected)


def at(
    err: exception.InvalidRequest, keys: Path, place: Place
) -> exception.InvalidRequest:
    """Make the error of a value say where the value is."""
    return exception.InvalidRequest(
        **{**err.kwargs, 'subject': place(keys), 'field': named(keys)}
    )


def named(keys: Path) -> str:
    """Write keys as one name: offered[0].address."""
    text = ''
    for key in keys:
        text += f'[{key}]' if isinstance(key, int) else f'.{key}'
    return text.removeprefix('.') or 'document'


def _refuse(subject: str, field: str, value: Any, expected: str) -> NoReturn:
    raise exception.InvalidRequest(
        subject=subject, field=field, value=value, expected=expected
    )

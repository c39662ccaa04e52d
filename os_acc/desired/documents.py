# SPDX-License-Identifier: Apache-2.0

"""Reads and checks a document, from files or as an object.

schema.json says which keys there are. The entries of ``offered`` are those of
device_spec, and its reader reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
import importlib.resources
import json
import os
from typing import Any
from typing import NoReturn

from os_acc import exception
from os_acc import schemas
from os_acc.bitstreams import reference
from os_acc.desired import places
from os_acc.objects import device as device_objects
from os_acc.spec import device_spec
from os_acc.texts import documents
from os_acc.texts import yaml_documents

VERSION = 1

_ENDS = ('.json', '.yaml', '.yml')


@dataclasses.dataclass(frozen=True)
class Function:
    """The function that a device, or a region of it, shall hold.

    :ivar region: empty: the whole device
    :ivar bitstream: as for os_acc.program_device()
    """

    device: str
    function: str
    region: str = ''
    bitstream: str | None = None

    @property
    def label(self) -> str:
        return f'{self.device} {self.region}'.strip()


@dataclasses.dataclass(frozen=True)
class Document:
    """What a document says.

    :ivar offered: the entries of device_spec
    :ivar specs: the same, as their reader has read them
    """

    offered: list[dict[str, Any]]
    specs: list[device_spec.Spec]
    functions: list[Function]

    def as_object(self) -> dict[str, Any]:
        """Write it as read() reads it."""
        functions = [
            {k: v for k, v in dataclasses.asdict(each).items() if v}
            for each in self.functions
        ]
        return written(self.offered, functions)


def written(
    offered: list[dict[str, Any]], functions: list[dict[str, Any]]
) -> dict[str, Any]:
    """Make a document of its parts."""
    return {'version': VERSION, 'offered': offered, 'functions': functions}


@functools.cache
def schema() -> dict[str, Any]:
    """The JSON schema of a document."""
    file = importlib.resources.files('os_acc.desired') / 'schema.json'
    found: dict[str, Any] = json.loads(file.read_text(encoding='utf-8'))
    return found


def from_files(path: str) -> Document:
    """Read a file, or the files of a directory in the order of their names.

    :param path: of JSON or YAML, by the end of the name
    :raises InvalidRequest: if one is wrong; the error names file, line and key
    :raises OSError: if one cannot be read
    """
    paths = [path]
    if os.path.isdir(path):
        paths = [
            os.path.join(path, name)
            for name in sorted(os.listdir(path))
            if name.endswith(_ENDS) and not name.startswith('.')
        ]
        if not paths:
            _refuse(path, 'files', None, f'files with {", ".join(_ENDS)}')
    parts = []
    for each in paths:
        with open(each, 'rb') as file:
            parts.append(from_text(file.read(), each))
    return _check_once(_joined(parts), path)


def from_text(data: bytes | str, path: str) -> Document:
    """Read a text.

    :param path: where it is from, for the errors; JSON or YAML by its end
    :raises InvalidRequest: as from_files()
    """
    is_json = path.endswith('.json')
    try:
        text = documents.text_of(data)
        found = (documents.json_of if is_json else yaml_documents.yaml_of)(
            text
        )
    except ValueError as err:
        _refuse(path, 'text', None, f'JSON or YAML ({err})')

    def place(keys: schemas.Path) -> str:
        line = places.line_of(text, keys)
        return f'{path}, line {line}' if line else path

    return read(found, place)


def read(
    found: Any, place: schemas.Place = lambda keys: 'document'
) -> Document:
    """Check a document that was read already.

    :param place: says where a key stands, for the errors
    :raises InvalidRequest: if it is wrong; the error names place, key and
        value, and what was expected
    """
    schemas.check(schema(), found, place)
    specs: list[device_spec.Spec] = []
    for number, item in enumerate(found.get('offered', ())):
        try:
            specs += device_spec.parse(json.dumps(item))
        except exception.InvalidRequest as err:
            field = err.kwargs['field']
            keys = ['offered', number, *([field] if field in item else [])]
            raise exception.InvalidRequest(
                **{
                    **err.kwargs,
                    'subject': place(keys),
                    'field': schemas.named(keys),
                }
            ) from err
    functions = []
    for number, item in enumerate(found.get('functions', ())):
        made = Function(**item)
        functions.append(_checked(made, ['functions', number], place))
    document = Document(list(found.get('offered', ())), specs, functions)
    return _check_once(document, place(['functions']))


def _checked(
    made: Function, keys: list[str | int], place: schemas.Place
) -> Function:
    """Check and normalise the values of a function."""
    where = 'device'
    try:
        # The fields of an object know an address and the name of a function.
        device = device_objects.Device.partial(
            address=made.device, driver='any'
        )
        where = 'function'
        device.function_id = made.function
        where = 'bitstream'
        if made.bitstream is not None:
            reference.parse(made.bitstream)
    except exception.InvalidRequest as err:
        keys = [*keys, where]
        raise exception.InvalidRequest(
            **{
                **err.kwargs,
                'subject': place(keys),
                'field': schemas.named(keys),
            }
        ) from err
    return dataclasses.replace(made, device=device.address)


def _joined(parts: Sequence[Document]) -> Document:
    return Document(
        [each for part in parts for each in part.offered],
        [each for part in parts for each in part.specs],
        [each for part in parts for each in part.functions],
    )


def _check_once(document: Document, subject: str) -> Document:
    """Check that no region is to hold two functions."""
    seen: set[str] = set()
    for each in document.functions:
        if each.label in seen:
            _refuse(subject, 'functions', each.label, 'each region once')
        seen.add(each.label)
    return document


def _refuse(subject: str, field: str, value: Any, expected: str) -> NoReturn:
    raise exception.InvalidRequest(
        subject=subject, field=field, value=value, expected=expected
    )

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
from os_acc import objects
from os_acc import reserved
from os_acc import schemas
from os_acc.bitstreams import reference
from os_acc.desired import places
from os_acc.desired import reservations
from os_acc.desired import wanted_mdevs
from os_acc.journal import desired as rows
from os_acc.kernel import pci
from os_acc.spec import device_spec
from os_acc.spec import values as spec_values
from os_acc.texts import documents
from os_acc.texts import forms
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
class Pool:
    """A function that some regions shall hold before it is requested.

    A region is what is programmed on its own: of a device without regions, the
    whole device.

    :ivar resource_class: of the devices; None: any
    :ivar traits: that the devices have
    :ivar bitstream: as for os_acc.program_device()
    :ivar min_free: how many regions with a free handle shall hold it; None: 1,
        or 0 if on_demand
    :ivar max: how many regions may hold it because of the pool; None: all
    :ivar on_demand: at least one region shall be free while requests for it
        find none
    :ivar hours: the hours in which regions are programmed, in local time, such
        as '22-6'; None: always
    :ivar per_hour: how often regions may be programmed within an hour
    :ivar after: KEEP or CLEAR, of programming.kept; None: as the driver's
        option says
    """

    function: str
    resource_class: str | None = None
    traits: tuple[str, ...] = ()
    bitstream: str | None = None
    min_free: int | None = None
    max: int | None = None
    on_demand: bool = False
    hours: str | None = None
    per_hour: int = 20
    after: str | None = None

    @property
    def least(self) -> int:
        """How many regions shall be free, without a demand."""
        if self.min_free is None:
            return 0 if self.on_demand else 1
        return self.min_free

    def is_open(self, hour: int) -> bool:
        """Whether regions are programmed in an hour of the day."""
        if self.hours is None:
            return True
        first, last = map(int, self.hours.split('-'))
        if first < last:
            return first <= hour < last
        return hour >= first or hour < last


@dataclasses.dataclass(frozen=True)
class Document:
    """What a document says.

    :ivar offered: the entries of device_spec
    :ivar specs: the same, as their reader has read them
    :ivar reserved: the devices that only some requests get
    :ivar partitions: PCI address and mode of the AMD GPUs whose compute
        partitions are set
    :ivar vgpus: the VFs that have their vGPU type ahead of time
    :ivar work_queues: the devices whose work queues are set up ahead of time
    :ivar mdevs: the mediated devices that exist ahead of time
    :ivar pools: the functions that some regions shall hold
    """

    offered: Sequence[dict[str, Any]] = ()
    specs: Sequence[device_spec.Spec] = ()
    functions: Sequence[Function] = ()
    reserved: Sequence[reserved.Reserved] = ()
    partitions: Sequence[tuple[str, str]] = ()
    vgpus: Sequence[str] = ()
    work_queues: Sequence[str] = ()
    mdevs: Sequence[wanted_mdevs.Mdevs] = ()
    pools: Sequence[Pool] = ()

    def as_object(self) -> dict[str, Any]:
        """Write it as read() reads it."""
        return written(
            self.offered,
            reservations.written(self.functions),
            reserved=reservations.written(self.reserved),
            partitions=[
                {'device': card, 'compute': mode}
                for card, mode in self.partitions
            ],
            vgpus=[{'device': each} for each in self.vgpus],
            work_queues=[{'device': each} for each in self.work_queues],
            mdevs=[dataclasses.asdict(each) for each in self.mdevs],
            pools=[_without_defaults(each) for each in self.pools],
        )


def written(
    offered: Sequence[dict[str, Any]],
    functions: Sequence[dict[str, Any]],
    **others: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """Make a document from its parts."""
    return {
        'version': VERSION,
        'offered': [*offered],
        'functions': [*functions],
        **{name: [*part] for name, part in others.items() if part},
    }


def _without_defaults(pool: Pool) -> dict[str, Any]:
    return {
        field.name: list(value) if isinstance(value, tuple) else value
        for field in dataclasses.fields(pool)
        if (value := getattr(pool, field.name)) != field.default
    }


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
    return _check_once(_joined(parts), lambda keys: path)


def from_text(data: bytes | str, path: str) -> Document:
    """Read a text.

    :param path: where it is from, for the errors; JSON or YAML by its end
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

    :param place: says where a key is, for the errors
    :raises InvalidRequest: if it is wrong; the error names place, key and
        value, and what was expected
    """
    schemas.check(schema(), found, place)
    specs: list[device_spec.Spec] = []
    for number, item in enumerate(found.get('offered', ())):
        try:
            specs += device_spec.parse(json.dumps(item))
        except exception.InvalidRequest as err:
            # Such as vf_settings.vlan.
            field = err.kwargs['field'].split('.')
            keys = ['offered', number, *(field if field[0] in item else [])]
            raise schemas.at(err, keys, place) from err
    functions = [
        _checked(Function(**item), ['functions', number], place)
        for number, item in enumerate(found.get('functions', ()))
    ]
    pools = [
        _checked_pool(
            Pool(**{**item, 'traits': tuple(item.get('traits', ()))}),
            ['pools', number],
            place,
        )
        for number, item in enumerate(found.get('pools', ()))
    ]
    document = Document(
        list(found.get('offered', ())),
        specs,
        functions,
        reservations.read(found.get('reserved', ()), place),
        [
            *zip(
                _addresses(found, 'partitions', 'an AMD GPU', place),
                (each['compute'] for each in found.get('partitions', ())),
                strict=True,
            )
        ],
        _addresses(found, 'vgpus', 'a VF', place),
        _addresses(found, 'work_queues', 'a DSA or IAA', place),
        wanted_mdevs.read(found.get('mdevs', ()), place),
        pools,
    )
    return _check_once(document, place)


def stored(row: rows.Desired | None) -> Document:
    """Read the document of the journal; empty: none was applied.

    :raises InvalidRequest: if a later version of os-acc has written it
    """
    if row is None:
        return Document()
    found = json.loads(row.document)
    found.pop(rows.LET_GO, None)
    return read(found)


def _checked(
    made: Function, keys: list[str | int], place: schemas.Place
) -> Function:
    """Check and normalise the values of a function."""
    device = reservations.address(made.device, made.function, keys, place)
    try:
        _check_bitstream(made.bitstream)
    except exception.InvalidRequest as err:
        raise schemas.at(err, [*keys, 'bitstream'], place) from err
    return dataclasses.replace(made, device=device)


def _check_bitstream(text: str | None) -> None:
    """Check a bitstream, and that the journal may keep it as it is."""
    found = reference.parse(text) if text is not None else None
    if isinstance(found, reference.Web) and (found.user or found.query):
        _refuse(
            'document',
            'bitstream',
            found.masked(),
            'a URL without user, password and query, because the journal '
            'keeps the document and must not have secrets',
        )


def _addresses(
    found: dict[str, Any], part: str, what: str, place: schemas.Place
) -> list[str]:
    """Check and normalise the PCI addresses of the devices of a part."""
    made = []
    for number, item in enumerate(found.get(part, ())):
        text = item['device']
        if not pci.is_address(text.lower()):
            keys: list[str | int] = [part, number, 'device']
            expected = f'the PCI address of {what}'
            _refuse(place(keys), schemas.named(keys), text, expected)
        made.append(text.lower())
    return made


def _checked_pool(
    made: Pool, keys: list[str | int], place: schemas.Place
) -> Pool:
    """Check and normalise the values of a pool."""
    where = 'function'
    try:
        # The field of a request knows the name of a function.
        objects.AcceleratorRequest.partial(function_id=made.function)
        where = 'resource_class'
        made = dataclasses.replace(
            made,
            resource_class=spec_values.resource_class(
                where, made.resource_class or ''
            ),
        )
        where = 'traits'
        made = dataclasses.replace(
            made, traits=spec_values.traits(where, list(made.traits))
        )
        where = 'bitstream'
        _check_bitstream(made.bitstream)
    except exception.InvalidRequest as err:
        raise schemas.at(err, [*keys, where], place) from err
    if made.max is not None and made.max < made.least:
        keys = [*keys, 'max']
        expected = f'at least min_free, which is {made.least}'
        _refuse(place(keys), schemas.named(keys), made.max, expected)
    return made


def _joined(parts: Sequence[Document]) -> Document:
    """Make one document from several."""
    return Document(
        *(
            [each for part in parts for each in getattr(part, field.name)]
            for field in dataclasses.fields(Document)
        )
    )


def _check_once(document: Document, place: schemas.Place) -> Document:
    """Check that no device, and no function, occurs twice in one part."""
    pools = [forms.function_id(each.function) for each in document.pools]
    for part, found, what in (
        ('functions', [each.label for each in document.functions], 'region'),
        ('reserved', [each.label for each in document.reserved], 'region'),
        ('partitions', [card for card, _ in document.partitions], 'device'),
        ('vgpus', document.vgpus, 'VF'),
        ('work_queues', document.work_queues, 'device'),
        ('mdevs', [each.label for each in document.mdevs], 'type'),
        ('pools', pools, 'function'),
    ):
        for number, each in enumerate(found):
            if each in found[:number]:
                _refuse(place([part, number]), part, each, f'each {what} once')
    return document


def _refuse(subject: str, field: str, value: Any, expected: str) -> NoReturn:
    raise exception.InvalidRequest(
        subject=subject, field=field, value=value, expected=expected
    )

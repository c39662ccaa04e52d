# SPDX-License-Identifier: Apache-2.0

"""The option device_spec: which devices of the host os-acc may touch.

Its syntax is that of Nova's ``[pci] device_spec``: JSON objects, each of which
names devices and says how they are offered. The files of the directory
``[os_acc] device_spec_dir`` add to it. A device that no entry names is not
offered.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
import dataclasses
import functools
import logging
import re

from oslo_config import cfg

from os_acc import exception
from os_acc.kernel import pci
from os_acc.options import common
from os_acc.options import values
from os_acc.refusals import offer_refusals
from os_acc.refusals import reasons
from os_acc.refusals import refusals
from os_acc.spec import address as spec_address
from os_acc.spec import entry as spec_entry
from os_acc.spec import files as spec_files
from os_acc.spec import parts as spec_parts
from os_acc.spec import reading as spec_reading
from os_acc.spec import values as spec_values
from os_acc.spec.entry import ACTIVATIONS as ACTIVATIONS
from os_acc.spec.entry import BETWEEN_HOST as BETWEEN_HOST
from os_acc.spec.entry import BETWEEN_VFIO as BETWEEN_VFIO
from os_acc.spec.entry import BIND_HOST as BIND_HOST
from os_acc.spec.entry import BIND_LIBVIRT as BIND_LIBVIRT
from os_acc.spec.entry import BIND_NONE as BIND_NONE
from os_acc.spec.entry import BIND_OS_ACC as BIND_OS_ACC
from os_acc.spec.entry import BINDS as BINDS
from os_acc.spec.entry import COLD_REBOOT as COLD_REBOOT
from os_acc.spec.entry import PARTIAL as PARTIAL
from os_acc.spec.entry import PROGRAMMER_AMD as PROGRAMMER_AMD
from os_acc.spec.entry import PROGRAMMER_COMMAND as PROGRAMMER_COMMAND
from os_acc.spec.entry import PROGRAMMER_DFL as PROGRAMMER_DFL
from os_acc.spec.entry import REENUMERATE as REENUMERATE
from os_acc.spec.entry import Spec as Spec
from os_acc.spec.entry import line as line
from os_acc.texts import documents

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Specs:
    """All entries.

    The first one that names a device applies. A device that no entry names is
    not offered. An entry with ``deny`` overrides all others.
    """

    entries: tuple[Spec, ...] = ()

    def find(self, function: pci.Function) -> Spec | None:
        """The entry for a function.

        :returns: None if no entry names it, or one denies it
        """
        return _granted(self.first(function))

    def first(self, function: pci.Function) -> Spec | None:
        """The entry that applies to a function, which may deny it."""
        return next((s for s in self._order() if s.matches(function)), None)

    def may_name(self, address: str) -> bool:
        """Whether an entry may name a function that cannot be read.

        It does so by the address, or by what only the function itself shows.
        """
        unknown = pci.Function(address, '', '', 0, '', None, frozenset())
        return any(
            spec.address.names(unknown)
            for spec in self.entries
            if not spec.devices and spec.nvme_of is None and not spec.deny
        )

    def held(
        self,
        function: pci.Function,
        vfio_driver: str | None = None,
        command_empties: bool = False,
    ) -> Spec:
        """The entry for a function that a VAN already has.

        The VAN keeps the function until it is released, even if a later entry
        denies it. If no entry names it any more, an entry without further
        values is returned.

        The other parameters are for a function that no entry names any more.

        :param vfio_driver: the VFIO driver that the VAN's function has
        :param command_empties: as the entry said that offered it
        """
        return self.known(function) or Spec(
            address=spec_address.Address(function.address),
            vfio_driver=vfio_driver,
            command_empties=command_empties,
        )

    def known(self, function: pci.Function) -> Spec | None:
        """The entry that offers a function that a VAN has already.

        :returns: None if no entry names it any more. See held()
        """
        for spec in self.entries:
            if not spec.deny and spec.matches(function):
                return spec
        return None

    def find_parent(self, name: str) -> Spec | None:
        """The entry for a parent of mdevs, which may be no PCI function."""
        return _granted(self.first_parent(name))

    def first_parent(self, name: str) -> Spec | None:
        """The entry that applies to a parent of mdevs. See first()."""
        if pci.is_address(name):
            function = pci.find(name)
            return self.first(function) if function is not None else None
        return next((s for s in self._order() if s.matches_parent(name)), None)

    def known_parent(self, name: str) -> Spec | None:
        """The entry for a parent of an mdev that a VAN has. See known()."""
        return self.find_parent(name)

    def find_namespace(self, wwn: str) -> Spec | None:
        """The entry for a namespace of an NVMe-oF target. See find()."""
        return _granted(self.first_namespace(wwn))

    def first_namespace(self, wwn: str) -> Spec | None:
        """The entry that applies to a namespace. See first()."""
        return next(
            (s for s in self._order() if s.matches_namespace(wwn)), None
        )

    def known_namespace(self, wwn: str) -> Spec | None:
        """The entry for a namespace that a VAN has already. See known()."""
        return self.find_namespace(wwn)

    def namespaces(self) -> Iterator[tuple[str, Spec]]:
        """The namespaces that are offered, each with its entry."""
        for name in self.named_namespaces():
            if (spec := self.find_namespace(name)) is not None:
                yield name, spec

    def named_namespaces(self) -> list[str]:
        """The namespaces that entries with nvme_of name, denied or not."""
        return list(
            dict.fromkeys(
                name
                for spec in self.entries
                if spec.nvme_of is not None
                for name in spec.nvme_of.namespaces
            )
        )

    def check(self, function: pci.Function) -> Spec:
        """The entry for a function."""
        return _offered(self.find(function), 'PCI function', function.address)

    def check_parent(self, name: str) -> Spec:
        """The entry for a parent of mdevs. See check()."""
        if pci.is_address(name):
            pci.get(name)
        return _offered(self.find_parent(name), 'mdev parent', name)

    def check_mdev(self, parent: str, kind: str) -> Spec:
        """The entry for an mdev parent, if it allows an mdev type."""
        spec = self.check_parent(parent)
        if not spec_parts.offers(spec, spec_parts.Part.MDEV):
            raise exception.DeviceNotFound(
                wanted=f'mdev type {kind} on {parent}',
                reason=offer_refusals.NO_MDEVS_OFFERED.reason(
                    parts=spec_parts.text(spec)
                ).text,
            )
        if not spec.allows_mdev(kind):
            raise exception.DeviceNotFound(
                wanted=f'mdev type {kind} on {parent}',
                reason=refusals.MDEV_TYPE.reason(
                    types=', '.join(spec.mdev_types)
                ).text,
            )
        return spec

    def _order(self) -> Iterator[Spec]:
        yield from (spec for spec in self.entries if spec.deny)
        yield from (spec for spec in self.entries if not spec.deny)


class Unreadable(Specs):
    """What is left of device_spec while it cannot be read.

    VANs keep what they have: held() and the methods known...() answer as if no
    entry named the device. Everything else raises the error, so that nothing
    new is offered.

    :ivar error: that of load()
    """

    error: exception.InvalidRequest

    def __init__(self, error: exception.InvalidRequest) -> None:
        object.__setattr__(self, 'error', error)

    @property
    def entries(self) -> tuple[Spec, ...]:
        raise self.error

    def known(self, function: pci.Function) -> Spec | None:
        return None

    def known_parent(self, name: str) -> Spec | None:
        return None

    def known_namespace(self, wwn: str) -> Spec | None:
        return None


def _granted(spec: Spec | None) -> Spec | None:
    return None if spec is None or spec.deny else spec


def not_offered(device: str) -> reasons.Reason:
    """Say that a device is not offered, and how to offer it.

    :param device: a PCI address, or the name of a parent of mdevs
    """
    entry = spec_entry.entries(device)[0]
    return refusals.NOT_NAMED.reason(device=device, entry=line(entry))


def _offered(spec: Spec | None, kind: str, device: str) -> Spec:
    if spec is None:
        raise exception.DeviceNotFound(
            wanted=f'{kind} {device}', reason=not_offered(device).text
        )
    return spec


def load(conf: cfg.ConfigOpts) -> Specs:
    """Read ``[os_acc] device_spec`` and the directory ``device_spec_dir``.

    They are read at each call, so that a change takes effect at once. If one
    entry is malformed, none applies: it could be the one that denies a device.

    :raises InvalidRequest: if an entry is malformed, or a file cannot be read
        or trusted; the error names option or file, key and value
    """
    found: list[Spec] = []
    for file in spec_files.read_all(conf.os_acc.device_spec_dir):
        found += _numbered(_of_file(file), file.path)
    option: list[Spec] = []
    for text in common.value(conf, 'device_spec'):
        try:
            option += parse(text)
        except exception.InvalidRequest as err:
            raise _at(conf, text, err) from None
    found += _numbered(option, 'device_spec')
    return Specs(tuple(found))


def load_for_vans(conf: cfg.ConfigOpts) -> Specs:
    """Read device_spec for VANs that have their devices already.

    :returns: as load(); Unreadable if that raises InvalidRequest
    """
    try:
        return load(conf)
    except exception.InvalidRequest as err:
        LOG.error('Nothing new is offered: %s', err)
        return Unreadable(err)


def _at(
    conf: cfg.ConfigOpts, text: str, err: exception.InvalidRequest
) -> exception.InvalidRequest:
    """Add to an error the file and the line of the entry, if a file has it."""
    found = values.find(conf, common.GROUP, common.option('device_spec'))
    for number, place in enumerate(found, 1):
        if place.value == text:
            line = place.line + (_line_of(text, err) or 1) - 1
            return exception.InvalidRequest(
                **{
                    **err.kwargs,
                    'subject': f'{place.path}:{line}: '
                    f'{err.kwargs["subject"]}, entry {number}',
                }
            )
    return err


def _of_file(file: spec_files.File) -> tuple[Spec, ...]:
    try:
        return parse(file.text)
    except exception.InvalidRequest as err:
        line = _line_of(file.text, err)
        subject = file.path if line is None else f'{file.path}:{line}'
        raise exception.InvalidRequest(
            **{**err.kwargs, 'subject': subject}
        ) from err


def _line_of(text: str, err: exception.InvalidRequest) -> int | None:
    """The line of a JSON text that an error of parse() is about.

    :returns: from 1; None: the key that it names occurs more than once
    """
    field, value = err.kwargs['field'], err.kwargs['value']
    if field == 'JSON':
        match = re.search(r' at line (\d+), column', err.kwargs['expected'])
        return int(match[1]) if match else None
    before, *after = text.split(f'"{value if field == "key" else field}"')
    return before.count('\n') + 1 if len(after) == 1 else None


def _numbered(specs: Iterable[Spec], source: str) -> list[Spec]:
    return [
        dataclasses.replace(spec, source=f'{source}, entry {number}')
        for number, spec in enumerate(specs, 1)
    ]


@functools.lru_cache(maxsize=256)
def parse(text: str) -> tuple[Spec, ...]:
    """Read one value of the option, or the text of one file.

    :param text: JSON: an entry, or a list of entries
    """
    try:
        parsed = documents.json_of(text)
    except ValueError as err:
        spec_values.refuse('JSON', text, f'a JSON object ({err})')
    entries: list[Spec] = []
    for item in parsed if isinstance(parsed, list) else [parsed]:
        if not isinstance(item, dict):
            spec_values.refuse('entry', item, 'a JSON object')
        entries.append(spec_reading.read(item))
    return tuple(entries)

# SPDX-License-Identifier: Apache-2.0

"""Offers the devices of a document, by a file of device_spec_dir.

So it is read as all entries of device_spec are, also by the privileged half.
Only root can write it.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import json
import os
from typing import Any

from oslo_config import cfg

from os_acc import exception
from os_acc import opts
from os_acc.desired import documents
from os_acc.desired import steps
from os_acc.spec import changing as spec_changing
from os_acc.spec import device_spec
from os_acc.spec import files as spec_files
from os_acc.texts import documents as texts

PART = 'offered'

# It comes before the files of os-acc device allow: the first entry counts.
_NAME = '40-os-acc-applied.json'


def path_of(conf: cfg.ConfigOpts) -> str:
    """The file; empty: there is no device_spec_dir."""
    directory = conf.os_acc.device_spec_dir
    return os.path.join(directory, _NAME) if directory else ''


def find(
    conf: cfg.ConfigOpts, document: documents.Document
) -> Iterator[steps.Step]:
    """The step that writes the file; none if device_spec says the same."""
    path = path_of(conf)
    now = _read(spec_files.read(path)) if path else []
    wanted = document.offered
    if now == wanted or _say_the_same(conf, document):
        if now:
            yield steps.Step(PART, path, _lines(now), _lines(now))
        return
    if not path:
        raise exception.InvalidRequest(
            subject='configuration',
            field='[os_acc] device_spec_dir',
            value=conf.os_acc.device_spec_dir,
            expected='a directory, because the document has offered',
        )

    def act() -> None:
        if wanted:
            spec_changing.add(conf, path, *wanted)
        else:
            spec_changing.remove(path)

    yield steps.Step(PART, path, _lines(now), _lines(wanted), act)


def specs_after(
    conf: cfg.ConfigOpts, document: documents.Document
) -> device_spec.Specs:
    """What device_spec says once the step of find() is done."""
    entries = device_spec.load(conf).entries
    if _say_the_same(conf, document):
        return device_spec.Specs(entries)
    path = path_of(conf)
    others = [e for e in entries if not e.source.startswith(f'{path},')]
    # As spec_files.read_all() sorts the files. The option comes last.
    first = [e for e in others if e.source.startswith('/') and e.source < path]
    rest = others[len(first) :]
    return device_spec.Specs((*first, *document.specs, *rest))


def export(conf: cfg.ConfigOpts) -> list[dict[str, Any]]:
    """The entries of device_spec that count now, each once."""
    device_spec.load(conf)
    found = [
        entry
        for file in spec_files.read_all(conf.os_acc.device_spec_dir)
        for entry in _read(file.text)
    ]
    for text in opts.value(conf, 'device_spec'):
        found += _read(text)
    return [each for n, each in enumerate(found) if each not in found[:n]]


def without_source(spec: device_spec.Spec) -> device_spec.Spec:
    """An entry as device_spec.parse() gives it."""
    return dataclasses.replace(spec, source='')


def _say_the_same(conf: cfg.ConfigOpts, document: documents.Document) -> bool:
    """Whether device_spec has the entries of a document and no others.

    Entries may differ in their text, such as 8086 and 0x8086.
    """
    return _distinct(device_spec.load(conf).entries) == _distinct(
        document.specs
    )


def _distinct(specs: Iterable[device_spec.Spec]) -> list[device_spec.Spec]:
    """The entries, each once, without their sources."""
    found: list[device_spec.Spec] = []
    for each in map(without_source, specs):
        if each not in found:
            found.append(each)
    return found


def _read(text: str | None) -> list[dict[str, Any]]:
    found = texts.json_of(text) if text is not None else []
    return found if isinstance(found, list) else [found]


def _lines(entries: Sequence[dict[str, Any]]) -> str:
    return '\n'.join(json.dumps(each) for each in entries)

# SPDX-License-Identifier: Apache-2.0

"""What os-acc promises to keep: see the page "Compatibility".

At a release, write down what the next releases keep::

    python tests/promises.py

tests/unit/test_promises.py compares the code with tests/data/promises.json.
"""

from __future__ import annotations

from collections.abc import Iterator
import hashlib
import importlib
from importlib import metadata
import inspect
import json
import pathlib
import re
import sys
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]
RECORD = ROOT / 'tests' / 'data' / 'promises.json'

_DIRECTIVE = re.compile(
    r'^\.\. auto(module|class|function):: (os_acc[\w.]*)\n'
    r'((?:   .*\n)*)',
    re.MULTILINE,
)
_KEPT = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _documented() -> Iterator[tuple[str, str, list[str]]]:
    """What the pages describe: sort, dotted name, and the members named."""
    for page in sorted((ROOT / 'doc' / 'source').glob('*.rst')):
        for sort, name, options in _DIRECTIVE.findall(page.read_text()):
            members = re.search(r':members: *([^:]*)', options)
            named = re.findall(r'\w+', members[1]) if members else []
            yield sort, name, named


def _object(name: str) -> Any:
    """The object of a dotted name."""
    module, left = name, []
    while module not in sys.modules:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError:
            module, _, last = module.rpartition('.')
            left.insert(0, last)
    found = sys.modules[module]
    for each in left:
        found = getattr(found, each)
    return found


def parameters(function: Any) -> list[str]:
    """The parameters of a function; one that may be left out ends in "="."""
    return [
        f'{name}=' if each.default is not each.empty else name
        for name, each in inspect.signature(function).parameters.items()
        if each.kind not in _KEPT
    ]


def _api() -> dict[str, list[str]]:
    found = {}
    for sort, name, named in _documented():
        item = _object(name)
        if sort == 'module' and not named:
            named = [
                each
                for each, value in vars(item).items()
                if each[0] != '_'
                and getattr(value, '__module__', '') == name
                and (inspect.isclass(value) or inspect.isfunction(value))
            ]
        functions = {f'{name}.{each}': getattr(item, each) for each in named}
        if sort == 'function':
            functions = {name: item}
        for full, value in functions.items():
            if inspect.isroutine(value):
                found[full] = parameters(value)
                continue
            found[full] = []
            if not inspect.isclass(value):
                continue
            # The methods that a driver or a plugin has.
            found |= {
                f'{full}.{each}': parameters(method)
                for each, method in vars(value).items()
                if each[0] != '_' and inspect.isfunction(method)
            }
    return dict(sorted(found.items()))


def _objects() -> dict[str, dict[str, str]]:
    from os_acc import objects

    found = {}
    for name in objects.__all__:
        each = getattr(objects, name)
        fields = getattr(each, 'fields', None)
        if fields:
            found[name] = {
                field: f'{type(kind).__name__}'
                + (', may be None' if kind.nullable else '')
                for field, kind in sorted(fields.items())
            }
    return found


def _columns() -> dict[str, list[str]]:
    """The keys of -f json of each command that prints a list."""
    found = {}
    for entry in metadata.entry_points(group='os_acc.cli'):
        columns = getattr(entry.load(), 'columns', ())
        if columns:
            name = entry.name.replace('_', ' ')
            found[name] = [column.key for column in columns]
    return dict(sorted(found.items()))


def _options() -> dict[str, list[str]]:
    from os_acc import loader

    return {
        str(group): sorted(option.name for option in options)
        for group, options in loader.list_opts()
    }


def current() -> dict[str, Any]:
    """What the code has now."""
    from os_acc.cli import exit_codes
    from os_acc.journal import schema

    return {
        'api': _api(),
        'objects': _objects(),
        'columns': _columns(),
        'options': _options(),
        'exit codes': sorted(exit_codes.MEANINGS),
        'migrations of the journal': [
            hashlib.sha256(repr(each).encode()).hexdigest()[:16]
            for each in schema.MIGRATIONS
        ],
    }


def taken_away(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What a program that uses the old would miss in the new."""
    missing = []
    for name, wanted in old['api'].items():
        if name not in new['api']:
            missing.append(f'{name} is gone')
            continue
        given = new['api'][name]
        names = [each.rstrip('=') for each in given]
        missing += [
            f'{name}: the parameter {each} is gone'
            for each in wanted
            if each.rstrip('=') not in names
        ]
        missing += [
            f'{name}: the parameter {each.rstrip("=")} is now required'
            for each in given
            if each[-1] != '=' and each not in wanted
        ]
    for part in ('objects', 'columns', 'options'):
        for name, wanted in old[part].items():
            if name not in new[part]:
                missing.append(f'{part}: {name} is gone')
                continue
            missing += [
                f'{part}: {name} has no {each}'
                for each in wanted
                if each not in new[part][name]
            ]
    for name, fields in old['objects'].items():
        missing += [
            f'objects: {name}.{field} is {new["objects"][name][field]}, '
            f'and was {kind}'
            for field, kind in fields.items()
            if new['objects'].get(name, {}).get(field, kind) != kind
        ]
    missing += [
        f'the exit code {each} is gone'
        for each in old['exit codes']
        if each not in new['exit codes']
    ]
    migrations = old['migrations of the journal']
    if new['migrations of the journal'][: len(migrations)] != migrations:
        missing.append('the migrations of the journal differ')
    return missing


if __name__ == '__main__':
    RECORD.write_text(json.dumps(current(), indent=1) + '\n')

# SPDX-License-Identifier: Apache-2.0

"""Privileged entry points run in the daemon, whoever calls them."""

from __future__ import annotations

import ast
import importlib
import pathlib

import pytest

import os_acc
from os_acc.privileged import context

SOURCE = pathlib.Path(os_acc.__file__).parent


def calls() -> set[tuple[str, str]]:
    """Module and function of each call into the package privileged."""
    found = set()
    for path in SOURCE.rglob('*.py'):
        if 'privileged' in path.relative_to(SOURCE).parts:
            continue
        text = path.read_text(encoding='utf-8')
        if 'os_acc.privileged' not in text:
            continue
        tree = ast.parse(text)
        names = {
            alias.asname or alias.name: f'{node.module}.{alias.name}'
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            and (node.module or '').startswith('os_acc.privileged')
            for alias in node.names
        }
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id in names
            ):
                module = names[node.func.value.id].split('.', 2)[2]
                found.add((module, node.func.attr))
    return found


# These run in the process of the caller: the first starts the daemon, the
# second is for os-acc device deny, which runs as root, and the others are for
# tests.
NOT_REMOTE = {
    ('context', 'start_in_background'),
    ('notes', 'forget_unused'),
    ('privsep', 'run_here'),
    ('privsep', 'run_here_until_undone'),
    ('privsep', 'runs_here'),
}

CALLS = sorted(calls() - NOT_REMOTE)


def test_there_are_calls():
    assert ('pci.functions', 'take') in CALLS
    assert ('pci.functions', 'clean') in CALLS


@pytest.mark.parametrize(('module', 'name'), CALLS)
def test_each_call_is_an_entry_point(module, name):
    loaded = importlib.import_module(f'os_acc.privileged.{module}')
    assert context.pctxt.is_entrypoint(getattr(loaded, name))

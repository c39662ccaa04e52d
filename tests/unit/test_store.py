# SPDX-License-Identifier: Apache-2.0

"""What a new kind of file that root keeps needs."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Annotated

import pytest

import os_acc
from os_acc import exception
from os_acc.privileged import notes
from os_acc.privileged import store


@pytest.fixture
def directory(kernel):
    os_acc.initialize()
    made = pathlib.Path(notes.FOLDER)
    made.mkdir(0o700)
    return made


@dataclasses.dataclass(frozen=True)
class Chip(store.Said):
    what: str
    speed: int = 7
    on: store.Flag = False
    colours: Annotated[tuple[str, ...], tuple] = ()


def test_a_new_kind(directory):
    chips = store.Store(notes.files, Chip.of)
    assert chips.read('chip-1') is None
    (directory / 'chip-1').write_text('{"what": "x"}')
    assert chips.read('chip-1') == Chip('x')
    chips.write('chip-1', Chip('y', 8, True, ('red',)))
    assert chips.read('chip-1') == Chip('y', 8, True, ('red',))
    assert chips.names() == ['chip-1']
    chips.delete('chip-1')
    assert chips.read('chip-1') is None


@pytest.mark.parametrize(
    'text', ['{', '{}', '{"what": 1}', '{"what": "x", "colours": 1}']
)
def test_a_damaged_file_of_a_new_kind(directory, text, caplog):
    path = directory / 'chip-1'
    path.write_text(text)
    with pytest.raises(exception.PrivilegeError, match='cannot be read'):
        store.Store(notes.files, Chip.of).read('chip-1')
    unknown = Chip('unknown')
    chips = store.Store(notes.files, Chip.of, damaged=unknown)
    assert chips.read('chip-1') == unknown
    assert f'the note {path} cannot be read' in caplog.text

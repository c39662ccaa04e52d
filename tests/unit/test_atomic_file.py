# SPDX-License-Identifier: Apache-2.0

"""Files that are written as a whole."""

from __future__ import annotations

import pytest

from os_acc.state import atomic_file


@pytest.mark.parametrize('name', ['plain', 'new/plain', './a/b/c', '../x/y'])
def test_a_relative_path(tmp_path, monkeypatch, name):
    here = tmp_path / 'here'
    here.mkdir()
    monkeypatch.chdir(here)
    atomic_file.write(name, 'text', 0o644, 0o755)
    assert (here / name).read_text() == 'text'
    assert atomic_file.remove(name)
    assert not atomic_file.remove(name)

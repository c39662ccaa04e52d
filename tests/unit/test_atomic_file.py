# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Files that are written as a whole."""

from __future__ import annotations

import pytest

from os_acc.devices import atomic_file


@pytest.mark.parametrize('name', ['plain', 'new/plain', './a/b/c', '../x/y'])
def test_a_relative_path(tmp_path, monkeypatch, name):
    here = tmp_path / 'here'
    here.mkdir()
    monkeypatch.chdir(here)
    atomic_file.write(name, 'text', 0o644, 0o755)
    assert (here / name).read_text() == 'text'
    assert atomic_file.remove(name)
    assert not atomic_file.remove(name)

# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""The code blocks of the documentation, for the tests that run them."""

from __future__ import annotations

from collections.abc import Iterator
import json
import pathlib
import re
import shlex
import tempfile
import textwrap
from typing import Any

from oslo_config import cfg

SOURCE = pathlib.Path(__file__).parents[2] / 'doc' / 'source'

_BLOCK = re.compile(
    r'^\.\. code-block:: (\w+)\n\n((?:   .*\n|\n)+)', re.MULTILINE
)

#: The blocks that tests have read: page, language and text. See the fixture
#: in conftest.py.
READ: set[tuple[str, str, str]] = set()


def all_blocks(page: str) -> list[tuple[str, str]]:
    """The language and the text of each code block of a page."""
    return [
        (language, textwrap.dedent(text))
        for language, text in _BLOCK.findall((SOURCE / page).read_text())
    ]


def blocks(page: str, language: str, marker: str) -> list[str]:
    """The code blocks of a page that contain a text."""
    found = [
        text
        for kind, text in all_blocks(page)
        if kind == language and marker in text
    ]
    READ.update((page, language, text) for text in found)
    return found


def steps(text: str) -> Iterator[tuple[list[str], str]]:
    """The commands in a block of the language console.

    :returns: the arguments of each os-acc command, and what it prints
    """
    text = text.replace('\\\n', ' ')
    for step in re.split(r'^\$ os-acc ', text, flags=re.MULTILINE)[1:]:
        line, _, said = step.partition('\n')
        yield shlex.split(line), said.strip()


def device_specs(text: str) -> list[dict[str, Any]]:
    """The entries of device_spec in a block ini, as oslo.config reads them."""
    conf = cfg.ConfigOpts()
    conf.register_opt(cfg.MultiStrOpt('device_spec'), 'os_acc')
    with tempfile.NamedTemporaryFile('w', suffix='.conf') as file:
        file.write(text)
        file.flush()
        conf([], default_config_files=[file.name])
        return [json.loads(each) for each in conf.os_acc.device_spec]

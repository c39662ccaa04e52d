# SPDX-License-Identifier: Apache-2.0

"""The code blocks of the documentation, for the tests that run them."""

from __future__ import annotations

from collections.abc import Iterator
import json
import os
import pathlib
import re
import shlex
import tempfile
import textwrap
from typing import Any

from oslo_config import cfg

SOURCE = pathlib.Path(__file__).parents[2] / 'doc' / 'source'

#: The README, as the name of a page.
README = '../../README.rst'

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


#: Set this variable to write the samples into the pages instead of comparing
#: them, after the output of a command was changed.
WRITE = 'OS_ACC_WRITE_SAMPLES'


def check_sample(page: str, shown: str, said: str, *varying: str) -> None:
    """Check that a sample of a page is what a command has printed.

    :param shown: the sample, without the indentation of the page
    :param said: the output
    :param varying: regular expressions for what differs from run to run, such
        as a time
    """
    masks = '|'.join(varying)

    def plain(text: str) -> str:
        lines = (line.rstrip() for line in text.strip().splitlines())
        text = '\n'.join(lines)
        return re.sub(masks, '#', text) if masks else text

    if plain(shown) == plain(said):
        return
    assert os.environ.get(WRITE), (
        f'a sample in {page} is not what the command prints. It prints:\n'
        f'{said}\nTo put it into the page, run the test with {WRITE}=1'
    )
    path = SOURCE / page
    text = path.read_text()
    old = textwrap.indent(shown.strip(), '   ')
    assert text.count(old) == 1, (page, shown)
    new = textwrap.indent(said.strip(), '   ')
    path.write_text(text.replace(old, new))


def device_specs(text: str) -> list[dict[str, Any]]:
    """The entries of device_spec in a block ini, as oslo.config reads them."""
    conf = cfg.ConfigOpts()
    conf.register_opt(cfg.MultiStrOpt('device_spec'), 'os_acc')
    with tempfile.NamedTemporaryFile('w', suffix='.conf') as file:
        file.write(text)
        file.flush()
        conf([], default_config_files=[file.name])
        return [json.loads(each) for each in conf.os_acc.device_spec]

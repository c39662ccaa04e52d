# SPDX-License-Identifier: Apache-2.0

"""The programs of the bug reports in doc/source/upstream, and their output."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
import textwrap

REPORTS = pathlib.Path(__file__).parents[1] / 'doc' / 'source' / 'upstream'
_BLOCK = r'^\.\. code-block:: {}\n\n((?:   .*\n|\n)+)'


def names(project: str) -> list[str]:
    """The reports of a project."""
    return sorted(
        path.stem
        for path in REPORTS.glob(f'{project}-*.rst')
        if path.stem != 'nova-spec'
    )


def _block(text: str, language: str) -> str:
    (found,) = re.findall(_BLOCK.format(language), text, re.MULTILINE)
    return textwrap.dedent(found).strip()


def check(name: str, **environment: str) -> None:
    """Run the program of a report. It prints what the report says."""
    text = (REPORTS / f'{name}.rst').read_text()
    done = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', _block(text, 'python')],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == _block(text, 'text')

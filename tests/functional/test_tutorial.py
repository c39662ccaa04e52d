# SPDX-License-Identifier: Apache-2.0

"""Follows the tutorial of the documentation word by word.

Only two things differ. Its directories in /tmp are below the directory of the
test. And pip installs what the page builds into a directory of its own,
without a package index, so that the environment of the tests stays as it is.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import textwrap

import pytest

PAGE = pathlib.Path(__file__).parents[2] / 'doc' / 'source' / 'tutorial.rst'
_BLOCK = re.compile(
    r'^\.\. code-block:: (\w+)\n(?:   :caption: (\S+)\n)?\n((?:   .*\n|\n)+)',
    re.MULTILINE,
)
PROGRAMS = {
    'python': '"{python}" "$@"',
    'os-acc': '"{python}" -c "import sys; from os_acc.cli import app; '
    'sys.exit(app.main())" "$@"',
    'privsep-helper': '"{python}" -m oslo_privsep.daemon "$@"',
    # What is installed already is only looked up. --editable would change
    # the environment: PYTHONPATH has the directory instead.
    'pip': """case "$*" in
*"--editable .") "{python}" -m pip install --quiet --no-deps --no-index \\
    --no-build-isolation --upgrade --target "{site}" . ;;
*) "{python}" -m pip "$1" --no-index "$2" ;;
esac""",
}


class Shell:
    """Runs the blocks of the page, each from where the last one has ended."""

    def __init__(self, directory: pathlib.Path) -> None:
        self._tmp = directory / 'tmp'
        programs = directory / 'bin'
        site = directory / 'site'
        for made in (self._tmp, programs, site):
            made.mkdir()
        for name, text in PROGRAMS.items():
            script = programs / name
            script.write_text(
                '#!/bin/sh\n' + text.format(python=sys.executable, site=site)
            )
            script.chmod(0o755)
        # The distribution that the page makes, as if it was installed with
        # --editable.
        places = [str(self._tmp / 'os-acc-acme'), str(site)]
        self._environment = {
            **{k: v for k, v in os.environ.items() if 'PYTEST' not in k},
            'PATH': f'{programs}:{os.environ["PATH"]}',
            'PYTHONPATH': os.pathsep.join(places),
            'PYTHONWARNINGS': 'ignore',
        }
        self._directory = str(self._tmp)

    def real(self, text: str) -> str:
        """Replace the directories of the page."""
        return text.replace('/tmp/', f'{self._tmp}/')

    def write(self, name: str, text: str) -> None:
        path = pathlib.Path(self._directory, self.real(name))
        path.write_text(self.real(text))

    def run(self, commands: list[str]) -> str:
        done = subprocess.run(
            ['bash', '-ec', self.real('\n'.join([*commands, 'pwd >&2']))],
            cwd=self._directory,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=1700,
            check=False,
        )
        assert done.returncode == 0, f'{commands}\n{done.stdout}{done.stderr}'
        self._directory = done.stderr.splitlines()[-1]
        return done.stdout


# About 40 seconds on a quiet machine.
@pytest.mark.timeout(1800)
def test_the_tutorial(tmp_path):
    shell = Shell(tmp_path)
    blocks = _BLOCK.findall(PAGE.read_text())
    assert len(blocks) > 10
    for language, name, text in blocks:
        lines = textwrap.dedent(text).strip('\n').splitlines()
        if language == 'console':
            said = shell.run([x[2:] for x in lines if x.startswith('$ ')])
            check_said(said, [x for x in lines if not x.startswith('$ ')])
        elif name:
            shell.write(name, '\n'.join(lines) + '\n')


def check_said(said: str, shown: list[str]) -> None:
    """Check that lines were printed, in their order; [...] is anything."""
    rest = iter(line.rstrip() for line in said.splitlines())
    for line in shown:
        assert line == '[...]' or line.rstrip() in rest, f'{line}\n{said}'

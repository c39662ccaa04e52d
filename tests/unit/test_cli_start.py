# SPDX-License-Identifier: Apache-2.0

"""The start of the command: Ctrl-C, and its standard streams."""

import os
import subprocess
import sys

import pytest

# Sends SIGINT to this process when a module is about to be imported.
PROGRAM = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == 'oslo_config':
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
sys.argv = ['os-acc', '--version']
signal.signal(signal.SIGINT, signal.SIG_IGN)
from os_acc.cli.app import main
sys.exit(main())
"""

# Runs the command, and then writes its exit code, and whether all standard
# streams are there: as files of Python, and as descriptors of the process.
PRINTS = """
import os, sys
sys.argv = ['os-acc', '--version']
from os_acc.cli.app import main
try:
    code = main()
except SystemExit as end:
    code = end.code
streams = all((sys.stdin, sys.stdout, sys.stderr))
file = os.open('{path}', os.O_CREAT | os.O_WRONLY)
os.write(file, f'{{code}} {{streams}} {{file > 2}}'.encode())
"""

ENCODES = r"""
import sys
sys.argv = ['os-acc', '--version']
from os_acc.cli.app import main
from os_acc.cli import app
app.OSAccApp.run = lambda *_: print('gr\xfcn') or 0
sys.exit(main())
"""


def test_a_background_job_ignores_ctrl_c():
    result = subprocess.run(
        [sys.executable, '-c', PROGRAM],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (result.returncode, result.stderr) == (0, '')
    assert result.stdout.startswith('os-acc ')


@pytest.mark.parametrize('closed', ['<&-', '>&-', '2>&-', '<&- >&- 2>&-'])
def test_closed_standard_streams(closed, tmp_path):
    """A file that the command opens does not become such a stream."""
    program = PRINTS.format(path=tmp_path / 'seen')
    subprocess.run(
        ['sh', '-c', f'exec "$0" -c "$1" {closed}', sys.executable, program],
        check=True,
        timeout=300,
    )
    assert (tmp_path / 'seen').read_text() == '0 True True'


def test_output_that_cannot_be_encoded():
    result = subprocess.run(
        [sys.executable, '-c', ENCODES],
        capture_output=True,
        timeout=300,
        env={**os.environ, 'LC_ALL': 'C', 'PYTHONUTF8': '0'}
        | {'PYTHONCOERCECLOCALE': '0', 'PYTHONIOENCODING': 'ascii'},
    )
    assert (result.returncode, result.stderr) == (0, b'')
    assert result.stdout == b'gr\\xfcn\n'

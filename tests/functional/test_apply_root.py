# SPDX-License-Identifier: Apache-2.0

"""os-acc apply as root, where the journal belongs to a service's user.

This needs root. The command does a part of the work as the service's user, who
can read os-acc on a host, but perhaps not where these tests run. So it imports
all before.
"""

from __future__ import annotations

import json
import os
import pathlib
import pwd
import shutil
import subprocess
import sys
import tempfile

TESTS = str(pathlib.Path(__file__).parents[1])
MAIN = """
import import_all
import_all.load()
from os_acc.cli import app
raise SystemExit(app.main())
"""


def test_root_where_the_journal_is_a_services():
    """Root writes what is offered, and the service's user does the rest."""
    top = tempfile.mkdtemp()
    os.chmod(top, 0o755)
    try:
        state, specs = f'{top}/state', f'{top}/specs'
        os.mkdir(state, 0o700)
        user = pwd.getpwnam('nobody')
        os.chown(state, user.pw_uid, user.pw_gid)
        conf, path = f'{top}/os-acc.conf', f'{top}/host.json'
        pathlib.Path(conf).write_text(
            f'[os_acc]\nplugin = noop\nstate_path = {state}\n'
            f'device_spec_dir = {specs}\n'
            '[os_acc_fake]\ndevices = fpga:pci:2:dynamic\n'
            f'discover = True\nhardware_path = {state}/hardware\n'
        )
        wanted = {
            'version': 1,
            'offered': [{'address': '0000:02:00.0'}],
            'functions': [
                {'device': 'fpga', 'region': '0', 'function': 'aes'}
            ],
        }
        pathlib.Path(path).write_text(json.dumps(wanted))
        for expected in ('changed', 'unchanged'):
            done = subprocess.run(
                [
                    *(sys.executable, '-c', MAIN),
                    *('--config-file', conf, 'apply', path, '-f', 'json'),
                ],
                capture_output=True,
                text=True,
                timeout=300,
                env={**os.environ, 'PYTHONPATH': TESTS},
            )
            assert done.returncode == 0, done.stderr
            rows = json.loads(done.stdout)
            assert [each['result'] for each in rows] == [expected] * 2
        (file,) = os.listdir(specs)
        assert os.stat(f'{specs}/{file}').st_uid == 0
        for directory, _, files in os.walk(state):
            for name in (directory, *files):
                found = os.stat(os.path.join(directory, name))
                assert found.st_uid == user.pw_uid, name
    finally:
        shutil.rmtree(top)

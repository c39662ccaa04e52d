# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Ctrl-C while the command starts."""

import subprocess
import sys

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
{before}
from os_acc_command import main
sys.exit(main())
"""


def start(before=''):
    return subprocess.run(
        [sys.executable, '-c', PROGRAM.format(before=before)],
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_ctrl_c_during_the_imports(interruptible):
    result = start()
    assert (result.returncode, result.stdout, result.stderr) == (
        130,
        '',
        'Interrupted: nothing was begun\n',
    )


def test_a_background_job_ignores_it():
    result = start('signal.signal(signal.SIGINT, signal.SIG_IGN)')
    assert (result.returncode, result.stderr) == (0, '')
    assert result.stdout.startswith('os-acc ')

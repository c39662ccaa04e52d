# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""What a test has told the stand-in to do, and what it did.

Both are files of the folder STAND_IN.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any

FOLDER = pathlib.Path(os.environ['STAND_IN'])


def told(step: str) -> str:
    path = FOLDER / step
    return path.read_text() if path.exists() else ''


def note(what: Any) -> None:
    with open(FOLDER / 'calls', 'a') as file:
        file.write(json.dumps(what) + '\n')


def act(step: str) -> None:
    """Misbehave, if told to."""
    what = told(step)
    if what == 'raise':
        raise RuntimeError('the device is broken')
    if what.startswith('errno '):
        number = int(what.split()[1])
        raise OSError(number, os.strerror(number))
    if what == 'die':
        os.kill(os.getpid(), signal.SIGKILL)
    if what == 'exit':
        sys.exit(3)
    if what == 'leave':
        os._exit(4)
    if what == 'print':
        sys.stdout.write('{"result": "this is no answer"}\n')
        sys.stdout.flush()
        subprocess.run(['echo', 'from the tool'], check=True)
    if what == 'hang':
        child = subprocess.Popen(['sleep', '600'])
        (FOLDER / 'child.new').write_text(f'{os.getpid()} {child.pid}')
        (FOLDER / 'child.new').rename(FOLDER / 'child')
        time.sleep(600)

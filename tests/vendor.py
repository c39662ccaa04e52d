# SPDX-License-Identifier: Apache-2.0

"""The tool of a vendor for a simulated FPGA. The tool is a real executable.

The file ``mode`` controls what it does. The content of a bitstream is the name
of its function.
"""

from __future__ import annotations

import json
import pathlib
import stat
import threading
from typing import Any

import os_acc

FPGA = '0000:0a:00.0'
VFS = [f'0000:0a:00.{n}' for n in range(1, 4)]

_PROGRAM = """#!/bin/sh
# {directory}/program FILE REGION ADDRESS
cd {directory}
echo "$@" >> programmed
case $(cat mode) in
  slow) sleep 0.3 ;;
  fail) echo "no such $2 board"; exit 3 ;;
  hang) sleep 60 & echo $$ > pid; wait ;;
  lie) exit 0 ;;
  meet)
    # Waits until another is at it too.
    touch "met.$$"
    n=0
    while [ $(ls met.* | wc -l) -lt 2 ]; do
      n=$((n + 1)); [ $n -gt 500 ] && exit 9
      sleep 0.01
    done ;;
esac
cp "$1" "state.$2"
"""

_CHECK = """#!/bin/sh
# {directory}/check ADDRESS REGION
echo "function: $(cat {directory}/state.$2)"
"""

_CLEAR = """#!/bin/sh
# {directory}/clear ADDRESS REGION
cd {directory}
echo "$2" >> cleared
[ "$(cat mode)" = fail ] && exit 4
rm -f "state.$2"
"""


def put(path: pathlib.Path, content: bytes) -> None:
    """Write a file, unless it has the content: another thread may read it."""
    if path.exists() and path.read_bytes() == content:
        return
    new = path.with_name(f'{path.name}.{threading.get_ident()}')
    new.write_bytes(content)
    new.rename(path)


class Vendor:
    """The tool, and a record of its calls.

    :param directory: an empty directory
    """

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = directory
        self.bitstreams = directory / 'bitstreams'
        self.bitstreams.mkdir(parents=True)
        for name, text in (
            ('program', _PROGRAM),
            ('check', _CHECK),
            ('clear', _CLEAR),
        ):
            path = directory / name
            path.write_text(text.format(directory=directory))
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        self.mode('ok')

    def mode(self, mode: str) -> None:
        (self.directory / 'mode').write_text(mode)

    def bitstream(self, function: str) -> str:
        """Return the path of a bitstream that has a function."""
        path = self.bitstreams / f'{function}.gbs'
        put(path, function.encode())
        return str(path)

    def calls(self, name: str = 'programmed') -> list[list[str]]:
        """Return the arguments of each call."""
        path = self.directory / name
        if not path.exists():
            return []
        return [line.split() for line in path.read_text().splitlines()]

    def copy(self) -> str:
        """Return the path of the image that it was given last."""
        return self.calls()[-1][0]

    def function(self, region: str = '') -> str | None:
        """Return the function that a region holds."""
        path = self.directory / f'state.{region}'
        return path.read_text() if path.exists() else None

    def spec(self, **values: Any) -> dict[str, Any]:
        """Return the entry of device_spec.

        :param values: further keys, and other values
        """
        return {
            'address': FPGA,
            'resource_class': 'FPGA',
            'num_vfs': len(VFS),
            'program': f'{self.directory}/program {{file}} "{{region}}" '
            '{address}',
            'check': f'{self.directory}/check {{address}} "{{region}}"',
            'clear': f'{self.directory}/clear {{address}} "{{region}}"',
            **values,
        }

    def configure(self, programming: str, **values: Any) -> None:
        """Set device_spec, and the directories that bitstreams may be in."""
        spec = self.spec(programming=programming, **values)
        if 'activation' in values:
            # The function cannot be checked right after the programming.
            del spec['check']
        os_acc.CONF.set_override('device_spec', [json.dumps(spec)], 'os_acc')
        os_acc.CONF.set_override(
            'allowed_folders', [str(self.bitstreams)], 'os_acc_bitstreams'
        )


def furnish(kernel: Any) -> None:
    """Put the FPGA and its VFs into the tree of files."""
    kernel.add_function(FPGA, '8086:bcce', 0x120000, 'dfl-pci', totalvfs=4)
    kernel.write(f'{kernel.pci}/devices/{FPGA}/sriov_numvfs', str(len(VFS)))


def installed(kernel: Any, directory: pathlib.Path) -> Vendor:
    """Furnish the tree, and offer the FPGA: it takes one function."""
    furnish(kernel)
    made = Vendor(directory)
    made.configure('single')
    return made

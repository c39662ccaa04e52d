# SPDX-License-Identifier: Apache-2.0

"""privsep-helper whose caller was killed: it leaves nothing on the terminal.

oslo.privsep alone prints a traceback, below the prompt of the shell.
"""

import socket
import subprocess
import sys

import pytest

HELPER = 'from oslo_privsep import daemon; daemon.helper_main()'


@pytest.mark.parametrize('gone', [True, False])
def test_a_helper_whose_caller_has_ended(tmp_path, gone):
    path = tmp_path / 'privsep.sock'
    if gone:
        # Its name outlives a socket.
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(str(path))
    done = subprocess.run(
        [
            *(sys.executable, '-W', 'ignore', '-c', HELPER),
            *('--privsep_context', 'os_acc.privileged.context.pctxt'),
            *('--privsep_sock_path', str(path)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    # A socket that never was there is an error of the host, and is told.
    assert ('Traceback' in done.stdout) is not gone
    assert (done.stdout == '') is gone

# SPDX-License-Identifier: Apache-2.0

"""A stand-in for privsep-helper that needs no privilege.

It answers every call with its own process id, after the pause that the
environment variable PAUSE gives. It appends that id to the file STARTED.
"""

from __future__ import annotations

import os
import socket
import sys
import time

from oslo_privsep import comm


def main() -> None:
    time.sleep(float(os.environ.get('PAUSE', '0')))
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(sys.argv[sys.argv.index('--privsep_sock_path') + 1])
    if os.fork():
        return  # the helper ends once the daemon runs
    with open(os.environ['STARTED'], 'a', encoding='ascii') as file:
        file.write(f'{os.getpid()}\n')
    channel = comm.ServerChannel(sock)
    for name, message in channel:
        if message[0] == comm.Message.PING:
            channel.send((name, (comm.Message.PONG.value,)))
        else:
            # Answers to two callers at once come in another order.
            time.sleep(0.05)
            channel.send((name, (comm.Message.RET.value, os.getpid())))
    os._exit(0)


main()

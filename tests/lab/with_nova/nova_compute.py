# SPDX-License-Identifier: Apache-2.0

"""Processes like nova-compute, one after the other, which a test calls.

    python nova_compute.py NOVA.CONF IMAGES FILE-DESCRIPTOR

The file descriptor is a connection of multiprocessing. Over it come the names
and the arguments of methods of operations.Compute; the answer is the trace of
an error or None, and the result. The name "begin" starts a process, "end" ends
it. Nova is imported only once, because this takes more than a minute in the
lab.
"""

from __future__ import annotations

from multiprocessing import connection
import os
import sys
import traceback
from typing import Any

from nova import monkey_patch


def main() -> None:
    conf_file, images, number = sys.argv[1:]
    pipe: connection.Connection = connection.Connection(int(number))
    # nova-compute does so before it imports anything else of Nova, and thereby
    # forbids the import of eventlet.
    monkey_patch.patch(backend='threading')
    import operations

    while _received(pipe) is not None:
        pid = os.fork()
        if pid == 0:
            try:
                _serve(pipe, lambda: operations.Compute(conf_file, images))
            finally:
                # Nova's threads never end.
                os._exit(0)
        os.waitpid(pid, 0)


def _received(pipe: connection.Connection) -> Any:
    try:
        return pipe.recv()
    except EOFError:
        return None


def _serve(pipe: connection.Connection, begin: Any) -> None:
    """Answer the calls until "end", or until the test closes its end."""
    compute: Any = None
    name, arguments = 'begin', ()
    while name != 'end':
        trace, result = None, None
        try:
            if name == 'begin':
                compute = begin()
            else:
                result = getattr(compute, name)(*arguments)
        except Exception:
            trace = traceback.format_exc()
        pipe.send((trace, result))
        name, arguments = _received(pipe) or ('end', ())


if __name__ == '__main__':
    main()

# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""A process like nova-compute, which a test starts and calls.

    python nova_compute.py NOVA.CONF IMAGES FILE-DESCRIPTOR

The file descriptor is a connection of multiprocessing. The process receives
the names and the arguments of methods of operations.Compute, and answers with
the trace of an error or None, and the result.
"""

from __future__ import annotations

from multiprocessing import connection
import os
import sys
import traceback

from nova import monkey_patch


def main() -> None:
    conf_file, images, number = sys.argv[1:]
    pipe: connection.Connection = connection.Connection(int(number))
    # nova-compute does so before it imports anything else of Nova, and thereby
    # forbids the import of eventlet.
    monkey_patch.patch(backend='threading')
    import operations

    compute = None
    name, arguments = '', ()
    while True:
        trace, result = None, None
        try:
            if compute is None:
                compute = operations.Compute(conf_file, images)
            else:
                result = getattr(compute, name)(*arguments)
        except Exception:
            trace = traceback.format_exc()
        pipe.send((trace, result))
        try:
            name, arguments = pipe.recv()
        except EOFError:
            break
    # Nova's threads never end.
    os._exit(0)


if __name__ == '__main__':
    main()

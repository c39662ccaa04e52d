# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
"""Starts the privsep daemon, and prints who it is, as a line of JSON.

The doctor runs this module in a process of the service's user. The arguments
are the configuration files.
"""

from __future__ import annotations

from collections.abc import Sequence
import json
import sys
from typing import Any

from oslo_config import cfg

from os_acc import exception
from os_acc import opts


def main(paths: Sequence[str]) -> None:
    """Print a JSON object with the keys user, missing and error."""
    answer: dict[str, Any] = {'user': None, 'missing': [], 'error': None}
    try:
        opts.register(cfg.CONF)
        arguments = [
            part for path in paths for part in ('--config-file', path)
        ]
        cfg.CONF(arguments, project='os-acc')
        from os_acc.privileged import context

        answer['user'], answer['missing'] = context.whoami()
    except Exception as err:
        answer['error'] = ' '.join(exception.describe(err).split())
    sys.stdout.write(json.dumps(answer) + '\n')


if __name__ == '__main__':
    main(sys.argv[1:])

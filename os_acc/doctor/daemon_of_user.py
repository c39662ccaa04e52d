# SPDX-License-Identifier: Apache-2.0
"""Starts the privsep daemon, and prints who it is, as a line of JSON.

The doctor runs this module in a process of the service's user. The arguments
are the configuration files, and the directories with such files.
"""

from __future__ import annotations

from collections.abc import Sequence
import json
import os
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
        arguments = []
        for path in paths:
            kind = 'dir' if os.path.isdir(path) else 'file'
            arguments += [f'--config-{kind}', path]
        cfg.CONF(arguments, project='os-acc')
        from os_acc.privileged import context

        answer['user'], answer['missing'] = context.whoami()
    except Exception as err:
        answer['error'] = ' '.join(exception.describe(err).split())
    sys.stdout.write(json.dumps(answer) + '\n')


if __name__ == '__main__':
    main(sys.argv[1:])

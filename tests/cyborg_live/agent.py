# SPDX-License-Identifier: Apache-2.0

"""Cyborg's agent, which reports the devices when a test asks for it.

Usage: python agent.py DIRECTORY [ARGUMENT...], with the arguments of
cyborg-agent

Cyborg's agent reports once a minute, and has no option for another period.
This one reports when it starts and when the file ``wanted`` in the directory
has a new text. Then it writes this text to the file ``reported``. A report
that fails is repeated.
"""

from __future__ import annotations

import pathlib
import sys
from typing import Any

from oslo_service import periodic_task

#: Seconds between two looks at the file.
PERIOD = 0.5


def main() -> None:
    directory = pathlib.Path(sys.argv.pop(1))
    # The first import chooses the threads of oslo.service.
    from cyborg.cmd import agent

    # Before the import of the manager, which reads it.
    periodic_task.DEFAULT_INTERVAL = PERIOD
    from cyborg.agent import manager
    from cyborg.agent import resource_tracker

    class OnRequest(resource_tracker.ResourceTracker):
        """Reports on request."""

        _done: str | None = None

        def update_usage(self, context: Any) -> None:
            wanted = (directory / 'wanted').read_text()
            if wanted != self._done:
                super().update_usage(context)
                self._done = wanted
                (directory / 'reported').write_text(wanted)

    manager.ResourceTracker = OnRequest
    agent.main()


if __name__ == '__main__':
    main()

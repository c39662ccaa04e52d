# SPDX-License-Identifier: Apache-2.0

"""Lets nova-compute report its devices as soon as it is asked: see programmed.

Otherwise Nova reports once a minute ([DEFAULT] update_resources_interval).
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from nova import context as nova_context

from os_acc import exception
from os_acc_nova import programmed

LOG = logging.getLogger(__name__)

#: How often nova-compute looks whether it is asked, in seconds.
PERIOD = 1.0


class Watcher:
    """Looks whether nova-compute is asked to report, until it is stopped.

    :param virtapi: Nova's ComputeVirtAPI, by which a driver calls the compute
        manager
    """

    def __init__(self, virtapi: Any) -> None:
        self._virtapi = virtapi
        self._stopped = threading.Event()
        self._seen = programmed.asked()

    def start(self) -> None:
        """Look in a thread of its own."""
        # With eventlet, Nova has replaced threads by green ones.
        threading.Thread(
            target=self._run, name='os-acc reports', daemon=True
        ).start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(PERIOD):
            self.look()

    def look(self) -> None:
        """Report if nova-compute was asked since the last look."""
        now = programmed.asked()
        if now == self._seen:
            return
        self._seen = now
        LOG.info('A device was programmed: the devices are reported')
        context = nova_context.get_admin_context()
        try:
            self._virtapi._compute.update_available_resource(context)
        except Exception as err:
            LOG.error(
                'The devices are not reported until the next period: %s',
                exception.describe(err),
            )

# SPDX-License-Identifier: Apache-2.0

"""What a node of the tests has."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import json
from typing import Any

import stand_in_api
import stand_in_kubelet

import os_acc
from os_acc import locking
from os_acc.testing import kernel as kernel_module
from os_acc_dra import cluster
from os_acc_dra import health
from os_acc_dra import metadata
from os_acc_dra import process as process_module
from os_acc_dra import publisher as publisher_module
from os_acc_dra import service as service_module
from os_acc_dra import workers as workers_module

NAME = 'node-1'
DRIVER = 'os-acc.openstack.org'
PF = '0000:01:00.0'
VFS = [f'0000:01:00.{number}' for number in range(1, 5)]
GPU = '0000:02:00.0'
#: Two GPUs of one IOMMU group: one claim can have them.
PAIR = ('0000:07:00.0', '0000:07:00.1')


def spec(*entries: dict[str, Any]) -> None:
    texts = [json.dumps(entry) for entry in entries]
    os_acc.CONF.set_override('device_spec', texts, 'os_acc')


@dataclasses.dataclass
class Node:
    """All parts of a node."""

    kernel: kernel_module.Kernel
    server: stand_in_api.APIServer
    kubelet: stand_in_kubelet.Kubelet
    workers: workers_module.Workers
    process: process_module.Process
    service: service_module.Service
    cluster: cluster.Cluster
    calls: service_module.Calls
    locks: locking.Locks
    described: metadata.Metadata
    publisher: publisher_module.Publisher
    health: health.Health
    #: called in each plug, with the worker
    during: list[Callable[[], None]]

    def claim(self, name: str, *devices: str, **more: Any) -> dict[str, Any]:
        return self.server.claim(name, list(devices), NAME, **more)

    def specs(self) -> set[str]:
        """The devices of the CDI specs that os-acc has written."""
        directory = self.kernel.root / 'run/cdi'
        if not directory.exists():
            return set()
        return {
            device['name']
            for path in directory.iterdir()
            if 'metadata_' not in path.name
            for device in json.loads(path.read_text())['devices']
        }

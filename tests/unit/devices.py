# SPDX-License-Identifier: Apache-2.0

"""What the tests of the built-in drivers ask for."""

from __future__ import annotations

import contextlib
import json
from typing import Any
import uuid

import pytest

import os_acc
from os_acc import exception
from os_acc import finding
from os_acc import objects
from os_acc.doctor import entries

PF = '0000:01:00.0'
VFS = [f'0000:01:00.{n}' for n in range(1, 5)]
GPU = '0000:02:00.0'
NIC = '0000:03:00.0'
DISK = '0000:04:00.0'
BRIDGE = '0000:05:00.0'
SHARED = '0000:06:00.0'
SHARED_NIC = '0000:06:00.1'
#: The functions of furnish().
FUNCTIONS = (PF, GPU, NIC, DISK, BRIDGE, SHARED, SHARED_NIC)


def furnish(kernel) -> None:
    """Put a small host together. All its devices are offered."""
    spec({'address': '*'})
    kernel.add_function(PF, '8086:4940', 0x0B4000, 'qat', totalvfs=4)
    kernel.add_function(GPU, '10de:1eb8', 0x030200, numa=1)
    kernel.add_function(NIC, '8086:10d3', 0x020000, 'e1000e', net='eth0')
    kernel.add_function(
        DISK,
        '1b36:0010',
        0x010802,
        'nvme',
        block='nvme0n1',
        files={'reset': '', 'reset_method': 'flr\n'},
    )
    kernel.add_function(BRIDGE, '1b36:000e', 0x060400)
    kernel.add_function(SHARED, '1234:11e8', 0x00FF00, group=50)
    kernel.add_function(
        SHARED_NIC, '8086:10d3', 0x020000, 'e1000e', group=50, net='eth1'
    )
    kernel.add_mtty()


def spec(*entries: dict[str, Any]) -> None:
    """Set ``[os_acc] device_spec``."""
    texts = [json.dumps(entry) for entry in entries]
    os_acc.CONF.set_override('device_spec', texts, 'os_acc')


def acting() -> contextlib.AbstractContextManager[None]:
    """Make privileged calls for the journal that is open."""
    return os_acc._host.acting_for()


def instance() -> objects.InstanceInfo:
    return objects.InstanceInfo(
        uuid=str(uuid.uuid4()), name='guest', project_id='project'
    )


def refused(*requests: objects.AcceleratorRequest) -> BaseException | None:
    """Plug an instance, and return the cause of the refusal."""
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(instance(), list(requests))
    return caught.value.__cause__


def entries_found() -> list[finding.Finding]:
    """What os-acc doctor says about the entries of device_spec."""
    return list(entries.findings(os_acc._host))


def problems() -> list[finding.Finding]:
    """Its warnings and errors about the entries."""
    return [each for each in entries_found() if each.verdict != finding.OK]


def pci(address: str, **values: Any) -> objects.AcceleratorRequest:
    handle = objects.PCIHandle(address=address, **values)
    return objects.AcceleratorRequest(uuid=str(uuid.uuid4()), handle=handle)


def mdev(
    kind: str = 'mtty-1', name: str | None = None, parent: str = 'mtty'
) -> objects.AcceleratorRequest:
    handle = objects.MdevHandle(
        uuid=name or str(uuid.uuid4()), parent=parent, type=kind
    )
    return objects.AcceleratorRequest(uuid=str(uuid.uuid4()), handle=handle)


def wanted(resource_class: str, *traits: str) -> objects.AcceleratorRequest:
    return objects.AcceleratorRequest(
        uuid=str(uuid.uuid4()),
        resource_class=resource_class,
        traits=list(traits),
    )

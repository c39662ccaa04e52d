# SPDX-License-Identifier: Apache-2.0

"""The Kubernetes driver beside the container runtime: one device file.

The driver prepares a claim, as the kubelet asks it to. The peer is ``ctr run
--device`` of a real containerd: it starts a container with the device of the
CDI spec that the driver has written, and waits until the container has ended.
So the ratio says how much longer the start of a Pod takes because of os-acc.
README.rst says how to run it.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import json
import os
import pathlib
import stat
import sys
import tempfile
from typing import Any

import pytest

# The parts of a node are those of the tests.
sys.path.append(str(pathlib.Path(__file__).parents[1] / 'tests/dra'))
sys.path.append(str(pathlib.Path(__file__).parents[1] / 'tests/dra/pods'))

from containerd import Containerd
import node_fixtures
import node_parts
from programs import Program
import stand_in_api
import stand_in_kubelet

from os_acc_dra import offers

server = node_fixtures.server

ROUNDS = 20
#: Where ctr looks for CDI specs.
SPECS = pathlib.Path('/run/cdi')
#: No kernel has a device of this number: see tests/dra/pods/test_pods.py.
MAJOR, MINOR = 1, 250
NAME = offers.name_of(f'file/char-{MAJOR}-{MINOR}')


@pytest.fixture
def containerd() -> Iterator[Containerd]:
    with tempfile.TemporaryDirectory(dir='/run', prefix='ctd-') as name:
        made = Containerd(pathlib.Path(name), specs=SPECS)
        yield made
        made.close()


@pytest.fixture
def device() -> Iterator[pathlib.Path]:
    """An accelerator: a device file."""
    path = pathlib.Path(f'/dev/os-acc-bench-{os.getpid()}')
    os.mknod(path, stat.S_IFCHR | 0o660, os.makedev(MAJOR, MINOR))
    yield path
    path.unlink()


@pytest.fixture
def kubelet(
    disk: pathlib.Path, server: stand_in_api.APIServer, device: pathlib.Path
) -> Iterator[stand_in_kubelet.Kubelet]:
    """A kubelet whose node has the driver, which offers the device."""
    entry = json.dumps({'devices': str(device), 'resource_class': 'CUSTOM_A'})
    server.put(
        f'/api/v1/nodes/{node_parts.NAME}',
        {
            'apiVersion': 'v1',
            'kind': 'Node',
            'metadata': {'name': node_parts.NAME},
        },
    )
    with tempfile.TemporaryDirectory(dir='/run', prefix='kubelet-') as name:
        directory = pathlib.Path(name)
        driver = Program(
            disk,
            directory,
            server.kubeconfig(disk / 'kubeconfig'),
            f'device_spec = {entry}\n[os_acc_cdi]\nspec_dir = {SPECS}\n',
        )
        driver.wait_until_it_serves()
        made = stand_in_kubelet.Kubelet(directory, server)
        made.register()
        yield made
        driver.end()


def test_prepare(
    kubelet: stand_in_kubelet.Kubelet,
    server: stand_in_api.APIServer,
    containerd: Containerd,
    device: pathlib.Path,
    take_turns: Callable[..., None],
) -> None:
    """Prepare a claim; then run a container with its device."""
    claim = server.claim('one', [NAME], node_parts.NAME)
    prepared: list[Any] = []

    def prepare() -> None:
        prepared[:] = kubelet.prepare(claim)

    def run() -> None:
        assert containerd.run(*prepared, command=('ls', str(device))) == (
            f'{device}\n'
        )

    def unprepare() -> None:
        kubelet.unprepare(claim)
        assert not list(SPECS.iterdir())

    prepare()
    take_turns(prepare, run, ROUNDS, after_peer=unprepare)

# SPDX-License-Identifier: Apache-2.0

"""A node: os-acc on a generated kernel, the driver, and what calls it."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import pathlib
import tempfile
from typing import Any

import charts
from node_parts import DRIVER
from node_parts import GPU
from node_parts import NAME
from node_parts import PAIR
from node_parts import PF
from node_parts import Node
from node_parts import spec
import pytest
import stand_in_api
import stand_in_kubelet

import os_acc
from os_acc import fixture as os_acc_fixture
from os_acc import locking
from os_acc.containers import options as container_opts
from os_acc.testing import kernel as kernel_module
import os_acc_dra
from os_acc_dra import cluster
from os_acc_dra import health
from os_acc_dra import metadata
from os_acc_dra import node as node_module
from os_acc_dra import options
from os_acc_dra import process as process_module
from os_acc_dra import publisher as publisher_module
from os_acc_dra import service as service_module
from os_acc_dra import workers as workers_module


@pytest.fixture
def kernel(tmp_path, monkeypatch) -> Iterator[kernel_module.Kernel]:
    """A host with three GPUs, and a PF with 4 VFs, all of them offered."""
    conf = os_acc.CONF
    conf([], project='os-acc', default_config_files=[])
    options.register(conf)
    with os_acc_fixture.OSAccFixture(
        str(tmp_path / 'state'), owner=os_acc_dra.OWNER
    ):
        made = kernel_module.Kernel(tmp_path / 'host')
        made.install(monkeypatch)
        made.add_function(PF, '8086:4940', 0x0B4000, 'qat', totalvfs=4)
        made.add_function(GPU, '10de:1eb8', 0x030200, numa=1)
        for each in PAIR:
            made.add_function(each, '10de:1eb8', 0x030200, group=50)
        conf.register_opts(container_opts.OPTS, container_opts.GROUP)
        for name, value in {
            'release_timeout': 0.2,
            'device_timeout': 60.0,
            'lock_timeout': 60.0,
        }.items():
            conf.set_override(name, value, 'os_acc')
        conf.set_override(
            'spec_dir', str(made.root / 'run/cdi'), container_opts.GROUP
        )
        spec({'address': PF, 'num_vfs': 4}, {'address': '*'})
        yield made
    conf.clear_override('spec_dir', container_opts.GROUP)
    conf.reset()


@pytest.fixture
def server() -> Iterator[stand_in_api.APIServer]:
    """The API server, where the driver has the rights of the manifests."""
    made = stand_in_api.APIServer()
    role = charts.of_kind(
        charts.objects(charts.PLAIN.read_text()), 'ClusterRole'
    )
    made.rules = role['rules']
    yield made
    made.close()


@pytest.fixture
def directory() -> Iterator[pathlib.Path]:
    """The kubelet's directory: a short path, since sockets are in it."""
    with tempfile.TemporaryDirectory(prefix='kubelet-') as name:
        yield pathlib.Path(name)


@pytest.fixture
def node(kernel, server, directory, tmp_path, monkeypatch) -> Iterator[Node]:
    """A driver that serves, and is registered."""
    during: list[Callable[[], None]] = []
    plug = os_acc.plug

    def watched(*args: Any, **kwargs: Any) -> Any:
        for each in during:
            each()
        return plug(*args, **kwargs)

    monkeypatch.setattr(os_acc, 'plug', watched)
    there = cluster.Cluster(server.kubeconfig(tmp_path / 'kubeconfig'))
    working = workers_module.Workers()
    described = metadata.Metadata(
        options.data_path(str(directory), DRIVER),
        str(kernel.root / 'run/cdi'),
        DRIVER,
    )
    locks = locking.Locks(
        f'{options.data_path(str(directory), DRIVER)}/locks', 60.0
    )
    calls = service_module.Calls(
        node_module.Node(there, DRIVER, NAME, described, locks, 32),
        working,
        40.0,
    )
    published = publisher_module.Publisher(there, DRIVER, NAME, 1.0)
    healthy = health.Health(published.observed, NAME, 0.05)
    process = process_module.Process(str(directory), DRIVER)
    served = service_module.Service(calls, DRIVER, process, healthy)
    served.start()
    kubelet = stand_in_kubelet.Kubelet(directory, server)
    kubelet.register()
    yield Node(
        kernel,
        server,
        kubelet,
        working,
        process,
        served,
        there,
        calls,
        locks,
        described,
        published,
        healthy,
        during,
    )
    served.stop(0)
    process.release()

# SPDX-License-Identifier: Apache-2.0

"""The program os-acc-dra: runs on each node, as a DaemonSet or a service."""

from __future__ import annotations

import atexit
from collections.abc import Sequence
import logging
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import TYPE_CHECKING

from oslo_config import cfg

import os_acc
from os_acc import exception
from os_acc import locking
import os_acc_dra
from os_acc_dra import errors
from os_acc_dra import options

if TYPE_CHECKING:
    from os_acc_dra import cluster
    from os_acc_dra import node
    from os_acc_dra import process
    from os_acc_dra import publisher
    from os_acc_dra import service
    from os_acc_dra import workers

LOG = logging.getLogger(__name__)

#: Seconds between two looks at the sockets.
_PERIOD = 5.0
#: Seconds at the end for the calls that go on, and then for other work.
_GRACE, _WORK = 15.0, 10.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until a signal comes.

    :returns: 0 after a signal; 1 if it cannot begin or go on
    """
    ended = threading.Event()
    _end_on_signal(ended)
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format='%(asctime)s %(levelname)s %(name)s: %(message)s',
    )
    conf = cfg.CONF
    options.register(conf)
    try:
        conf(
            list(sys.argv[1:] if arguments is None else arguments),
            project='os-acc',  # it reads /etc/os-acc/os-acc.conf
        )
        options.check(conf)
        return _run(conf, ended)
    except (
        cfg.Error,
        errors.ConfigurationError,
        exception.ExceptionBase,
    ) as err:
        LOG.error('os-acc-dra ends: %s', err)
        return 1


def _end_on_signal(ended: threading.Event) -> None:
    def end(number: int, frame: FrameType | None) -> None:
        ended.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)


def _run(conf: cfg.ConfigOpts, ended: threading.Event) -> int:
    # os-acc starts its privileged daemon before gRPC makes threads.
    os_acc.initialize(owner=os_acc_dra.OWNER)
    from os_acc_dra import cluster
    from os_acc_dra import health
    from os_acc_dra import process
    from os_acc_dra import publisher
    from os_acc_dra import service
    from os_acc_dra import slices
    from os_acc_dra import workers

    own, name = conf.os_acc_dra, options.node_name(conf)
    server = cluster.Cluster(own.kubeconfig)
    working = workers.Workers()
    found = _node(conf, server)
    _restore(found)
    calls = service.Calls(found, working, own.answer_timeout)
    this = process.Process(
        own.kubelet_path, own.driver_name, options.pod_uid(conf)
    )
    published = publisher.Publisher(
        server,
        own.driver_name,
        name,
        own.publish_interval,
        this.publishes,
        slices.Features(conditions=own.binding_conditions),
    )
    served = service.Service(
        calls,
        own.driver_name,
        this,
        health.Health(published.observed, name, own.publish_interval),
    )
    served.start()
    published.start()
    if own.binding_conditions:
        _bind(conf, ended, server, calls, this)
    LOG.info('Node %s: driver %s serves', name, own.driver_name)
    try:
        return _go_on(conf, ended, server, this, found)
    finally:
        _end(served, published, working)
        this.release()


def _node(conf: cfg.ConfigOpts, server: cluster.Cluster) -> node.Node:
    """The claims of this node."""
    from os_acc_dra import metadata
    from os_acc_dra import node

    own = conf.os_acc_dra
    data = options.data_path(own.kubelet_path, own.driver_name)
    described = metadata.Metadata(
        data, conf.os_acc_cdi.spec_dir, own.driver_name
    )
    locks = locking.Locks(
        os.path.join(data, 'locks'), conf.os_acc.lock_timeout
    )
    return node.Node(
        server,
        own.driver_name,
        options.node_name(conf),
        described,
        locks,
        own.max_claims,
    )


def _restore(found: node.Node) -> None:
    for failed in found.restore():
        LOG.error('Not restored: %s', failed)


def _bind(
    conf: cfg.ConfigOpts,
    ended: threading.Event,
    server: cluster.Cluster,
    calls: service.Calls,
    this: process.Process,
) -> None:
    """Prepare claims before their Pods are bound, in a thread of its own."""
    from os_acc_dra import binding

    own = conf.os_acc_dra
    binding.Binder(
        server,
        own.driver_name,
        options.node_name(conf),
        own.kubelet_path,
        calls,
        this.publishes,
    ).repeat(ended, own.publish_interval)


def _go_on(
    conf: cfg.ConfigOpts,
    ended: threading.Event,
    server: cluster.Cluster,
    this: process.Process,
    found: node.Node,
) -> int:
    next_search = time.monotonic() + conf.os_acc_dra.orphan_interval
    while not ended.wait(_PERIOD):
        if not this.is_reachable():
            LOG.error('A socket was removed. A restart creates it again')
            return 1
        if time.monotonic() >= next_search:
            _release_orphans(conf, server, found)
            os_acc.apply_again()
            next_search = time.monotonic() + conf.os_acc_dra.orphan_interval
    return 0


def _release_orphans(
    conf: cfg.ConfigOpts, server: cluster.Cluster, found: node.Node
) -> None:
    """Release what claims that are gone have left, and their files."""
    from os_acc_dra import orphans

    own = conf.os_acc_dra
    try:
        released = orphans.release(
            server,
            own.driver_name,
            options.node_name(conf),
            own.kubelet_path,
            own.orphan_age,
        )
        for done in released:
            LOG.warning('The claim is gone: %s', done)
        if released:
            _restore(found)
    except Exception as err:
        # Whatever the API server answers, this process serves claims.
        LOG.warning('No search for orphans now: %s', errors.text_of(err))


def _end(
    served: service.Service,
    published: publisher.Publisher,
    working: workers.Workers,
) -> None:
    """End in an order in which no work begins that is then cut off."""
    served.stop(_GRACE)
    published.stop()
    for left in working.wait(time.monotonic() + _WORK):
        LOG.warning('Left to the recovery at the next start: %s', left)


class _Last:
    """Ends the process, after all other functions of atexit.

    The destructors of gRPC (C++) would run after that, and abort about one
    process in four (SIGABRT), although all servers have stopped.

    :ivar code: the exit code
    """

    def __init__(self) -> None:
        self.code = 1

    def __call__(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(self.code)


def program() -> None:
    """The console script: main() in a process of its own."""
    last = _Last()
    # What is registered first is called last.
    atexit.register(last)
    try:
        last.code = main()
    except SystemExit as err:  # after --help, or a wrong argument
        last.code = err.code if isinstance(err.code, int) else 1


if __name__ == '__main__':
    program()

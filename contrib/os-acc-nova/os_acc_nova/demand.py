# SPDX-License-Identifier: Apache-2.0

"""The service os-acc-nova-demand: functions that boots did not get.

Nova's conductor sends a notification if the scheduler finds no host for an
instance. If the flavor wants a function, one host records it as demand (see
os-acc demand), and a pool of that host with on_demand programs it. Then a new
boot finds it.

The service runs on each compute host, and each gets every notification.
Placement says which hosts could program a device, and all choose the same one:
see os_acc.placement.demanded. So the hosts need not know each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
import logging
import signal
import sys
import threading
from typing import Any

import oslo_messaging

import os_acc
from os_acc import exception
from os_acc import opts
from os_acc.placement import demanded
from os_acc_nova import accelerators

LOG = logging.getLogger(__name__)

#: What Nova's conductor sends for a boot (set_vm_state_and_notify in
#: nova/scheduler/utils.py), with the priority error.
EVENT = 'compute_task.build_instances.error'

# The error of the scheduler, by the name of its class.
_NO_HOST = 'NoValidHost'

# The prefix of the name of a queue: each host has its own.
_POOL = 'os-acc-demand'


class Endpoint:
    """Receives the failures of boots."""

    filter_rule = oslo_messaging.NotificationFilter(
        event_type=f'^{EVENT.replace(".", "[.]")}$'
    )

    def error(
        self,
        context: Mapping[str, Any],
        publisher_id: str,
        event_type: str,
        payload: Mapping[str, Any],
        metadata: Mapping[str, Any],
    ) -> None:
        """Record what a boot has requested, if this host is to program it.

        Nothing is raised: oslo.messaging would only log it.

        :param payload: Nova's ComputeTaskPayload
        """
        try:
            _record(_data(payload))
        except Exception as err:
            LOG.error(
                'A boot that failed is not recorded: %s',
                exception.describe(err),
            )


class Drain:
    """Takes what is in the queue that all hosts share.

    Nova's notifier fills this queue, besides those of the hosts.
    """

    def error(self, *args: Any) -> None:
        """Do nothing: the message is acknowledged."""

    audit = debug = info = warn = critical = sample = error


def listeners(
    transport: Any, topic: str, node: str
) -> list[oslo_messaging.MessageHandlingServer]:
    """Make what listens for notifications. The caller starts and stops it.

    :param transport: of oslo.messaging, for notifications
    :param topic: one that only this service uses
    :param node: the name of this host
    """
    return [
        oslo_messaging.get_notification_listener(
            transport,
            [oslo_messaging.Target(topic=topic)],
            [endpoint],
            executor='threading',
            pool=pool,
        )
        for endpoint, pool in (
            (Endpoint(), f'{_POOL}-{node}'),
            (Drain(), None),
        )
    ]


def _record(task: Mapping[str, Any]) -> None:
    # The conductor has it from the scheduler: oslo.messaging adds a suffix.
    error = _data(task['reason'])['exception'].removesuffix('_Remote')
    if error != _NO_HOST:
        return
    spec = task['request_spec']
    flavor = spec and _data(spec)['flavor']
    if not flavor:
        return
    said = _data(flavor)
    extra_specs = said['extra_specs'] or {}
    wanted = demanded.read(extra_specs)
    if not wanted:
        return
    memory = None
    if 'resources:MEMORY_MB' not in extra_specs:
        memory = said['memory_mb']
    instance = task['instance_uuid']
    names = ', '.join(each.function for each in wanted)
    chosen = demanded.choose(
        wanted,
        _get(demanded.candidates_path(wanted, memory), '1.33'),
        _get(demanded.empty_path(wanted), '1.18'),
    )
    if chosen is None:
        LOG.info('%s: no host can program %s', instance, names)
    elif chosen != _own_provider():
        LOG.debug('%s: another host is to program %s', instance, names)
    else:
        noted = demanded.note(
            os_acc.this_host('os_acc_nova.demand'), wanted, instance
        )
        LOG.info(
            '%s: no host had %s; this host has a pool for: %s',
            instance,
            names,
            ', '.join(noted) or 'none of them',
        )


def _data(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of a Nova object in a notification."""
    found: Mapping[str, Any] = payload['nova_object.data']
    return found


def _own_provider() -> str | None:
    """The UUID of this compute node in Placement; None: it has none."""
    name = opts.host(os_acc.CONF)
    found = _get(f'/resource_providers?name={name}', '1.18')
    for each in found['resource_providers']:
        return str(each['uuid'])
    LOG.error(
        'Placement has no compute node %s: set [os_acc] host to the name of '
        'the hypervisor (openstack hypervisor list)',
        name,
    )
    return None


def _get(path: str, version: str) -> Mapping[str, Any]:
    """Ask Placement.

    :raises RemoteServiceError: if it does not answer as expected
    """
    # Only what needs Nova imports it: the entry points load without it.
    from nova import context as nova_context
    from nova.scheduler.client import report

    answer = report.report_client_singleton().get(
        path,
        version=version,
        global_request_id=nova_context.get_admin_context().global_id,
    )
    if answer.status_code == 200:
        found: Mapping[str, Any] = answer.json()
        return found
    if answer.status_code == 400:
        # A trait or class that no provider ever had: no host has it.
        LOG.debug('%s: %s', path, answer.text)
        return {
            'provider_summaries': {},
            'allocation_requests': [],
            'resource_providers': [],
        }
    raise exception.RemoteServiceError(
        service='Placement',
        reason=f'GET {path}: {answer.status_code} {answer.text}',
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the service until SIGTERM or SIGINT.

    :param argv: the program and its arguments, such as --config-file; None:
        those of this process
    """
    from nova import config
    import nova.conf
    from oslo_log import log

    conf = nova.conf.CONF
    arguments = list(sys.argv if argv is None else argv)
    config.parse_args(arguments, configure_db=False, init_rpc=False)
    log.setup(conf, 'os-acc-nova-demand')
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    accelerators.initialize(conf.state_path, conf.host)
    topic = os_acc.CONF.os_acc_nova.demand_topic
    started = listeners(
        oslo_messaging.get_notification_transport(conf),
        topic,
        opts.host(os_acc.CONF),
    )
    for each in started:
        each.start()
    LOG.info('Listening for notifications of the topic %s', topic)
    stop.wait()
    for each in started:
        each.stop()
        each.wait()
    return 0

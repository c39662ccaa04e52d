# SPDX-License-Identifier: Apache-2.0

"""The service of one host, in the place of nova-compute.

    agent.py CONFIGURATION-FILE

It calls os-acc, and moves guests by libvirt. It reads a call from each line of
stdin, and writes the result to stdout, both as JSON.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time
import traceback
from typing import Any

import libvirt

import os_acc
from os_acc import migration
from os_acc import objects
from os_acc.journal import store
from os_acc.privileged import privsep

# Of the two QEMUs, while one moves a guest to the other.
SOCKET = '/tmp/migration.sock'
PARENT, TYPE = 'mtty', 'mtty-2'
# Some tests ask while libvirtd is dead: then connect_timeout is waited for.
# os-acc cannot empty the VFs of QEMU's drive: see tests/lab/use.py.
CONFIGURATION = """
[os_acc]
host = {host}
state_path = {directory}/state
plugin = libvirt
cleaning_command = true
device_spec = [{{"address": "mtty", "mdev_types": ["mtty-2"]}},
 {{"address": "{vf}", "command_empties": true}}]
[os_acc_privileged]
helper_command = {python} -m oslo_privsep.daemon --config-file {file}
[os_acc_libvirt]
connection_uri = {uri}
connect_timeout = 5
detach_attempt_timeout = 60
detach_timeout = 240
"""


class Agent:
    """Each public method is a call, with JSON as arguments and result.

    :param path: the configuration file
    """

    def __init__(self, path: str) -> None:
        privsep.run_here(True)
        os_acc.CONF([], project='os-acc', default_config_files=[path])
        os_acc.initialize()
        self._uri = os_acc.CONF.os_acc_libvirt.connection_uri

    def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        started = time.monotonic()
        try:
            answer = {'result': getattr(self, name)(**arguments)}
        except Exception as err:
            answer = {
                'error': type(err).__name__,
                'text': ''.join(traceback.format_exception(err)),
            }
        return answer | {'seconds': time.monotonic() - started}

    def die_at(self, number: int) -> None:
        """Kill this process in a later call, before a write of the journal.

        :param number: of the write; the next one is 0
        """
        write, left = store.Store._in_transaction, itertools.count(number, -1)

        def write_or_die(*args: Any) -> Any:
            if next(left) == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return write(*args)

        store.Store._in_transaction = write_or_die

    def plug(self, instance: str, handles: dict[str, str]) -> list[Any]:
        """Plug devices.

        :param handles: the identity of the handle of each VAN
        """
        return _told(os_acc.plug(_instance(instance), _requests(handles)))

    def unplug(self, instance: str) -> int:
        return os_acc.unplug(_instance(instance))

    def describe(self, instance: str) -> dict[str, Any]:
        return migration.describe(_instance(instance)).obj_to_primitive()

    def prepare(
        self,
        instance: str,
        plan: dict[str, Any],
        move: str,
        handles: dict[str, str],
    ) -> list[Any]:
        """Prepare devices, which the caller chooses as Placement does.

        :param handles: as of plug()
        """
        return _told(
            migration.prepare(
                _instance(instance), plan, move, requests=_requests(handles)
            )
        )

    def hand_over(
        self, instance: str, move: str, live: bool = False
    ) -> list[Any]:
        return _told(migration.hand_over(_instance(instance), move, live))

    def switch(
        self, instance: str, move: str, live: bool = False
    ) -> list[Any]:
        return _told(migration.switch(_instance(instance), move, live))

    def finish(self, instance: str, move: str) -> int:
        return migration.finish(_instance(instance), move)

    def abort(self, instance: str, move: str) -> int:
        return migration.abort(_instance(instance), move)

    def recover(self, migration_timeout: float) -> None:
        """Recover, as after a migration whose time is over."""
        name = 'migration_timeout'
        os_acc.CONF.set_override(name, migration_timeout, 'os_acc')
        try:
            time.sleep(migration_timeout)
            os_acc.recover()
        finally:
            os_acc.CONF.clear_override(name, 'os_acc')

    def vans(self, instance: str) -> list[Any]:
        return _told(os_acc.get_vans(instance))

    def migrate(
        self,
        instance: str,
        to: str,
        target: list[dict[str, Any]],
        bandwidth: int = 0,
    ) -> None:
        """Move a running guest as Nova does.

        :param to: the URI of the other libvirt
        :param target: the VANs there, or none if it moves without devices
        :param bandwidth: MiB in a second; 0 is no limit
        """
        domain = libvirt.open(self._uri).lookupByUUIDString(instance)
        running, kept = (
            domain.XMLDesc(flags)
            for flags in (
                libvirt.VIR_DOMAIN_XML_MIGRATABLE,
                libvirt.VIR_DOMAIN_XML_INACTIVE,
            )
        )
        if target:
            vans = objects.VANList(
                objects=[objects.VAN.obj_from_primitive(e) for e in target]
            )
            running, kept = (
                migration.redefine(_instance(instance), vans, xml)
                for xml in (running, kept)
            )
        params = {
            libvirt.VIR_MIGRATE_PARAM_DEST_XML: running,
            libvirt.VIR_MIGRATE_PARAM_PERSIST_XML: kept,
            libvirt.VIR_MIGRATE_PARAM_URI: f'unix://{SOCKET}',
        }
        if bandwidth:
            params[libvirt.VIR_MIGRATE_PARAM_BANDWIDTH] = bandwidth
        flags = (
            libvirt.VIR_MIGRATE_LIVE
            | libvirt.VIR_MIGRATE_PEER2PEER
            | libvirt.VIR_MIGRATE_PERSIST_DEST
            | libvirt.VIR_MIGRATE_UNDEFINE_SOURCE
        )
        domain.migrateToURI3(to, params, flags)


def _instance(uuid: str) -> objects.InstanceInfo:
    return objects.InstanceInfo(uuid=uuid, name='guest')


def _requests(handles: dict[str, str]) -> list[objects.AcceleratorRequest]:
    made = []
    for van, identity in handles.items():
        kind, _, name = identity.partition('/')
        handle = (
            objects.MdevHandle(uuid=name, parent=PARENT, type=TYPE)
            if kind == 'mdev'
            else objects.PCIHandle(address=name)
        )
        made.append(objects.AcceleratorRequest(uuid=van, handle=handle))
    return made


def _told(vans: objects.VANList) -> list[Any]:
    return [each.obj_to_primitive() for each in vans]


def main() -> None:
    agent = Agent(sys.argv[1])
    print(json.dumps({'result': 'up'}), flush=True)  # noqa: T201
    for line in sys.stdin:
        name, arguments = json.loads(line)
        print(json.dumps(agent.call(name, arguments)), flush=True)  # noqa: T201


if __name__ == '__main__':
    main()

# SPDX-License-Identifier: Apache-2.0
"""A service of oslo.service with two workers, started as nova-compute is.

usage: service.py threading|eventlet DIRECTORY

initialize() is called before the fork, and again in each worker. Each worker
plugs, recovers and unplugs, and writes what it saw to DIRECTORY/worker-PID.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import uuid

BACKEND, DIRECTORY = sys.argv[1:]

if BACKEND == 'eventlet':
    import eventlet

    eventlet.monkey_patch()

from oslo_config import cfg  # noqa: E402
from oslo_service import backend  # noqa: E402

backend.init_backend(backend.BackendType(BACKEND))

from oslo_service import service  # noqa: E402

import os_acc  # noqa: E402
from os_acc import objects  # noqa: E402


def configure() -> None:
    conf = os_acc.CONF
    conf([], project='os-acc', default_config_files=[])
    conf.set_override('state_path', os.path.join(DIRECTORY, 'state'), 'os_acc')
    conf.set_override('plugin', 'noop', 'os_acc')


def plug_and_unplug() -> dict[str, object]:
    instance = objects.InstanceInfo(
        uuid=uuid.uuid4(), name='guest', project_id='project'
    )
    requests = [
        objects.AcceleratorRequest(uuid=uuid.uuid4(), driver='fake')
        for _ in range(3)
    ]
    vans = os_acc.plug(instance, requests)
    states = [van.state for van in os_acc.get_vans(instance)]
    report = os_acc.recover()
    return {
        'plugged': len(vans),
        'states': states,
        'recovered': len(report.released),
        'unplugged': os_acc.unplug(instance),
    }


class Worker(service.ServiceBase):
    def start(self) -> None:
        try:
            os_acc.initialize()
            seen = plug_and_unplug()
        except BaseException:
            seen = {'error': traceback.format_exc()}
        path = os.path.join(DIRECTORY, f'worker-{os.getpid()}')
        with open(f'{path}.new', 'w') as file:
            json.dump(seen, file)
        os.rename(f'{path}.new', path)

    def stop(self) -> None:
        pass

    def wait(self) -> None:
        pass

    def reset(self) -> None:
        pass


def main() -> None:
    configure()
    os_acc.initialize()
    # What the parent has open and did must not be in its workers' way.
    plug_and_unplug()
    launcher = service.launch(cfg.CONF, Worker(), workers=2)
    launcher.wait()


if __name__ == '__main__':
    main()

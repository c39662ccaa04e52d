# SPDX-License-Identifier: Apache-2.0

"""kill -9 at every boundary of plug, its rollback, unplug and recover.

Afterwards a new process must find that all VANs are released, or that all are
as before. crash_boundaries.json has the boundaries at which the test kills. A
new step fails the test until somebody has reviewed it and added it there.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import inspect
import json
import os
import pathlib
import shutil
import signal
import uuid

import processes
import pytest

from acc_plug_libvirt import LibvirtPlugin
import os_acc
from os_acc import driver
from os_acc import exception
from os_acc import journal
from os_acc import objects
from os_acc import plugin
from os_acc.attach import recorder
from os_acc.kernel import sysfs
from os_acc.kinds.fake.driver.driver import FakeDriver
from os_acc.kinds.fake.driver.hardware import Hardware
from os_acc.operations import recovery
from os_acc.privileged import privsep

# Measuring coverage would slow down the many processes of this test.
pytestmark = pytest.mark.no_cover

PINNED = pathlib.Path(__file__).with_name('crash_boundaries.json')
INSTANCE = '7b4a1e52-5d0c-4e49-8a53-2b8f6d1c0e01'
VANS = [str(uuid.uuid5(uuid.UUID(INSTANCE), name)) for name in 'ab']

# These methods of the journal change nothing. A kill before or after one is
# the same as a kill after the change before it.
READING = {
    'acknowledged',
    'close',
    'demand',
    'desired',
    'entries',
    'events',
    'exists',
    'handles',
    'identity',
    'instances',
    'kept',
    'measures',
    'pools',
    'programs',
    'requests_of',
    'reservations',
    'unhealthy',
    'unreadable',
    'unsettled',
    'vans',
    'vans_on',
}

# All other public methods are boundaries, so new ones are found automatically.
WATCHED = (
    (
        journal.Journal,
        'journal',
        [
            name
            for name, _ in inspect.getmembers(
                journal.Journal, inspect.isfunction
            )
            if not name.startswith('_') and name not in READING
        ],
    ),
    (
        FakeDriver,
        'driver',
        sorted(driver.DriverBase.__abstractmethods__ | {'postplug'}),
    ),
    (LibvirtPlugin, 'plugin', sorted(plugin.PluginBase.__abstractmethods__)),
    (Hardware, 'hardware', ['take', 'give_back', 'program']),
)


class Host:
    """A state path that several processes use in sequence."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.state = path / 'state'
        self.hardware = Hardware(str(path / 'hardware'))
        (path / 'hardware').mkdir(parents=True)
        self.boot('first')

    def boot(self, boot_id: str) -> None:
        (self.path / 'boot_id').write_text(boot_id)

    def process(
        self,
        work: Callable[[], object],
        kill_at: int | None = None,
        fail: str | None = None,
        recover: bool = True,
    ) -> tuple[int, list[str]]:
        """Do work in a new process, and kill the process at a boundary.

        :param recover: call initialize() first, without boundaries
        :returns: how the process ended, and the boundaries that it passed
        """

        def configure() -> None:
            sysfs.boot_id = lambda: (self.path / 'boot_id').read_text()
            # A privsep daemon for each process would take most of the time.
            privsep.run_here(True)
            # On a busy machine, a call of a second is not a long one.
            recorder.LONG_CALL = 3600.0
            processes.configure(
                str(self.state),
                devices=['f0:pci:1:single', 'f1:pci:1:single'],
                hardware_path=self.hardware.path,
                fail=[fail] if fail else [],
            )
            if recover:
                os_acc.initialize()

        return processes.run_watched(work, WATCHED, kill_at, configure)

    def in_use(self) -> dict[str, str]:
        """Return the handles that are in use, each with its VAN."""
        return {
            handle: user['van']
            for handle, user in self.hardware.in_use().items()
        }

    def vans(self) -> list[objects.VAN]:
        opened = journal.Journal(str(self.state), 5, read_only=True)
        with contextlib.closing(opened):
            return [entry.van for entry in opened.entries()]

    def check_whole(self) -> list[str]:
        """Check all or nothing, and that hardware and journal agree.

        :returns: the VANs that are plugged
        """
        vans = self.vans()
        assert {van.state for van in vans} <= {'plugged'}
        assert self.in_use() == {v.handle.identity: v.uuid for v in vans}
        assert {v.boot_id for v in vans} <= {boot_text(self.path)}
        plugged = [van.uuid for van in vans]
        assert plugged in ([], VANS)
        return plugged


def boot_text(path: pathlib.Path) -> str:
    return (path / 'boot_id').read_text()


def instance() -> objects.InstanceInfo:
    return objects.InstanceInfo(uuid=INSTANCE, name='i', project_id='p')


def plug() -> None:
    os_acc.plug(
        instance(),
        [
            objects.AcceleratorRequest(
                uuid=van, driver='fake', function_id=f'f{number}'
            )
            for number, van in enumerate(VANS)
        ],
    )


def plug_in_a_living_process() -> None:
    """Plug in a process that was initialized before the other crashed."""
    recovery.recover = lambda host, at_start: None
    os_acc.initialize()
    plug()


def plug_in_vain() -> None:
    with contextlib.suppress(exception.PlugException):
        plug()


def unplug() -> None:
    os_acc.unplug(instance())


def plug_and_unplug() -> None:
    plug()
    assert [van.state for van in os_acc.get_vans()] == ['plugged'] * 2
    unplug()


def nothing_there(host: Host) -> None:
    pass


def plugged(host: Host) -> None:
    assert host.process(plug)[0] == 0


def killed_in_plug(host: Host) -> None:
    """Killed at the worst moment: all is plugged, the rows do not say so."""
    for _ in range(2):  # the second time the devices are programmed already
        names = host.process(plug)[1]
        assert host.process(unplug)[0] == 0
    last = names.index('after driver.postplug') + 3
    assert names[last] == 'before journal.save_all'
    assert host.process(plug, kill_at=last)[0] == -signal.SIGKILL
    assert {van.state for van in host.vans()} == {'plugging'}


def killed_in_unplug(host: Host) -> None:
    plugged(host)
    # The intent is written, and one call of the plugin is done.
    assert host.process(unplug, kill_at=4)[0] == -signal.SIGKILL
    assert {van.state for van in host.vans()} == {'unplugging'}


def rebooted(host: Host) -> None:
    plugged(host)
    # A reboot removes VFs and mdevs.
    shutil.rmtree(host.hardware.path)
    os.mkdir(host.hardware.path)
    host.boot('second')


NONE, ALL = [], VANS
# The work before; the work that is killed; the allowed results.
SCENARIOS = {
    'plug': (nothing_there, plug, (NONE, ALL)),
    'plug that fails': (nothing_there, plug_in_vain, (NONE,)),
    'plug again': (plugged, plug, (ALL,)),
    'unplug': (plugged, unplug, (NONE, ALL)),
    'recover from plug': (killed_in_plug, os_acc.initialize, (NONE,)),
    'recover from unplug': (killed_in_unplug, os_acc.initialize, (NONE,)),
    'recover from a reboot': (rebooted, os_acc.initialize, (ALL,)),
    'plug after a crash': (
        killed_in_plug,
        plug_in_a_living_process,
        (NONE, ALL),
    ),
}


def run(host: Host, name: str, kill_at: int | None) -> tuple[int, list[str]]:
    _, work, _ = SCENARIOS[name]
    return host.process(
        work,
        kill_at,
        fail=f'postplug@{VANS[1]}' if name == 'plug that fails' else None,
        recover=work in (plug, plug_in_vain, unplug),
    )


@pytest.mark.parametrize('name', SCENARIOS)
def test_kill_at_every_boundary(tmp_path, name, report):
    prepare, _, ends = SCENARIOS[name]
    whole = Host(tmp_path / 'whole')
    prepare(whole)
    code, names = run(whole, name, None)
    assert code == 0
    assert whole.check_whole() in ends
    pinned = json.loads(PINNED.read_text())
    assert names == pinned[name], (
        f'{name}: the boundaries have changed. See that a kill at each is '
        f'recovered from, then pin in {PINNED.name}: {json.dumps(names)}'
    )
    for number, boundary in enumerate(names):
        # Not a copy: the copy of a journal is another journal.
        host = Host(tmp_path / str(number))
        prepare(host)
        code, _ = run(host, name, number)
        assert code == -signal.SIGKILL, boundary
        # Kill it again during recovery, after the same number of boundaries.
        host.process(os_acc.initialize, kill_at=number, recover=False)
        code, _ = host.process(os_acc.initialize, recover=False)
        assert code == 0, boundary
        assert host.check_whole() in ends, boundary
        # A later process can plug again.
        assert host.process(plug_and_unplug)[0] == 0, boundary
        assert host.check_whole() == NONE, boundary
    calls = sorted({boundary.split(' ', 1)[1] for boundary in names})
    report(
        f'crash in {name!r}: killed at {len(names)} boundaries of '
        + ', '.join(calls)
    )

# SPDX-License-Identifier: Apache-2.0

"""kill -9 at every step of the drivers, on real devices."""

from __future__ import annotations

from collections.abc import Callable
import pathlib
import signal

import lab_devices
import processes
import pytest
import use

from acc_plug_cdi import CDIPlugin
from acc_plug_libvirt import LibvirtPlugin
import os_acc
from os_acc import exception
from os_acc import journal
from os_acc import objects
from os_acc.kernel import sysfs
from os_acc.privileged import root_folder

INSTANCE = '1b0a6bb0-1111-4222-8333-444455556666'
MDEV = '5f6a7b8c-1111-4222-8333-444455556666'

# The calls between which a process is killed: writes to the journal, writes to
# the kernel, and calls of the plugin.
WATCHED = (
    (journal.Journal, 'journal', ['add', 'save', 'save_all', 'mark']),
    (journal.Journal, 'journal', ['settle']),
    (sysfs, 'sysfs', ['write']),
)
# What is watched for a plugin besides, and every how manieth step is tried:
# the steps of the drivers are the same for both.
PLUGINS = {
    'libvirt': (((LibvirtPlugin, 'plugin', ['plug', 'unplug']),), 12),
    'cdi': (
        (
            (CDIPlugin, 'plugin', ['plug', 'unplug']),
            (root_folder.RootFiles, 'files', ['write', 'delete']),
        ),
        24,
    ),
}


def requests() -> list[objects.AcceleratorRequest]:
    """Make requests for a VF that does not exist yet, an e1000e, an mdev."""
    made = [
        use.pci_request(use.VFS[0]),
        use.pci_request(lab_devices.NIC),
        use.mdev_request('mtty-2', MDEV),
    ]
    for number, request in enumerate(made):
        # The same in every process.
        request.uuid = f'0000000{number}-1111-4222-8333-444455556666'
    return made


def plug() -> None:
    os_acc.plug(use.instance(INSTANCE), requests())


def unplug() -> None:
    os_acc.unplug(use.instance(INSTANCE))


def plug_and_unplug() -> None:
    plug()
    unplug()


def nothing() -> None:
    """Do nothing else: initialize() recovers."""


class Runs:
    """Processes that use one state path, one after the other.

    :param plugin: one of PLUGINS
    """

    def __init__(self, path: pathlib.Path, plugin: str) -> None:
        self.path = path
        self.plugin = plugin
        self.specs = path / 'specs'
        self.specs.mkdir(mode=0o755)

    def process(
        self, work: Callable[[], None] | None, kill_at: int | None = None
    ) -> tuple[int, list[str]]:
        """Run initialize() and work in a new process, killed at a boundary.

        :param work: None: kill in initialize() itself
        :returns: how it ended, and the boundaries that it passed
        """

        def configure() -> None:
            use.configure(self.path / 'state', initialize=False)
            os_acc.CONF.set_override('max_workers', 1, 'os_acc')
            os_acc.CONF.set_override('plugin', self.plugin, 'os_acc')
            CDIPlugin.load('cdi')
            os_acc.CONF.set_override('spec_dir', str(self.specs), 'os_acc_cdi')
            if work is not None:
                os_acc.initialize()

        return processes.run_watched(
            work or os_acc.initialize,
            (*WATCHED, *PLUGINS[self.plugin][0]),
            kill_at,
            configure,
        )

    def states(self) -> set[str]:
        opened = journal.Journal(str(self.path / 'state'), 5, read_only=True)
        try:
            return {entry.van.state for entry in opened.entries()}
        finally:
            opened.close()


@pytest.mark.parametrize('plugin', PLUGINS)
def test_killed_at_any_step(tmp_path, snapshot, report, plugin):
    """A new process finds all plugged or all as before.

    Each row has its device, and each device in use has its row. So do the
    specs of the plugin cdi.
    """
    before = snapshot()
    runs = Runs(tmp_path, plugin)
    every = PLUGINS[plugin][1]
    code, names = runs.process(plug)
    assert code == 0
    # The first step of unplug comes next: all is plugged there.
    between = len(names)
    plugged = snapshot()
    specs = set(runs.specs.iterdir())
    assert len(specs) == (3 if plugin == 'cdi' else 0)
    assert plugged != before
    assert runs.process(unplug)[0] == 0
    code, names = runs.process(plug_and_unplug)
    assert code == 0
    assert snapshot() == before
    assert len([n for n in names if n.endswith('sysfs.write')]) >= 32
    ends = {'as before': 0, 'plugged': 0}
    chosen = use.some_steps(every, len(names))
    for kill_at in sorted({between, *chosen}):
        code, _ = runs.process(plug_and_unplug, kill_at)
        assert code == -signal.SIGKILL, names[kill_at]
        if kill_at % 4 == 0:
            # Kill it again while it recovers, at a changing step.
            runs.process(None, kill_at // 4 % 9)
        assert runs.process(nothing)[0] == 0
        left, states = snapshot(), runs.states()
        if states == {'plugged'}:
            assert left == plugged, names[kill_at]
            assert set(runs.specs.iterdir()) == specs, names[kill_at]
            ends['plugged'] += 1
            assert runs.process(unplug)[0] == 0
            left = snapshot()
        else:
            assert states == set(), names[kill_at]
            ends['as before'] += 1
        assert left == before, names[kill_at]
        assert list(runs.specs.iterdir()) == [], names[kill_at]
    report(
        f'lab: plugin {plugin}: killed at {sum(ends.values())} of '
        f'{len(names)} steps of plug and unplug: {ends}'
    )
    assert all(ends.values())


def test_a_blocked_unbind_ends_at_its_deadline(configured, snapshot):
    """The kernel waits for the guest for ever; os-acc does not."""
    from os_acc.privileged import device_users

    before = snapshot()
    configured.set_override('device_timeout', 1.0, 'os_acc')
    instance = use.instance()
    os_acc.plug(instance, [use.pci_request(lab_devices.PLAIN)])
    guest = use.Guest(lab_devices.PLAIN)
    wait = device_users.wait_until_closed
    try:
        # The guest opens it just after the check.
        device_users.wait_until_closed = lambda *args: None
        with pytest.raises(exception.UnplugException) as caught:
            os_acc.unplug(instance)
    finally:
        device_users.wait_until_closed = wait
    assert isinstance(caught.value.__cause__, exception.Timeout)
    (van,) = os_acc.get_vans(instance)
    assert van.state == 'error'
    assert 'Waited 1 s' in van.error
    # What comes next finds the operation still under way, and says so.
    with pytest.raises(exception.UnplugException):
        os_acc.unplug(instance)
    guest.end()
    configured.set_override('device_timeout', 30.0, 'os_acc')
    report = os_acc.recover()
    assert [v.uuid for v in report.released] == [van.uuid]
    assert snapshot() == before

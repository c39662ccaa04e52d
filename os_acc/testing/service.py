# SPDX-License-Identifier: Apache-2.0

"""A process that uses os-acc with one driver and one plugin.

It can be killed in the middle of a call, and started again.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import copy
import itertools
import math
import os
import pathlib
from typing import Any
import uuid as uuid_module

import os_acc
from os_acc import driver as driver_base
from os_acc import exception
from os_acc import fixture
from os_acc import journal
from os_acc import loader
from os_acc import objects
from os_acc import opts
from os_acc import plugin as plugin_base
from os_acc.attach import recorder
from os_acc.journal import store
from os_acc.kernel import sysfs
from os_acc.privileged import notes
from os_acc.privileged import root_folder
from os_acc.privileged.fpga import root_copy
from os_acc.testing import mortal as mortal_module

#: Values of [os_acc] that keep the tests short.
OPTIONS = {'release_timeout': 0.2, 'device_timeout': 20.0}


class Service:
    """A process that has called os_acc.initialize().

    :param directory: of the test; the journal is in a directory below it
    :param changes: (owner, name) of each function that changes something
        besides files below the directory
    :param limit: gives the calls of a driver and a plugin their deadline
    :ivar driver: the driver of this process
    :ivar plugin: the plugin of this process
    """

    driver: driver_base.DriverBase
    plugin: plugin_base.PluginBase

    def __init__(
        self,
        directory: pathlib.Path,
        patch: Any,
        mortal: mortal_module.Mortal,
        make_driver: Callable[[], driver_base.DriverBase],
        make_plugin: Callable[[], plugin_base.PluginBase],
        changes: list[tuple[Any, str]],
        limit: Callable[
            [driver_base.DriverBase, plugin_base.PluginBase], None
        ],
    ) -> None:
        self.directory, self.mortal = directory, mortal
        self._patch = patch
        self._make_driver, self._make_plugin = make_driver, make_plugin
        self._limit = limit
        self._state = directory / 'os-acc'
        self._fixture = fixture.OSAccFixture(str(self._state))
        self._boots = itertools.count(1)
        for owner, name in changes:
            mortal_module.watch_calls(patch, mortal, owner, name)
        mortal_module.watch_calls(
            patch, mortal, journal.Journal, 'save', mortal_module.SAVE
        )
        mortal_module.watch_calls(
            patch,
            mortal,
            store.Store,
            '_in_transaction',
            mortal_module.COMMIT,
        )
        # A slow call would write its events earlier, which is one more change.
        patch.setattr(recorder, 'LONG_CALL', math.inf)
        patch.setattr(loader, 'load_all', self._load)

    def _load(self) -> loader.Extensions:
        self.driver, self.plugin = self._make_driver(), self._make_plugin()
        self._limit(self.driver, self.plugin)
        os_acc.CONF.set_override('plugin', self.plugin.name, opts.GROUP)
        return loader.Extensions(
            {self.driver.name: self.driver},
            {self.plugin.name: self.plugin},
            {},
        )

    def start(self) -> None:
        for name, value in OPTIONS.items():
            os_acc.CONF.set_default(name, value, opts.GROUP)
        self._fixture.setUp()

    def end(self) -> None:
        """End the process cleanly, and forget its options."""
        self.mortal.revive()
        self._fixture.cleanUp()

    def stop(self) -> None:
        """Close the journal, as the end of a process does."""
        self._fixture.stop()

    def restart(self) -> None:
        """Be a new process. os-acc recovers what the last one has left."""
        self.stop()
        self.mortal.revive()
        os_acc.initialize()

    def reboot(self) -> None:
        """Let os-acc see another boot of the host, if nothing else does."""
        text = f'{sysfs.boot_id()}-{next(self._boots)}'
        self._patch.setattr(sysfs, 'boot_id', lambda: text)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Count what the process changes in this block, from 0.

        One VAN at a time is prepared, so that the changes have an order.
        """
        self.mortal.changes.clear()
        os_acc.CONF.set_override('max_workers', 1, opts.GROUP)
        try:
            with mortal_module.watch_files(
                self.mortal, str(self.directory), str(self._state)
            ):
                yield
        finally:
            os_acc.CONF.clear_override('max_workers', opts.GROUP)

    def changes(self, act: Callable[[], object]) -> list[str]:
        """Return the names of the changes that a call makes."""
        with self.watched():
            act()
        return list(self.mortal.changes)

    def is_note(self, change: str) -> bool:
        """Whether a change is of the files that root keeps for its undo."""
        path = os.path.join(self.directory, change)
        directories = (root_folder.PATH, notes.FOLDER, root_copy.DIRECTORY)
        return any(os.path.commonpath([path, f]) == f for f in directories)

    def dies_at(self, number: int, act: Callable[[], object]) -> bool:
        """Make a call in a process that dies before a change.

        :returns: False if the call makes no more changes than that
        """
        with self.watched():
            self.mortal.crash_at(number)
            try:
                act()
            except (mortal_module.Crash, exception.ExceptionBase):
                if not self.mortal.dead:
                    raise
        self.mortal.calm()
        return self.mortal.dead


def instance(uuid: str | None = None) -> objects.InstanceInfo:
    """Make an instance."""
    return objects.InstanceInfo(
        uuid=uuid or str(uuid_module.uuid4()),
        name='instance',
        project_id='project',
    )


def again(
    request: objects.AcceleratorRequest, **values: Any
) -> objects.AcceleratorRequest:
    """Ask for the same a second time, for another VAN."""
    made = copy.deepcopy(request)
    made.uuid = str(uuid_module.uuid4())
    for name, value in values.items():
        setattr(made, name, value)
    return made

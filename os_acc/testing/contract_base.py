# SPDX-License-Identifier: Apache-2.0

"""What the contracts of drivers and of plugins have in common."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import pathlib
from typing import Any
from typing import TypeVar

import pytest

import os_acc
from os_acc import driver as driver_base
from os_acc import exception
from os_acc import objects
from os_acc import plugin as plugin_base
from os_acc.testing import deadlines as deadlines_module
from os_acc.testing import kernel as kernel_module
from os_acc.testing import mortal as mortal_module
from os_acc.testing import rules
from os_acc.testing import service as service_module

Service = service_module.Service

_T = TypeVar('_T')


class ContractBase:
    """The hardware, and a process that uses os-acc on it.

    :ivar kernel: the generated kernel, if a test uses the fixture ``kernel``
    :ivar call_seconds: how long each call of the driver or plugin may take
    """

    kernel: kernel_module.Kernel | None = None
    call_seconds = 60.0
    _deadlines: deadlines_module.Deadlines | None = None

    def requests(self) -> list[objects.AcceleratorRequest]:
        """Return requests that the hardware can serve together.

        Each call returns new ones. The author defines it.
        """
        raise NotImplementedError

    def look(self) -> Any:
        """Return the state of the hardware as plain data.

        Lists, dicts, texts and numbers, read from the hardware itself: what
        the driver changes must be seen in it. The author defines it.
        """
        raise NotImplementedError

    def changes(self) -> list[tuple[Any, str]]:
        """Return the functions that change something in another way.

        Every file below pytest's tmp_path that is written, created, renamed or
        removed, and every write of the Kernel, counts as a change without
        this. Name here the functions that call an ioctl, a library or a
        program: (module or class, name of the function). The kit replaces it
        during a test, and lets a process die before each of its calls.
        """
        return []

    def reboot(self) -> None:
        """Do to the hardware what a reboot of the host does to it.

        The default reboots the Kernel, if there is one, and otherwise leaves
        the hardware as it is. os-acc sees another boot of the host in any
        case.
        """
        if self.kernel is not None:
            self.kernel.reboot()

    def make_driver(self) -> driver_base.DriverBase:
        """Make the driver of the process."""
        raise NotImplementedError

    def make_plugin(self) -> plugin_base.PluginBase:
        """Make the plugin of the process."""
        raise NotImplementedError

    def make_kernel(self, directory: pathlib.Path) -> kernel_module.Kernel:
        """Make the kernel of the fixture ``kernel``, in an empty directory."""
        return kernel_module.Kernel(directory)

    @pytest.fixture(name='kernel')
    def _kernel(
        self, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
    ) -> kernel_module.Kernel:
        """The generated kernel in the place of this machine's."""
        self.kernel = self.make_kernel(tmp_path / 'kernel')
        self.kernel.install(monkeypatch)
        return self.kernel

    @pytest.fixture
    def service(
        self, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[Service]:
        """A process that uses os-acc. The hardware is there before it."""
        made = self.start(tmp_path, monkeypatch)
        yield made
        made.end()

    def start(
        self, directory: pathlib.Path, patch: pytest.MonkeyPatch
    ) -> Service:
        """Start a process that uses os-acc. The caller ends it."""
        kernel = self.kernel
        self._deadlines = deadlines_module.Deadlines(self.call_seconds)
        made = Service(
            directory,
            patch,
            mortal_module.Mortal() if kernel is None else kernel.process,
            self.make_driver,
            self.make_plugin,
            self.changes(),
            self._deadlines.set_for,
        )
        made.start()
        if kernel is not None:
            # The fixture has put the records of the privileged half into its
            # directory; a reboot of the kernel has to remove them.
            kernel.install(patch)
        return made

    # What the checks are made of.

    def same(self, before: Any, rule: rules.Rule, when: str) -> None:
        """Check that the hardware is in a state.

        :param when: what has happened since, for the error
        """
        self.check_deadlines()
        after = self.look()
        if after != before:
            rule.broken(f'{when}:\n{rules.difference(before, after)}')

    def check_deadlines(self) -> None:
        """Check that each call of the driver and plugin has returned."""
        if self._deadlines is not None:
            self._deadlines.check()

    def plugged(
        self, request: objects.AcceleratorRequest, rule: rules.Rule
    ) -> tuple[objects.InstanceInfo, objects.VAN]:
        """Plug a request into a new instance."""
        instance = service_module.instance()
        (van,) = self.plug(instance, [request], rule)
        return instance, van

    def plug(
        self,
        instance: objects.InstanceInfo,
        requests: list[objects.AcceleratorRequest],
        rule: rules.Rule,
        live: bool = False,
    ) -> list[objects.VAN]:
        try:
            return list(os_acc.plug(instance, requests, live=live))
        except exception.ExceptionBase as err:
            self.check_deadlines()
            rule.broken(f'os_acc.plug() failed: {said(err)}')

    def unplug(
        self,
        instance: objects.InstanceInfo,
        rule: rules.Rule,
        live: bool = False,
    ) -> None:
        try:
            os_acc.unplug(instance, live=live)
        except exception.UnplugException as err:
            self.check_deadlines()
            rule.broken(f'os_acc.unplug() failed: {said(err)}')

    def unplug_all(self, rule: rules.Rule) -> None:
        """Unplug every instance that has a VAN."""
        for uuid in {van.instance_uuid for van in os_acc.get_vans()}:
            self.unplug(service_module.instance(uuid), rule)

    def settled(self, rule: rules.Rule, when: str) -> None:
        """Check that a recovery has left no unfinished VAN."""
        self.check_deadlines()
        vans = [van for van in os_acc.get_vans() if van.state != 'plugged']
        if vans:
            texts = [f'VAN in state {v.state}: {v.error}' for v in vans]
            rule.broken(f'{when}: ' + '; '.join(texts))


def is_intact(
    asked: driver_base.DriverBase | plugin_base.PluginBase, van: objects.VAN
) -> bool:
    """Ask is_intact() for what may be lost; an error counts as False."""
    try:
        return asked.is_intact(van) is True
    except rules.Broken:
        raise
    except Exception:
        return False


def answered(act: Callable[[], _T], rule: rules.Rule) -> _T:
    """Make a call that must not raise.

    :param rule: is broken if it raises
    """
    try:
        return act()
    except rules.Broken:
        raise
    except Exception as err:
        rule.broken(f'it raised {exception.describe(err)}')


def said(err: BaseException) -> str:
    """Describe an error with its cause, or with the errors of the undo."""
    errors = [err, *getattr(err, 'undo_errors', []), err.__cause__]
    texts = [exception.describe(each) for each in errors if each is not None]
    return '; '.join(dict.fromkeys(texts))

# SPDX-License-Identifier: Apache-2.0

"""OSAccFixture: os-acc in the tests of a service, such as Nova.

The package fixtures is required: ``pip install os-acc[testing]``. No other
module of os-acc imports this one.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import functools
import inspect
import os
from typing import Any

import fixtures
from oslo_config import cfg

import os_acc
from os_acc import loader
from os_acc import opts
from os_acc.privileged import notes
from os_acc.privileged import privsep
from os_acc.privileged import root_folder
from os_acc.privileged.fpga import root_copy
from os_acc.state import selection


class OSAccFixture(fixtures.Fixture):
    """os-acc in a directory of the test, as one host or as several.

    While the fixture is in use:

    * os-acc is initialized, with its journal, its locks and its
      device_spec_dir in the directory. What the process had initialized before
      is left alone;
    * the privileged functions run in the process itself, and no privsep daemon
      is started. So real devices can be touched only if the test runs as root
      and sets device_spec, whose default offers no device.

    At the end, the journals are closed, and all options of os-acc lose the
    overrides and defaults that were set in code.

    :param state_path: a directory of this test alone, such as the path of a
        fixtures.TempDir. It is created if it does not exist
    :param owner: see os_acc.initialize
    """

    def __init__(self, state_path: str, owner: str | None = None) -> None:
        super().__init__()
        self._path = os.path.abspath(state_path)
        self._owner = owner
        self._hosts: dict[str, selection.Selected] = {}

    def _setUp(self) -> None:
        conf = os_acc.CONF
        # The cleanup that is registered first runs last.
        self.addCleanup(_reset_options)
        conf.set_override('state_path', self._path, opts.GROUP)
        conf.set_override(
            'device_spec_dir', self._below('device_spec.d'), opts.GROUP
        )
        self._run_privileged_here()
        only = selection.Selected(conf)
        self._patch(selection.Process, 'selected', only)
        self.addCleanup(_close, only)
        os_acc.initialize(owner=self._owner)

    @contextlib.contextmanager
    def host(self, name: str) -> Iterator[None]:
        """Run all calls of os_acc in the block on one of several hosts.

        Each host has its own journal and locks. All share the devices of
        the machine, and the options except [os_acc] host and state_path. At
        the first use, the host is initialized.

        The choice holds for the calling thread (native or green) only, and for
        the asyncio tasks and contextvars.Contexts that it creates.

        :param name: the name of the host, to which Cyborg binds ARQs. Calls
            outside such a block are for a host with the machine's own name
        """
        with self._selected(name):
            os_acc.initialize(owner=self._owner)
            yield

    def follow(self, cls: type, host_of: Callable[[Any], str]) -> None:
        """Run the methods of a class on the host of their object.

        For a service that the test starts several times in its process, once
        for each host. The service initializes os-acc itself:

        .. code-block:: python

           acc.follow(LibvirtDriver, lambda driver: driver.host_name)

        The methods that a base class defines are left as they are.

        :param cls: the class whose methods call os_acc
        :param host_of: returns the name of the host of an object of the class.
            It is not called in __init__()
        """
        for name, method in list(vars(cls).items()):
            if name != '__init__' and inspect.isfunction(method):
                self._patch(cls, name, self._followed(method, host_of))

    def stop(self, name: str | None = None) -> None:
        """Close os-acc on a host, as happens when its service ends.

        The journal stays. The next host() block, or the next call of
        os_acc.initialize() on the host, opens and recovers it.

        :param name: None: the host of the calls outside host() blocks
        """
        if name is None:
            _close(selection.Process.selected)
        else:
            _close(self._hosts.get(name))

    @contextlib.contextmanager
    def _selected(self, name: str) -> Iterator[None]:
        if name not in self._hosts:
            made = selection.Selected(
                _Conf(
                    os_acc.CONF,
                    host=name,
                    state_path=self._below('hosts', name),
                    lock_path='',
                )
            )
            # Another thread may have made it meanwhile.
            if self._hosts.setdefault(name, made) is made:
                self.addCleanup(_close, made)
        token = selection.selected.set(self._hosts[name])
        try:
            yield
        finally:
            selection.selected.reset(token)

    def _followed(
        self, method: Callable[..., Any], host_of: Callable[[Any], str]
    ) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(obj: Any, *args: Any, **kwargs: Any) -> Any:
            with self._selected(host_of(obj)):
                return method(obj, *args, **kwargs)

        return call

    def _run_privileged_here(self) -> None:
        """Run the privileged functions here, in directories of the test."""
        self.addCleanup(privsep.run_here, privsep.runs_here())
        privsep.run_here(True)
        self._patch(root_folder, 'PATH', self._below('run'))
        self._patch(notes, 'FOLDER', self._below('held'))
        self._patch(root_copy, 'DIRECTORY', self._below('images'))
        os.makedirs(self._path, exist_ok=True)

    def _below(self, *names: str) -> str:
        return os.path.join(self._path, *names)

    def _patch(self, obj: Any, name: str, value: Any) -> None:
        self.useFixture(fixtures.MockPatchObject(obj, name, value))


class _Conf:
    """oslo.config's CONF, with other values of some options of [os_acc]."""

    def __init__(self, conf: cfg.ConfigOpts, **values: Any) -> None:
        self._conf = conf
        self.os_acc = _Group(conf, values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._conf, name)

    def __getitem__(self, name: str) -> Any:
        return self.os_acc if name == opts.GROUP else self._conf[name]

    def __contains__(self, name: str) -> bool:
        return name in self._conf


class _Group:
    def __init__(self, conf: cfg.ConfigOpts, values: dict[str, Any]) -> None:
        self._conf = conf
        self._values = values

    def __getattr__(self, name: str) -> Any:
        if name in self._values:
            return self._values[name]
        return getattr(self._conf[opts.GROUP], name)

    __getitem__ = __getattr__


def _close(selected: selection.Selected | None) -> None:
    if selected is not None and selected.host is not None:
        host, selected.host = selected.host, None
        host.close()


def _reset_options() -> None:
    """Take back the overrides and defaults of all options of os-acc."""
    for group, options in loader.list_opts():
        for option in options:
            # The options of a driver exist only if it was loaded.
            with contextlib.suppress(cfg.NoSuchOptError, cfg.NoSuchGroupError):
                os_acc.CONF.clear_override(option.dest, group)
                os_acc.CONF.clear_default(option.dest, group)

# SPDX-License-Identifier: Apache-2.0

"""A deadline for each call of the driver and the plugin under test.

A call that blocks would stop the whole run of the tests. So each call is made
in a thread of its own, which is left alone after the deadline. An alarm signal
would not do: os-acc makes most calls in threads, where no signal arrives.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from concurrent import futures
import contextvars
import functools
import threading
from typing import Any

from os_acc import driver as driver_base
from os_acc import plugin as plugin_base
from os_acc.testing import rules

# The methods that os-acc calls.
_OF_BOTH = ('is_intact', 'diagnose')
_OF_DRIVERS = (
    *_OF_BOTH,
    'can_handle',
    'get_devices',
    'prepareVAN',
    'postplug',
    'unprepareVAN',
    'show_device',
    'takes_unlisted',
    'serves',
    'check_request',
    'program_device',
    'free_device',
)
_OF_PLUGINS = (
    *_OF_BOTH,
    'describe',
    'check_live',
    'has_guest',
    'plug',
    'restore',
    'unplug',
    'leftovers',
)

# Whether this thread makes a call already: what a method calls itself has no
# deadline of its own.
_calling: contextvars.ContextVar[bool] = contextvars.ContextVar(
    'os_acc_testing_calling', default=False
)


class Deadlines:
    """Gives each call of a driver and a plugin the same deadline.

    :ivar missed: for each call that did not return, the rule that it broke
    """

    def __init__(self, seconds: float) -> None:
        self.missed: list[rules.Broken] = []
        self._seconds = seconds

    def set_for(
        self,
        driver: driver_base.DriverBase,
        plugin: plugin_base.PluginBase,
    ) -> None:
        for name in _OF_DRIVERS:
            self._limit(driver, name, rules.DEADLINE)
        for name in _OF_PLUGINS:
            self._limit(plugin, name, rules.PLUGIN_DEADLINE)

    def check(self) -> None:
        """Check that each call has returned, also those that os-acc made."""
        if self.missed:
            raise self.missed[0]

    def _limit(
        self,
        extension: driver_base.DriverBase | plugin_base.PluginBase,
        name: str,
        rule: rules.Rule,
    ) -> None:
        act: Callable[..., Any] = getattr(extension, name)

        @functools.wraps(act)
        def limited(*args: Any, **kwargs: Any) -> Any:
            if _calling.get():
                return act(*args, **kwargs)
            return self._call(name, rule, lambda: act(*args, **kwargs))

        setattr(extension, name, limited)

    def _call(
        self, name: str, rule: rules.Rule, act: Callable[[], Any]
    ) -> Any:
        outcome: futures.Future[Any] = futures.Future()

        def run() -> None:
            _calling.set(True)
            try:
                found = act()
                # What a generator does is a part of the call.
                found = list(found) if isinstance(found, Iterator) else found
                outcome.set_result(found)
            except BaseException as err:
                outcome.set_exception(err)

        thread = threading.Thread(
            target=contextvars.copy_context().run,
            args=(run,),
            name=f'os-acc test: {name}()',
            daemon=True,
        )
        thread.start()
        thread.join(self._seconds)
        if thread.is_alive():
            broken = rules.Broken(
                rule, f'{name}() has not returned after {self._seconds:g} s'
            )
            self.missed.append(broken)
            raise broken
        if not outcome.done():
            # If coverage is measured, Python 3.11 can end a thread that
            # starts beside another one before it has done anything.
            contextvars.copy_context().run(run)
        return outcome.result()

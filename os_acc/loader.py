# SPDX-License-Identifier: Apache-2.0

"""Finds drivers and plugins by entry point, and chooses a request's driver."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses
import logging
from typing import Any
from typing import NamedTuple
from typing import TypeVar

from oslo_config import cfg
from stevedore import extension as stevedore_extension
from stevedore import named as stevedore_named

from os_acc import driver as driver_base
from os_acc import exception
from os_acc import extension
from os_acc import log
from os_acc import objects
from os_acc import opts
from os_acc import plugin as plugin_base
from os_acc.options import common
from os_acc.options import values

DRIVERS = 'os_acc.drivers'
PLUGINS = 'os_acc.plugins'

LOG = logging.getLogger(__name__)

_T = TypeVar('_T', bound=extension.ExtensionBase)


@dataclasses.dataclass(frozen=True)
class Extensions:
    """The drivers and plugins that are loaded.

    :ivar errors: why a driver or plugin is not loaded, by 'driver NAME' or
        'plugin NAME'
    :ivar optional: the names of drivers that are not meant for this host: they
        raise MissingPackage, because an optional package is not installed
    """

    drivers: dict[str, driver_base.DriverBase]
    plugins: dict[str, plugin_base.PluginBase]
    errors: dict[str, str]
    optional: frozenset[str] = frozenset()

    def driver(self, name: str) -> driver_base.DriverBase:
        """Return a driver by name."""
        if name not in self.drivers:
            raise exception.NoMatchingDriver(
                request=f'driver name {name!r}',
                reason=self._why_not('driver', name, self.drivers),
            )
        return self.drivers[name]

    def plugin(self, name: str) -> plugin_base.PluginBase:
        """Return a plugin by name."""
        if name not in self.plugins:
            raise exception.NoMatchingPlugin(
                plugin=name,
                reason=self._why_not('plugin', name, self.plugins),
            )
        return self.plugins[name]

    def lacking(
        self, configured: Collection[str], with_vans: Collection[str]
    ) -> dict[str, str]:
        """Return the drivers that are not loaded although this host may have
        their devices.

        :returns: by name, why it is not loaded. If drivers are configured,
            these and those with VANs count; otherwise every driver that failed
        """
        wanted = {*configured, *with_vans}
        if not configured:
            names = (each.partition('driver ')[2] for each in self.errors)
            wanted |= {name for name in names if name} - self.optional
        return {
            name: self._why_not('driver', name, self.drivers)
            for name in sorted(wanted - self.drivers.keys())
        }

    def options(self) -> list[tuple[str, Sequence[cfg.Opt]]]:
        """Return (group, options) of each driver and plugin."""
        return [
            (f'{opts.GROUP}_{name}', found.CONFIG_OPTS)
            for loaded in (self.drivers, self.plugins)
            for name, found in loaded.items()
        ]

    def _why_not(self, kind: str, name: str, loaded: Iterable[str]) -> str:
        error = self.errors.get(f'{kind} {name}')
        if error is not None:
            return f'it failed to load: {error}'
        known = sorted(loaded)
        names = ', '.join(known) or 'none'
        return f'the loaded {kind}s are: {names}{values.meant(name, known)}'

    def driver_for(
        self, request: objects.AcceleratorRequest, preferred: Sequence[str]
    ) -> driver_base.DriverBase:
        """Choose the driver of a request.

        :raises NoMatchingDriver: if no driver claims the request, if the
            driver that it names is not loaded, or if a driver's can_handle()
            failed
        :raises AmbiguousDriver: if several drivers claim the request, and
            preferred names none of them
        """
        if request.driver is not None:
            return self.driver(request.driver)
        claims = [d for d in self.drivers.values() if _claims(d, request)]
        claims = [d for d in claims if not d.generic] or claims
        if not claims:
            reason = 'no driver is loaded'
            if self.drivers:
                loaded = ', '.join(sorted(self.drivers))
                reason = f'none of {loaded} claims it'
            for name, why in sorted(self.errors.items()):
                if name.startswith('driver '):
                    reason += f'; {name} is not loaded: {why}'
            raise exception.NoMatchingDriver(
                request=_describe(request), reason=reason
            )
        rank = {name: place for place, name in enumerate(preferred)}
        claims.sort(key=lambda d: (rank.get(d.name, len(rank)), d.name))
        if len(claims) > 1 and claims[0].name not in rank:
            raise exception.AmbiguousDriver(
                request=_describe(request),
                drivers=', '.join(d.name for d in claims),
            )
        return claims[0]


def _claims(
    candidate: driver_base.DriverBase, request: objects.AcceleratorRequest
) -> bool:
    try:
        return candidate.can_handle(request)
    except Exception as err:
        # If this counted as a no, another driver that fits less well could
        # get the request.
        raise exception.NoMatchingDriver(
            request=_describe(request),
            reason=f'can_handle() of driver {candidate.name!r} failed: '
            f'{exception.describe(err)}',
        ) from err


def _describe(request: objects.AcceleratorRequest) -> str:
    wanted = [
        f'{name}={getattr(request, name)!r}'
        for name in ('resource_class', 'traits')
        if getattr(request, name)
    ]
    if request.handle is not None:
        wanted.insert(0, request.handle.identity)
    return f'request {request.uuid} ({", ".join(wanted) or "no selector"})'


class _Manager(stevedore_extension.ExtensionManager[Any]):
    """stevedore's manager, but a broken package does not stop the others."""

    def _load_one_plugin(self, ep: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return super()._load_one_plugin(ep, *args, **kwargs)
        except (AssertionError, SystemExit) as err:
            raise ImportError(exception.describe(err)) from err


def load(
    namespace: str, base: type[_T], optional: set[str] | None = None
) -> tuple[dict[str, _T], dict[str, str]]:
    """Load all drivers, or all plugins, by their entry points.

    If one fails, the error is logged, and the others still load.

    :param optional: gets the names of those that raise MissingPackage
    :returns: the instances by name, and the errors by name
    """
    loaded: dict[str, _T] = {}
    errors: dict[str, str] = {}

    def fail(name: str, reason: str, err: BaseException | None = None) -> None:
        errors[name] = reason
        loaded.pop(name, None)
        if isinstance(err, exception.MissingPackage):
            if optional is not None:
                optional.add(name)
            LOG.info('%r of %s is not loaded: %s', name, namespace, reason)
            return
        text = 'Cannot load %r of %s: %s'
        if err is None:
            LOG.error(text, name, namespace, reason)
        else:
            log.error(LOG, err, text, name, namespace, reason)

    def on_failure(
        _manager: Any, entry_point: Any, err: BaseException
    ) -> None:
        fail(entry_point.name, exception.describe(err), err)

    for found in _Manager(namespace, on_load_failure_callback=on_failure):
        name = found.name
        if name in loaded or name in errors:
            # The order of sys.path must not decide which one is used.
            fail(name, 'two installed packages provide it')
        elif not (
            isinstance(found.plugin, type) and issubclass(found.plugin, base)
        ):
            fail(name, f'{found.plugin!r} is not a {base.__name__}')
        else:
            try:
                loaded[name] = found.plugin.load(name)
            except Exception as err:
                fail(name, exception.describe(err), err)
    return loaded, errors


def load_all() -> Extensions:
    """Load all drivers and plugins."""
    # mypy refuses an abstract class as a type[T], because a type[T] may be
    # called.
    optional: set[str] = set()
    drivers, driver_errors = load(DRIVERS, driver_base.DriverBase, optional)  # type: ignore[type-abstract]
    plugins, plugin_errors = load(PLUGINS, plugin_base.PluginBase)  # type: ignore[type-abstract]
    LOG.info(
        'Loaded os-acc drivers: %s; plugins: %s',
        ', '.join(sorted(drivers)) or 'none',
        ', '.join(sorted(plugins)) or 'none',
    )
    errors = {f'driver {name}': err for name, err in driver_errors.items()}
    errors |= {f'plugin {name}': err for name, err in plugin_errors.items()}
    return Extensions(drivers, plugins, errors, frozenset(optional))


def names(namespace: str) -> list[str]:
    """List the names of all drivers, or of all plugins; none is imported."""
    found = stevedore_named.NamedExtensionManager[Any](namespace, names=[])
    return sorted({point.name for point in found.list_entry_points()})


class Importable(NamedTuple):
    """A driver or plugin that can be imported."""

    name: str
    options: Sequence[cfg.Opt]


def importable() -> list[Importable]:
    """List the drivers and plugins that can be imported.

    Their classes are imported, but no instance is made.
    """
    return [
        Importable(found.name, found.plugin.CONFIG_OPTS)
        for namespace in (DRIVERS, PLUGINS)
        for found in _Manager(namespace)
        if isinstance(found.plugin, type)
        and issubclass(found.plugin, extension.ExtensionBase)
    ]


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """List all options, for oslo-config-generator and the documentation.

    :returns: (group, options) of os-acc, and of every driver and plugin that
        can be imported
    """
    own = [(group, list(options)) for group, _, options in common.GROUPS]
    return own + [
        (f'{opts.GROUP}_{each.name}', list(each.options))
        for each in importable()
        if each.options
    ]

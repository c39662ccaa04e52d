# SPDX-License-Identifier: Apache-2.0

"""os-acc metrics: figures of this host for Prometheus."""

from __future__ import annotations

import argparse
import collections
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import os
import secrets
import stat
from typing import TYPE_CHECKING
from typing import Any

from os_acc import exception
from os_acc import health
from os_acc import host
from os_acc import journal as journal_module
from os_acc import objects
from os_acc.cli import base
from os_acc.cli import errors
from os_acc.journal import demand
from os_acc.journal import events
from os_acc.objects import van as states
from os_acc.operations import discovery

if TYPE_CHECKING:
    from prometheus_client import metrics_core

_EXPECTED = 'a new file, or a regular file to replace'


class Metrics(base.Command):
    """Print metrics of this host as text for Prometheus.

    With --output, the text goes to a file for node_exporter's textfile
    collector. The file is replaced atomically, so a reader never sees half of
    it.
    The command changes nothing else. It needs the extra os-acc[metrics].
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            '--output',
            metavar='FILE',
            help='write the text to this file, such as '
            '/var/lib/prometheus/node-exporter/os_acc.prom; node_exporter '
            'reads only files that end in .prom, and must be able to read '
            'this one',
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        try:
            import prometheus_client
        except ImportError as err:
            raise exception.MissingPackage(
                what='metrics', package='prometheus_client', extra='metrics'
            ) from err
        path = parsed_args.output
        if path is not None:
            _check_output(path)
        with contextlib.closing(base.look()) as opened:
            # First, because without the journal there are no figures.
            of_journal = [*_of_journal(opened.journal)]
            of_journal += _of_measures(opened.journal.measures())
            of_journal.append(_of_demand(opened.journal.demand()))
            devices, failed = self._devices(opened)
        registry = prometheus_client.CollectorRegistry()
        registry.register(_Found([*of_journal, *_of_devices(devices, failed)]))
        text = prometheus_client.generate_latest(registry)
        if path is None:
            self.app.stdout.write(text.decode())
            return
        try:
            _write(path, text)
        except OSError as err:
            raise errors.unwritable(
                'metrics', '--output', path, _EXPECTED, err
            ) from err

    def _devices(
        self, opened: host.Host
    ) -> tuple[Sequence[objects.Device], bool]:
        """Return the devices, and whether a driver could not list its own."""
        try:
            return discovery.devices(opened), False
        except exception.DiscoveryFailed as err:
            self.say(f'{err}')
            return err.devices, True


def _check_output(path: str) -> None:
    """Refuse a device, a pipe and a directory: no file must replace them."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise exception.InvalidRequest(
            subject='metrics',
            field='--output',
            value=path,
            expected=f'{_EXPECTED}; without --output, the text goes to '
            'standard output',
        )


def _write(path: str, text: bytes) -> None:
    """Replace a file atomically.

    The new file has another name first, which nobody can guess. Another user
    could have made a link of the name that prometheus_client would use.
    """
    path = _followed(path)
    new = f'{path}.{secrets.token_hex(8)}'
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with open(fd, 'wb') as file:
            file.write(text)
        os.replace(new, path)
    except BaseException:
        os.unlink(new)
        raise


def _followed(path: str) -> str:
    """Follow a symbolic link that this user or root has made.

    A link of another user is replaced: it could lead to any file.
    """
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return path
    if stat.S_ISLNK(found.st_mode) and found.st_uid in (0, os.geteuid()):
        return os.path.realpath(path)
    return path


class _Found:
    """A collector of prometheus_client with metrics that were made before."""

    def __init__(self, found: Iterable[metrics_core.Metric]) -> None:
        self._found = found

    def collect(self) -> Iterable[metrics_core.Metric]:
        return self._found


def _metric(
    name: str,
    text: str,
    labels: Sequence[str],
    values: Mapping[Any, float],
    counts: bool = False,
) -> metrics_core.Metric:
    """Make a gauge, or a counter.

    :param values: the value for each tuple of values of the labels
    """
    from prometheus_client import core

    kind = core.CounterMetricFamily if counts else core.GaugeMetricFamily
    made = kind(f'os_acc_{name}', text, labels=labels)
    for of, value in sorted(values.items()):
        made.add_metric(of, value)
    return made


def _of_journal(
    journal: journal_module.Journal,
) -> Iterator[metrics_core.Metric]:
    """The current figures of the journal."""
    yield _metric(
        'journal_exists',
        '1 if there is a journal, 0 if nothing was plugged yet.',
        [],
        {(): int(journal.exists())},
    )
    vans = collections.Counter((van.state,) for van in journal.vans())
    vans[(base.UNREADABLE,)] += len(journal.unreadable())
    vans.update({(state,): 0 for state in states.STATES})
    yield _metric('vans', 'VANs in the journal.', ['state'], vans)
    unhealthy = {e.device for e in journal.unhealthy() if health.counts(e)}
    yield _metric(
        'devices_unhealthy',
        'Devices that are given to nobody because they have failed.',
        [],
        {(): len(unhealthy)},
    )
    yield _metric(
        'devices_reserved',
        'Devices that are given to nobody after their one-time use.',
        [],
        {(): len(journal.reservations())},
    )


def _of_devices(
    devices: Iterable[objects.Device], failed: bool
) -> Iterator[metrics_core.Metric]:
    """The current figures of the drivers."""
    texts = {
        'devices': 'Devices that the drivers find.',
        'devices_free': 'Devices that have a free handle.',
        'handles': 'Attach handles of all devices, such as the VFs of a PF.',
        'handles_free': 'Attach handles that can be given out now.',
    }
    sums = {name: collections.Counter[tuple[str, str]]() for name in texts}
    for device in devices:
        of = (device.driver, device.resource_class or '')
        sums['devices'][of] += 1
        sums['devices_free'][of] += int(device.handles_free > 0)
        sums['handles'][of] += device.handles_total
        sums['handles_free'][of] += device.handles_free
    for name, text in texts.items():
        yield _metric(name, text, ['driver', 'resource_class'], sums[name])
    yield _metric(
        'discovery_failed',
        '1 if a driver could not list its devices, which are then missing.',
        [],
        {(): int(failed)},
    )


def _of_measures(
    found: Iterable[events.Measure],
) -> Iterator[metrics_core.Metric]:
    """What has happened since the journal was created."""
    sums = {(name, labels): value for name, labels, value in found}
    for call in events.CALLS:
        yield _durations(call, sums)
    yield _metric(
        'failures',
        'Steps that failed, by error; without a step: calls that failed.',
        ['operation', 'step', 'extension', 'error'],
        {
            labels: value
            for (name, labels), value in sums.items()
            if name == events.FAILURES
        },
        counts=True,
    )
    yield _metric(
        'recovered_vans',
        'VANs that recovery has worked on, by result.',
        ['result'],
        {
            (result,): sums.get((events.RECOVERED, (result,)), 0)
            for result in (events.RELEASED, events.RESTORED, events.FAILED)
        },
        counts=True,
    )


def _of_demand(found: Iterable[demand.Demand]) -> metrics_core.Metric:
    return _metric(
        'demand',
        'Requests that found no device.',
        ['resource_class', 'traits', 'function_id'],
        {
            (
                each.resource_class or '',
                ','.join(each.traits),
                each.function_id or '',
            ): each.count
            for each in found
        },
        counts=True,
    )


def _durations(
    call: str, sums: Mapping[tuple[str, tuple[str, ...]], float]
) -> metrics_core.Metric:
    """Make the histogram of the durations of plug or unplug."""
    from prometheus_client import core

    made = core.HistogramMetricFamily(
        f'os_acc_{call}_duration_seconds',
        f'How long the calls of {call} took.',
        labels=['result'],
    )
    for result in (events.DONE, events.FAILED):
        buckets, total = [], 0.0
        for limit in (*map(str, events.BUCKETS), events.MORE):
            total += sums.get((events.DURATIONS, (call, result, limit)), 0)
            buckets.append((limit, total))
        seconds = sums.get((events.SECONDS, (call, result)), 0.0)
        made.add_metric([result], buckets, sum_value=seconds)
    return made

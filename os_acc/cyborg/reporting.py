# SPDX-License-Identifier: Apache-2.0
"""What the Cyborg agent reports in each of its periods."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
import logging

from os_acc import journal as journal_module
from os_acc import objects
from os_acc.cyborg import api as api_module
from os_acc.cyborg import bound as bound_module
from os_acc.cyborg import differences
from os_acc.cyborg import keeping
from os_acc.cyborg import present as present_module
from os_acc.cyborg import report

LOG = logging.getLogger(__name__)

# How often in a row Cyborg must show what was reported. Once is not enough: if
# Placement fails, the conductor has the new count, but still the old handles.
_CONFIRMATIONS = 2


class Reporter:
    """Makes the reports of one agent process.

    Cyborg's API is asked which handles are bound before anything is dropped
    from the report, and at the first report. Afterwards it is asked until it
    shows what was reported: a report may not reach it, and then it can still
    bind what the report left out. It is not asked in every period: it would
    list the ARQs of the whole cloud.

    :param host: [DEFAULT] host of Cyborg
    :param hosts: all names that this host has in Cyborg
    :param connect: connects to Cyborg's API; called when it is first needed
    :param alone: the agent has no other driver than os-acc's
    """

    def __init__(
        self,
        host: str,
        hosts: Collection[str],
        connect: Callable[[], api_module.API],
        alone: bool = False,
    ) -> None:
        self._host = host
        self._hosts = frozenset(hosts)
        self._connect = connect
        self._alone = alone
        self._api: api_module.API | None = None
        self._lister = present_module.Lister(host)
        self._bound = bound_module.NOTHING
        self._last: report.Report | None = None
        self._confirmed = 0
        # The deployables that Cyborg is to delete and to make again.
        self._renewed: set[str] = set()
        self._told: set[tuple[str, str, str]] = set()

    def make(
        self,
        devices: Iterable[objects.Device],
        arq_vans: Collection[str],
    ) -> report.Report:
        """Make the next report.

        :raises RemoteServiceError: if Cyborg's API is needed and does not
            answer. Nothing may be reported then
        """
        present = self._lister.offered(devices, arq_vans)
        if self._last is not None and self._confirmed >= _CONFIRMATIONS:
            previous = self._last
            self._check(previous, present)
            made = keeping.merged(previous, present, self._bound)
        else:
            previous = self._ask_all(present)
            made = keeping.merged(previous, present, self._bound)
            bound_module.check_started(self._bound, made)
        made = self._renew(previous, made)
        if keeping.drops(previous, made):
            self._confirmed = 0
        self._tell(made, present)
        self._last = made
        return made

    @property
    def api(self) -> api_module.API:
        if self._api is None:
            self._api = self._connect()
        return self._api

    def _ask(self) -> bound_module.Bound:
        return bound_module.ask(self.api, self._host, self._hosts, self._alone)

    def _ask_all(self, present: report.Report) -> report.Report:
        """Ask what is bound, and whether the last report has arrived.

        :returns: the last report, and what is bound
        """
        self._bound = self._ask()
        last = self._last
        if last is not None:
            there = {each.name: each for _, each in report.deployables(last)}
            arrived = all(
                name in there and there[name].count == count
                for name, count in self._bound.counts.items()
            )
            self._confirmed = self._confirmed + 1 if arrived else 0
        recorded = bound_module.rebuilt(
            self.api, self._bound, present, self._host, self._hosts
        )
        return keeping.joined(last or {}, recorded)

    def _renew(
        self, previous: report.Report, made: report.Report
    ) -> report.Report:
        """Leave out deployables that lose handles, until Cyborg has none.

        Nothing of them is bound: otherwise merged() keeps all handles.
        """
        counts = self._bound.counts
        lost = keeping.shrunk(previous, made)
        if self._last is None:
            # An earlier process of the agent may have reported more.
            lost |= {
                part.name
                for _, part in report.deployables(made)
                if not part.shared and part.count < counts.get(part.name, 0)
            }
        self._renewed = {
            name
            for name in self._renewed & counts.keys() | lost
            if not self._bound.uses(name)
        }
        return keeping.without(made, self._renewed)

    def _check(self, previous: report.Report, present: report.Report) -> None:
        """Ask Cyborg what is bound, if the answer matters."""
        asked: set[str] = set()
        for arq in keeping.doubts(previous, present, self._bound):
            if arq is not None and arq.uuid in asked:
                continue
            if arq is None or not bound_module.still(self.api, arq):
                self._bound = self._ask()
                return
            asked.add(arq.uuid)

    def _tell(self, made: report.Report, present: report.Report) -> None:
        """Log once what is kept only because it is bound."""
        told = set()
        for device, deployable, arq in keeping.kept(
            made, present, self._bound
        ):
            told.add((deployable.name, arq.handle.key, arq.uuid))
            if (deployable.name, arq.handle.key, arq.uuid) in self._told:
                continue
            LOG.warning(
                'Attach handle %s of device %s is no longer available, but '
                'stays in the report until ARQ %s of instance %s is deleted',
                arq.handle.key,
                device.address,
                arq.uuid,
                arq.instance_uuid,
            )
        for name, key, uuid in self._told - told:
            LOG.info(
                'Attach handle %s of deployable %s is no longer kept for ARQ '
                '%s',
                key,
                name,
                uuid,
            )
        self._told = told


def arq_vans(state_path: str, timeout: float) -> set[str]:
    """Read the UUIDs of the VANs that were plugged for an ARQ."""
    journal = journal_module.Journal(state_path, timeout, read_only=True)
    try:
        return {
            entry.van.uuid
            for entry in journal.entries()
            if differences.is_of_arq(entry)
        }
    finally:
        journal.close()

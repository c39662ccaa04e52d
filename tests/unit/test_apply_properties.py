# SPDX-License-Identifier: Apache-2.0

"""Random documents against a model: applied twice, with users and crashes.

What nobody uses has the state of the document, and nothing more; what somebody
uses stays as it was.
"""

from __future__ import annotations

import contextlib
import pathlib
import tempfile

import described
import devices
import examples
from hypothesis import HealthCheck
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine
from hypothesis.stateful import invariant
from hypothesis.stateful import rule
import idxd_model
import pytest

import os_acc
from os_acc import exception
from os_acc.desired import documents
from os_acc.desired import export
from os_acc.programming import hooks
from os_acc.testing import kernel
from os_acc.testing import mortal

NUMBERS = st.integers(0, 1000)


class Applied(RuleBasedStateMachine):
    """One host, whose process crashes and starts again."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.patch = pytest.MonkeyPatch()
        root = pathlib.Path(self.directory.name)
        self.kernel = kernel.Kernel(root / 'host')
        self.kernel.install(self.patch)
        idxd_model.show_files(self.patch)
        conf = os_acc.CONF
        conf([], project='os-acc', default_config_files=[])
        for name, value in {
            'state_path': str(root / 'state'),
            'device_spec_dir': str(root / 'specs'),
            'release_timeout': 0.05,
            'device_timeout': 20.0,
            'lock_timeout': 5.0,
            'max_workers': 1,
        }.items():
            conf.set_override(name, value, 'os_acc')
        self.host = described.Host(self.kernel, root, self.patch)
        mortal.watch_calls(
            self.patch,
            self.kernel.process,
            type(os_acc._host.journal),
            '_commit',
            mortal.COMMIT,
        )
        # It takes long to find that there are none.
        self.patch.setattr(hooks, 'call', lambda event: None)
        self.guests = []
        self.before = self.kernel.snapshot()

    def teardown(self) -> None:
        try:
            while self.guests:
                self.unplug(0)
            os_acc.apply({'version': 1})
            assert self.kernel.snapshot() == self.before
            assert os_acc._host.journal.kept_vfs() == {}
        finally:
            os_acc._host.close()
            os_acc._host = None
            self.patch.undo()
            os_acc.CONF.reset()
            for group in ('os_acc', 'os_acc_fake'):
                for option in os_acc.CONF._groups[group]._opts:
                    os_acc.CONF.clear_override(option, group)
            self.directory.cleanup()

    @rule(values=described.VALUES)
    def apply(self, values) -> None:
        document = self.host.written(values)
        check = os_acc.apply(document, check=True)
        first = os_acc.apply(document)
        self.host.begin(values)
        self.host.check_in_the_way(first)
        assert len(check.steps) == len(first.steps)
        for would, done in zip(check.steps, first.steps, strict=True):
            assert (would.part, would.name) == (done.part, done.name)
            if would.result == 'unchanged':
                assert done.result == 'unchanged'
            elif done.result == 'unchanged':
                # Only root knows that there is nothing to undo, and, if an
                # earlier document was not finished, nothing to do.
                assert (
                    done.after
                    in ('not there', 'only for instances', 'as before')
                    or done.after == done.before
                )
            assert (would.reason is None) == (done.reason is None)
        self.apply_again(document)

    def apply_again(self, document) -> None:
        """This changes nothing."""
        writes = list(self.kernel.writes)
        again = os_acc.apply(document)
        assert again.results() <= {'unchanged', 'in the way'}
        self.host.check_in_the_way(again)
        assert self.kernel.writes == writes

    @rule()
    def export(self) -> None:
        """The document of the host's state says what the host is like."""
        found = export.export(os_acc._host)
        held = {
            (each['device'], each.get('region', '')): each['function']
            for each in found['functions']
        }
        assert held.items() <= self.host.regions.inside.items()
        values = self.host.values()
        values[self.host.parts.index(self.host.regions)] = held
        assert found == self.host.normal(values)
        self.host.begin(values)
        self.apply_again(found)

    @rule(values=described.VALUES, at=st.integers(0, 40), after=st.booleans())
    def apply_and_crash(self, values, at, after) -> None:
        before = self.host.values()
        self.kernel.crash_at(at, after)
        with contextlib.suppress(mortal.Crash):
            os_acc.apply(self.host.written(values))
        self.kernel.calm()
        if self.kernel.dead:
            self.kernel.revive()
        os_acc.initialize(reset=True)
        kept = os_acc._host.journal.desired()
        # The row also has what the document before has let go.
        found = documents.stored(kept).as_object()
        begun = kept is not None and found == self.host.normal(values)
        self.host.begin(values if begun else before)

    @rule(part=st.integers(0, len(described.PARTS) - 1), number=NUMBERS)
    def plug(self, part, number) -> None:
        """A guest takes a device that is there."""
        part = self.host.parts[part]
        request = part.request(number)
        if request is None:
            return
        guest = devices.instance()
        try:
            (van,) = os_acc.plug(guest, [request])
        except exception.PlugException as err:
            reserves = self.host.stored.value[0]
            if part is self.host.regions or (
                reserves and 'os-acc apply' in str(err)
            ):
                return
            raise
        part.plugged(guest, van)
        self.guests.append((part, guest))

    @rule(number=NUMBERS)
    def unplug(self, number) -> None:
        if self.guests:
            part, guest = self.guests.pop(number % len(self.guests))
            os_acc.unplug(guest)
            part.unplugged(guest)
            # As a service does when it starts.
            os_acc.initialize(reset=True)
            for each in self.host.parts:
                each.settle()

    @rule()
    def reboot(self) -> None:
        self.host.reboot()

    @invariant()
    def what_nobody_uses_is_as_the_document_says(self) -> None:
        self.host.check()


def test_a_crash_before_anything_is_offered():
    """The partitions are set as soon as the document offers the card."""
    state = Applied()
    card = {'0000:c1:00.0': 'DPX'}
    values = ({}, (0, set()), {}, {}, card, set(), {}, ({}, {}))
    try:
        state.apply_and_crash(values=values, at=0, after=True)
        state.what_nobody_uses_is_as_the_document_says()
    finally:
        state.teardown()


TestApplied = pytest.mark.timeout(600)(Applied.TestCase)
TestApplied.settings = settings(
    max_examples=examples.costly(8),
    stateful_step_count=8,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

# SPDX-License-Identifier: Apache-2.0

"""Random documents against a model: applied twice, with users and crashes.

What nobody uses has the state of the document, and nothing more; what somebody
uses stays as it was.
"""

from __future__ import annotations

import contextlib
import pathlib
import tempfile

import applied
import devices
import examples
from hypothesis import HealthCheck
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine
from hypothesis.stateful import invariant
from hypothesis.stateful import rule
import pytest

import os_acc
from os_acc.programming import hooks
from os_acc.testing import kernel
from os_acc.testing import mortal

FIRST_VF = {devices.PF: devices.VFS[0], applied.OTHER: '0000:61:00.1'}

documents = st.tuples(
    st.dictionaries(
        st.sampled_from(applied.PFS), st.integers(1, applied.MOST)
    ),
    st.dictionaries(
        st.sampled_from(applied.REGIONS), st.sampled_from(['aes', 'sha'])
    ),
)


class Applied(RuleBasedStateMachine):
    """One host, whose process crashes and starts again."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.patch = pytest.MonkeyPatch()
        root = pathlib.Path(self.directory.name)
        self.kernel = kernel.Kernel(root / 'host')
        self.kernel.install(self.patch)
        conf = os_acc.CONF
        conf([], project='os-acc', default_config_files=[])
        for name, value in {
            'state_path': str(root / 'state'),
            'device_spec_dir': str(root / 'specs'),
            'release_timeout': 0.05,
            'device_timeout': 60.0,
            'lock_timeout': 5.0,
            'max_workers': 1,
        }.items():
            conf.set_override(name, value, 'os_acc')
        self.host = applied.Host(self.kernel, root)
        mortal.watch_calls(
            self.patch,
            self.kernel.process,
            type(os_acc._host.journal),
            '_commit',
            mortal.COMMIT,
        )
        # It takes long to find that there are none.
        self.patch.setattr(hooks, 'call', lambda event: None)
        self.before = self.kernel.snapshot()
        self.vfs, self.functions = {}, {}
        self.inside = dict.fromkeys(applied.REGIONS)
        self.users = {}

    def teardown(self) -> None:
        try:
            for name in list(self.users):
                self.unplug(name)
            self.apply(({}, {}))
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

    def _apply(self, document, **values):
        vfs, functions = document
        return self.host.apply(
            *(applied.pf(pf, number) for pf, number in sorted(vfs.items())),
            functions=[
                (*name, function) for name, function in functions.items()
            ],
            **values,
        )

    def _begun(self, document) -> None:
        """The document is in the journal: see what it has changed."""
        self.vfs, self.functions = document
        for name, function in self.functions.items():
            if name not in self.users:
                self.inside[name] = function

    @rule(document=documents)
    def apply(self, document) -> None:
        check = self._apply(document, check=True)
        first = self._apply(document)
        self._begun(document)
        assert len(check.steps) == len(first.steps)
        for would, done in zip(check.steps, first.steps, strict=True):
            assert would.name == done.name
            assert (would.result == 'unchanged') == (
                done.result == 'unchanged'
            )
            assert (would.reason is None) == (done.reason is None)
        writes = list(self.kernel.writes)
        again = self._apply(document)
        assert again.results() <= {'unchanged', 'in the way'}
        assert self.kernel.writes == writes

    @rule(document=documents, at=st.integers(0, 20), after=st.booleans())
    def apply_and_crash(self, document, at, after) -> None:
        before = self.vfs, self.functions
        self.kernel.crash_at(at, after)
        with contextlib.suppress(mortal.Crash):
            self._apply(document)
        self.kernel.calm()
        if self.kernel.dead:
            self.kernel.revive()
        os_acc.initialize(reset=True)
        kept = os_acc._host.journal.desired()
        begun = kept is not None and kept.document == self._text(document)
        self._begun(document if begun else before)

    def _text(self, document) -> str:
        """The document, as the journal has it."""
        from os_acc.desired import documents as reader

        vfs, functions = document
        found = reader.read(
            applied.document(
                [applied.pf(*each) for each in sorted(vfs.items())],
                [(*name, function) for name, function in functions.items()],
            )
        )
        return reader.json.dumps(found.as_object())

    @rule(pf=st.sampled_from(applied.PFS))
    def plug_vf(self, pf) -> None:
        if pf in self.users or pf not in self.vfs:
            return
        instance = devices.instance()
        os_acc.plug(instance, [devices.pci(FIRST_VF[pf])])
        self.users[pf] = instance

    @rule(name=st.sampled_from(applied.REGIONS))
    def plug_region(self, name) -> None:
        """A request that names no function takes what there is."""
        if name in self.users:
            return
        instance = devices.instance()
        (van,) = os_acc.plug(instance, [applied.fake_request(None)])
        for region in applied.REGIONS:
            if (van.device, van.driver_data['region']) == region:
                if region in self.users:
                    os_acc.unplug(instance)
                else:
                    self.users[region] = instance

    @rule(name=st.sampled_from((*applied.PFS, *applied.REGIONS)))
    def unplug(self, name) -> None:
        if name in self.users:
            os_acc.unplug(self.users.pop(name))
            # As a service does when it starts.
            os_acc.initialize(reset=True)
            self._begun((self.vfs, self.functions))

    @rule()
    def reboot(self) -> None:
        self.kernel.reboot()
        os_acc.initialize(reset=True)

    @invariant()
    def what_nobody_uses_is_as_the_document_says(self) -> None:
        for pf, there in zip(applied.PFS, self.host.vfs(), strict=True):
            if pf not in self.users:
                assert there == self.vfs.get(pf, 0)
            else:
                assert there > 0
        for name in applied.REGIONS:
            there = self.host.hardware.function_of('.'.join(name).strip('.'))
            assert there == self.inside[name], name


TestApplied = pytest.mark.timeout(600)(Applied.TestCase)
TestApplied.settings = settings(
    max_examples=examples.costly(8),
    stateful_step_count=8,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

# SPDX-License-Identifier: Apache-2.0

"""A host with all that a document of os-acc apply can describe, and a model.

The parts that are PCI functions or made of them are in described_parts.
"""

from __future__ import annotations

import applied
import described_parts
import devices
from hypothesis import strategies as st
import idxd_model

import os_acc
from os_acc import reserved
from os_acc.desired import documents
from os_acc.desired import reservations

Part = described_parts.Part

FILES = ('/dev/acme/q0', '/dev/acme/q1')
FUNCTIONS = ('aes', 'sha')
PROJECT = 'another-project'


class Regions(Part):
    """The functions of fake FPGAs."""

    VALUES = st.dictionaries(
        st.sampled_from(applied.REGIONS), st.sampled_from(FUNCTIONS)
    )
    NAME = 'functions'

    def __init__(self, hardware) -> None:
        super().__init__()
        self.value = {}
        self.hardware = hardware
        self.inside = dict.fromkeys(applied.REGIONS)

    def write(self, value, document) -> None:
        made = applied.document(functions=[(*k, v) for k, v in value.items()])
        document['functions'] = made['functions']

    def settle(self) -> None:
        for name, function in self.value.items():
            if name not in self._used():
                self.inside[name] = function

    def _used(self):
        return {name for name, _ in self.users}

    def request(self, number):
        if len(self.users) == 4:
            return None
        return applied.fake_request((None, *FUNCTIONS)[number % 3])

    def plugged(self, instance, van) -> None:
        name = van.device, van.driver_data['region']
        if name not in self._used():
            self.inside[name] = van.function_id or self.inside[name]
        self.users[name, van.handle.identity] = instance

    def expected(self):
        return self.inside

    def shown(self):
        return {
            name: self.hardware.function_of('.'.join(name).strip('.'))
            for name in applied.REGIONS
        }

    def blocked(self):
        found = {}
        for (name, _), user in self.users.items():
            if self.value.get(name, self.inside[name]) != self.inside[name]:
                label = ' '.join(name).strip()
                found.setdefault(label, set()).add(user.uuid)
        return found


class Files(Part):
    """Device files. They are offered, and nothing is done to them before.

    One that an instance has, and that is not offered, is not reported.
    """

    VALUES = st.sets(st.sampled_from(FILES))

    def __init__(self, kernel) -> None:
        super().__init__()
        self.value = set()
        for number, path in enumerate(FILES):
            kernel.add_node(path, f'c 250:{number}')

    def write(self, value, document) -> None:
        document['offered'] += [
            {'devices': path, 'resource_class': 'CUSTOM_ACME'}
            for path in sorted(value)
        ]

    def request(self, number):
        if self.value <= self.users.keys():
            return None
        return devices.wanted('CUSTOM_ACME')

    def plugged(self, instance, van) -> None:
        (file,) = van.handle.files
        self.users[file.path] = instance

    def expected(self):
        return {*self.value}

    def shown(self):
        return {
            FILES[int(device.address[-1])]
            for device in os_acc.get_devices()
            if device.address.startswith('char-250-')
        }


class Stored(Part):
    """What a document only says: whom devices are for, and pools."""

    VALUES = st.tuples(
        st.dictionaries(
            st.sampled_from([('fpga', '1'), ('card', ''), (devices.PF, '')]),
            st.sampled_from(
                [
                    {'project': PROJECT},
                    {'function': 'aes'},
                    {'ahead_of_time': True},
                ]
            ),
        ),
        st.dictionaries(
            st.sampled_from([*FUNCTIONS, 'gzip']),
            st.sampled_from([{}, {'min_free': 2}, {'on_demand': True}]),
        ),
    )

    def __init__(self) -> None:
        super().__init__()
        self.value = {}, {}

    def write(self, value, document) -> None:
        reserved, pools = value
        document['reserved'] = [
            {'device': device, **({'region': region} if region else {}), **who}
            for (device, region), who in reserved.items()
        ]
        document['pools'] = [
            {'function': function, **more} for function, more in pools.items()
        ]

    def request(self, number):
        return None

    def expected(self):
        document = {}
        self.write(self.value, document)
        return document

    def shown(self):
        journal = os_acc._host.journal
        return {
            'reserved': reservations.written(reserved.read(journal)),
            'pools': journal.pools(),
        }


PARTS = (
    described_parts.Vfs,
    described_parts.Vgpus,
    described_parts.Queues,
    described_parts.Mdevs,
    described_parts.Partitions,
    Files,
    Regions,
    Stored,
)

VALUES = st.tuples(*(each.VALUES for each in PARTS))


class Host:
    """The host.

    :param kernel: its kernel, whose device files are shown:
        idxd_model.show_files()
    :param directory: for the fake FPGAs
    :param patch: pytest's monkeypatch
    :ivar parts: one of each of PARTS
    """

    def __init__(self, kernel, directory, patch) -> None:
        self.kernel = kernel
        hardware = applied.Host(kernel, directory).hardware
        self.idxd = idxd_model.Idxd(kernel)
        self.vgpus = described_parts.Vgpus(kernel, patch)
        self.regions, self.stored = Regions(hardware), Stored()
        self.partitions = described_parts.Partitions(kernel)
        self.parts = (
            described_parts.Vfs(kernel),
            self.vgpus,
            described_parts.Queues(self.idxd),
            described_parts.Mdevs(kernel),
            self.partitions,
            Files(kernel),
            self.regions,
            self.stored,
        )

    def values(self):
        """What the newest document says of each part."""
        return [part.value for part in self.parts]

    def written(self, values):
        """The document with a value for each part."""
        document = {'version': 1, 'offered': []}
        for part, value in zip(self.parts, values, strict=True):
            part.write(value, document)
        return document

    def normal(self, values):
        """The same, as os-acc writes it."""
        return documents.read(self.written(values)).as_object()

    def begin(self, values) -> None:
        """The document is in the journal: see what it has changed."""
        for part, value in zip(self.parts, values, strict=True):
            part.begin(value)

    def reboot(self) -> None:
        for device in self.idxd.devices:
            device.hide()
        self.vgpus.card.reboot()
        self.vgpus.card.sriov_manage()
        self.partitions.cards.start()
        for device in self.idxd.devices:
            device.start()
            device.show()
        os_acc.initialize(reset=True)
        for part in self.parts:
            part.rebooted()
            part.settle()

    def check(self) -> None:
        """What nobody uses is as the document says."""
        for part in self.parts:
            shown, expected = part.shown(), part.expected()
            assert shown == expected, (
                f'{type(part).__name__}: {shown}, expected {expected}'
            )

    def check_in_the_way(self, report) -> None:
        """The report names exactly those who are in the way."""
        found = {
            (step.part, step.name): step.reason
            for step in report.steps
            if step.result == 'in the way'
        }
        blocked = {
            (part.NAME, name): users
            for part in self.parts
            for name, users in part.blocked().items()
        }
        assert found.keys() == blocked.keys()
        for step, reason in found.items():
            assert all(user in reason for user in blocked[step]), reason

# SPDX-License-Identifier: Apache-2.0

"""Parts of a document of os-acc apply, each with a model of its devices.

A part knows which values a document can have for it, who has its devices, and
what the host shows afterwards: what nobody uses is as the newest document
says, and what somebody uses stays as it was.
"""

from __future__ import annotations

import json

import amd_model
import applied
import devices
from hypothesis import strategies as st
import vgpu_card

from os_acc import objects
from os_acc.kernel import mdev
from os_acc.kernel import sriov
from os_acc.kinds.mdev.driver import handles

MTTY = 'mtty'
MTTY_TYPES = {'mtty-1': 1, 'mtty-2': 2}  # and how much each takes
NIC = '0000:08:00.0'
CARD = '0000:41:00.0'
VGPU_TYPES = {558: ('NVIDIA A40-1Q', 1), 559: ('NVIDIA A40-2Q', 2)}
GPUS = ('0000:c1:00.0', '0000:c6:00.0')
DSAS = ('0000:6a:01.0', '0000:6f:01.0')


class Part:
    """Some devices of the host, and the key of the document for them.

    :cvar VALUES: makes what a document says of them
    :cvar NAME: how an ApplyStep calls the part; empty: it has no steps
    :ivar value: what the newest document says
    :ivar users: the instance that has each device, or part of one
    """

    VALUES = st.just(())
    NAME = ''

    def __init__(self) -> None:
        self.value = ()
        self.users = {}

    def write(self, value, document) -> None:
        """Write a value into a document."""
        raise NotImplementedError

    def begin(self, value) -> None:
        """The document with a value is in the journal, and was applied."""
        self.value = value
        self.settle()

    def settle(self) -> None:
        """What nobody uses gets the state of the document."""

    def request(self, number):
        """Make a request for a device that is free; None: there is none.

        :param number: to choose one
        """
        raise NotImplementedError

    def plugged(self, instance, van) -> None:
        """A guest has got a device."""
        raise NotImplementedError

    def unplugged(self, instance) -> None:
        """The guest has left: what it has had for itself is gone."""
        self.users = {k: v for k, v in self.users.items() if v != instance}

    def rebooted(self) -> None:
        """The host was rebooted, and what guests have was restored."""

    def expected(self):
        """What the host shall show."""
        raise NotImplementedError

    def shown(self):
        """What the host shows."""
        raise NotImplementedError

    def blocked(self):
        """Who is in the way: the instances, by the name of the step."""
        return {}


class Vfs(Part):
    """The VFs of a NIC and of two other PFs, and the settings of the NIC's."""

    SETTINGS = (
        None,
        {'vlan': 101, 'trusted': True},
        {'spoof_check': False},
    )
    VALUES = st.dictionaries(
        st.sampled_from((*applied.PFS, NIC)),
        st.tuples(st.integers(1, applied.MOST), st.sampled_from(range(3))),
    )
    NAME = 'vfs'

    def __init__(self, kernel) -> None:
        super().__init__()
        self.value = {}
        self.kernel = kernel
        kernel.add_function(
            NIC,
            '8086:1572',
            0x020000,
            'i40e',
            totalvfs=applied.MOST,
            net='ens8f0',
        )
        self.there = dict.fromkeys((*applied.PFS, NIC), (0, 0))
        self.vlans = {}  # of the ports of guests

    @staticmethod
    def _of(pf, value):
        """Number and settings of a PF's VFs."""
        return value[0], value[1] if pf == NIC else 0

    def write(self, value, document) -> None:
        for pf, each in sorted(value.items()):
            number, settings = self._of(pf, each)
            more = {'vf_settings': self.SETTINGS[settings]} if settings else {}
            document['offered'].append(applied.pf(pf, number, **more))

    def _wanted(self, pf):
        return self._of(pf, self.value[pf]) if pf in self.value else (0, 0)

    def settle(self) -> None:
        self.vlans = {k: v for k, v in self.vlans.items() if k in self.users}
        used = {pf for pf, _ in self.users}
        for pf in self.there:
            if pf not in used:
                self.there[pf] = self._wanted(pf)

    def request(self, number):
        free = [
            (pf, place)
            for pf, (there, _) in self.there.items()
            for place in range(there if pf in self.value else 0)
            if (pf, place) not in self.users
        ]
        if not free:
            return None
        pf, place = free[number % len(free)]
        made = devices.pci(f'{pf[:-1]}{place + 1}')
        if pf == NIC and number % 2:
            made.port = objects.PortBinding(vlan=number % 7 + 1)
        return made

    def plugged(self, instance, van) -> None:
        name = van.device, int(van.handle.address[-1]) - 1
        self.users[name] = instance
        if 'port' in van.driver_data:
            (vlan, _) = json.loads(van.driver_data['port'])['wanted']['vlan']
            self.vlans[name] = vlan

    def rebooted(self) -> None:
        """An instance gets its VF again, and so the PF as many as before."""
        for pf in {pf for pf, _ in self.users}:
            if pf in self.value:
                number, settings = self._wanted(pf)
                self.there[pf] = max(number, self.there[pf][0]), settings
            else:
                self.there[pf] = self.there[pf][0], 0

    def expected(self):
        found = {}
        for pf, (number, settings) in self.there.items():
            more = self.SETTINGS[settings] or {}
            found[pf] = [
                (
                    self.vlans.get((pf, place), more.get('vlan', 0)),
                    more.get('trusted', False),
                    more.get('spoof_check', True),
                )
                for place in range(number)
            ]
        return found

    def shown(self):
        found = {pf: [(0, False, True)] * sriov.count(pf) for pf in self.there}
        found[NIC] = [
            (each['vlan'][0], each['trusted'], each['spoof_check'])
            for each in self.kernel.ports.get(NIC, ())
        ]
        return found

    def blocked(self):
        found = {}
        for (pf, _), user in self.users.items():
            if self.there[pf] != self._wanted(pf):
                found.setdefault(pf, set()).add(user.uuid)
        return found


class Vgpus(Part):
    """The vGPU types of the VFs of a card."""

    VALUES = st.tuples(
        st.sampled_from([0, *VGPU_TYPES]),
        st.sets(st.integers(0, 2)),
    )
    NAME = 'vgpus'

    def __init__(self, kernel, patch) -> None:
        super().__init__()
        self.card = vgpu_card.Card(
            kernel, CARD, VGPU_TYPES, size=48, vfs=3, mixed=True
        )
        self.card.install_config(patch)
        self.value = 0, set()
        self.there = dict.fromkeys(self.card.vfs, 0)
        self.preset = set()  # those in use whose type stays

    def write(self, value, document) -> None:
        kind, those = value
        if kind:
            name = VGPU_TYPES[kind][0]
            document['offered'].append(
                {'vendor_id': '10de', 'vgpu_type': name}
            )
            document['vgpus'] = [
                {'device': self.card.vfs[each]} for each in sorted(those)
            ]

    def _wanted(self):
        kind, those = self.value
        return {
            vf: kind if number in those else 0
            for number, vf in enumerate(self.card.vfs)
        }

    def settle(self) -> None:
        for vf, kind in self._wanted().items():
            if vf not in self.users:
                self.there[vf] = kind

    def request(self, number):
        kind = self.value[0]
        free = [vf for vf in self.card.vfs if vf not in self.users]
        if not free or not kind:
            return None
        return devices.pci(free[number % len(free)])

    def plugged(self, instance, van) -> None:
        vf = van.handle.address
        if self.there[vf]:
            self.preset.add(vf)
        self.there[vf] = self.value[0]
        self.users[vf] = instance

    def unplugged(self, instance) -> None:
        left = {vf for vf, user in self.users.items() if user == instance}
        for vf in left - self.preset:
            self.there[vf] = 0
        self.preset -= left
        super().unplugged(instance)

    def expected(self):
        return self.there

    def shown(self):
        return {vf: self.card.kind_of(vf) for vf in self.card.vfs}

    def blocked(self):
        wanted = self._wanted()
        return {
            vf: {user.uuid}
            for vf, user in self.users.items()
            if (
                wanted[vf] != self.there[vf]
                and (vf in self.preset or wanted[vf])
            )
            or (wanted[vf] and vf not in self.preset)
        }


class Queues(Part):
    """The work queues of two DSAs."""

    VALUES = st.dictionaries(
        st.sampled_from(DSAS),
        st.tuples(st.integers(1, 3), st.integers(1, 2), st.booleans()),
    )
    NAME = 'work_queues'

    def __init__(self, model) -> None:
        super().__init__()
        self.value = {}
        self.devices = {address: model.add(address) for address in DSAS}
        self.there = dict.fromkeys(DSAS)

    def write(self, value, document) -> None:
        for address, (count, groups, listed) in sorted(value.items()):
            document['offered'].append(
                {
                    'idxd': address,
                    'wq_count': count,
                    'wq_groups': min(count, groups),
                }
            )
            if listed:
                document.setdefault('work_queues', []).append(
                    {'device': address}
                )

    @staticmethod
    def _layout(value):
        count, groups, _ = value
        return count, min(count, groups)

    def settle(self) -> None:
        used = {address for address, _ in self.users}
        for address in DSAS:
            if address not in used:
                value = self.value.get(address)
                listed = value is not None and value[2]
                self.there[address] = self._layout(value) if listed else None

    def request(self, number):
        free = [
            address
            for address, value in self.value.items()
            for place in range(value[0])
            if (address, place) not in self.users
            and self.there[address] in (None, self._layout(value))
        ]
        if not free:
            return None
        return devices.wanted('CUSTOM_DSA')

    def plugged(self, instance, van) -> None:
        address, _, place = van.handle.name.partition('-wq')
        if self.there[address] is None:
            self.there[address] = self._layout(self.value[address])
        self.users[address, int(place)] = instance

    def unplugged(self, instance) -> None:
        super().unplugged(instance)
        self.settle()

    def expected(self):
        return self.there

    def shown(self):
        found = {}
        for address, device in self.devices.items():
            queues = [each for each in device.queues if each.size]
            layout = len(queues), len({each.group for each in queues})
            found[address] = layout if device.state == 'enabled' else None
        return found

    def blocked(self):
        found = {}
        for (address, _), user in self.users.items():
            value = self.value.get(address)
            if (
                value
                and value[2]
                and self._layout(value) != self.there[address]
            ):
                found.setdefault(address, set()).add(user.uuid)
        return found


class Partitions(Part):
    """The compute partitions of two AMD GPUs."""

    VALUES = st.dictionaries(
        st.sampled_from(GPUS), st.sampled_from(('SPX', 'DPX', 'CPX'))
    )
    NAME = 'partitions'

    def __init__(self, kernel) -> None:
        super().__init__()
        self.value = {}
        kernel.add_driver('amdgpu')
        self.cards = amd_model.Cards(kernel, amd_model.Nodes(kernel))
        for card in GPUS:
            self.cards.add(card)
        self.there = dict.fromkeys(GPUS, 'SPX')

    def write(self, value, document) -> None:
        if value:
            document['offered'].append(
                {'devices': '/dev/dri/renderD*', 'resource_class': 'PGPU'}
            )
            document['partitions'] = [
                {'device': card, 'compute': mode}
                for card, mode in sorted(value.items())
            ]

    def _in_the_way(self, card):
        """The instances of a card that need another mode than the wanted."""
        wanted = self.value.get(card, 'SPX')
        return {
            user.uuid
            for name, user in self.users.items()
            for parts in [name.split('+')]
            if parts[0] == card
            and wanted
            != (parts[1].split('=')[0].upper() if '=' in parts[1] else 'SPX')
        }

    def settle(self) -> None:
        for card in GPUS:
            if not self._in_the_way(card):
                self.there[card] = self.value.get(card, 'SPX')

    def rebooted(self) -> None:
        """An instance gets a partition again if they are offered."""
        if not self.value:
            self.there = dict.fromkeys(GPUS, 'SPX')

    def request(self, number):
        there = sum(amd_model.PARTS[each] for each in self.there.values())
        if not self.value or len(self.users) == there:
            return None
        return devices.wanted('PGPU')

    def plugged(self, instance, van) -> None:
        self.users[van.handle.name] = instance

    def expected(self):
        return self.there

    def shown(self):
        return {card: self.cards.mode(card) for card in GPUS}

    def blocked(self):
        return {
            card: users
            for card in GPUS
            if self.there[card] != self.value.get(card, 'SPX')
            and (users := self._in_the_way(card))
        }


class Mdevs(Part):
    """Mediated devices of two types."""

    # The card has room for them, and for one more of a guest.
    VALUES = st.fixed_dictionaries(
        {}, optional={'mtty-1': st.integers(0, 6), 'mtty-2': st.integers(0, 3)}
    ).filter(
        lambda value: sum(MTTY_TYPES[k] * n for k, n in value.items()) <= 6
    )
    NAME = 'mdevs'

    def __init__(self, kernel) -> None:
        super().__init__()
        self.value = {}
        self.names = {}  # of all that a document has described, by UUID
        path = kernel.sys / f'devices/virtual/mtty/{MTTY}'
        path.mkdir(parents=True)
        kernel.add_mdev_parent(path, MTTY_TYPES, 8)

    def write(self, value, document) -> None:
        if value:
            document['offered'].append(
                {'address': MTTY, 'mdev_types': sorted(value)}
            )
        made = [
            {'device': MTTY, 'type': kind, 'count': number}
            for kind, number in sorted(value.items())
            if number
        ]
        if made:
            document['mdevs'] = made

    def _wanted(self):
        return {
            handles.of_name(name).uuid: name
            for kind, number in self.value.items()
            for name in (f'{MTTY} {kind} {place}' for place in range(number))
        }

    def settle(self) -> None:
        self.names |= self._wanted()

    def request(self, number):
        kinds = sorted(self.value)
        if not kinds or self.users:
            return None
        kind = kinds[number % len(kinds)].upper().replace('-', '_')
        return devices.wanted(f'CUSTOM_MDEV_{kind}')

    def plugged(self, instance, van) -> None:
        self.users[van.handle.uuid] = instance

    def expected(self):
        return {*self._wanted(), *self.users}

    def shown(self):
        return {each.uuid for each in mdev.devices()}

    def blocked(self):
        wanted = self._wanted()
        return {
            self.names[uuid]: {user.uuid}
            for uuid, user in self.users.items()
            if uuid in self.names and uuid not in wanted
        }

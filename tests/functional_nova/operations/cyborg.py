# SPDX-License-Identifier: Apache-2.0

"""A Cyborg that hands out the devices of the generated sysfs."""

from __future__ import annotations

import copy
from typing import Any
import uuid

from nova.tests import fixtures as nova_fixtures

#: The device profiles: their groups.
PROFILES: dict[str, list[dict[str, str]]] = {
    'vf': [{'resources:FPGA': '1'}],
    'two': [{'resources:FPGA': '1'}, {'resources:PGPU': '1'}],
    'port': [{'resources:FPGA': '1'}],
}
#: The PCI buses of the devices, by host: the VFs, and the GPU.
BUSES: dict[str, tuple[str, str]] = {
    'compute1': ('01', '02'),
    'compute2': ('11', '12'),
}
MDEV_TYPE = 'acme-1'


class Cyborg(nova_fixtures.CyborgFixture):
    """Nova's own stand-in, with ARQs that are made and deleted.

    :ivar arqs: the ARQs that exist, by UUID
    :ivar functions: the free VFs, the next one first
    :ivar unbound: the hosts on which no ARQ can be bound
    :ivar changes: what the handles of PCI functions are changed by
    """

    def __init__(self) -> None:
        super().__init__()
        self.arqs: dict[str, dict[str, Any]] = {}
        self.functions = ['1', '2', '3', '4']
        self.unbound: set[str] = set()
        self.changes: dict[str, str] = {}

    def of(self, server: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the ARQs of a server, in the order of its profile."""
        return [
            arq
            for arq in self.arqs.values()
            if arq['instance_uuid'] == server['id']
        ]

    # What Nova's fixture replaces in Nova's client.

    def fake_get_device_profile_list(self, dp_name: str) -> Any:
        return [{'name': dp_name, 'groups': PROFILES[dp_name]}]

    def fake_create_arqs(self, dp_name: str) -> list[dict[str, Any]]:
        made = []
        for number in range(len(PROFILES[dp_name])):
            arq = {
                'uuid': str(uuid.uuid4()),
                'state': 'Initial',
                'device_profile_name': dp_name,
                'device_profile_group_id': number,
                'hostname': None,
                'device_rp_uuid': None,
                'instance_uuid': None,
                'attach_handle_uuid': None,
                'attach_handle_type': '',
                'attach_handle_info': {},
            }
            self.arqs[arq['uuid']] = arq
            made.append(copy.deepcopy(arq))
        return made

    def fake_create_arq_and_match_rp(
        self, dp_name: str, rg_rp_map: Any = None, owner: Any = None
    ) -> list[dict[str, Any]]:
        made = self.fake_create_arqs(dp_name)
        for arq in made:
            number = arq['device_profile_group_id']
            name = f'device_profile_{number}{owner or ""}'
            arq['device_rp_uuid'] = rg_rp_map[name][0]
        return made

    def fake_get_arq_device_rp_uuid(
        self, arq_arg: Any, rg_rp_map: Any = None, port_id: Any = None
    ) -> str:
        number = arq_arg['device_profile_group_id']
        return rg_rp_map[f'device_profile_{number}{port_id}'][0]

    def fake_bind_arqs(self, bindings: dict[str, Any]) -> None:
        for arq_uuid, binding in bindings.items():
            arq = self.arqs[arq_uuid]
            arq.update(binding)
            if binding['hostname'] in self.unbound:
                arq['state'] = 'BindFailed'
                continue
            arq['state'] = 'Bound'
            arq['attach_handle_uuid'] = str(uuid.uuid4())
            group = PROFILES[arq['device_profile_name']][
                arq['device_profile_group_id']
            ]
            vfs, gpu = BUSES[binding['hostname']]
            info = {'domain': '0000', 'device': '00'}
            if 'resources:FPGA' in group:
                arq['attach_handle_type'] = 'PCI'
                info |= {'bus': vfs, 'function': self.functions.pop(0)}
                info |= self.changes
            else:
                arq['attach_handle_type'] = 'MDEV'
                info |= {'bus': gpu, 'function': '0', 'asked_type': MDEV_TYPE}
            if arq['device_profile_name'] == 'port':
                info['physical_network'] = 'physnet4'
            arq['attach_handle_info'] = info

    def fake_get_arqs_for_instance(
        self, instance_uuid: str, only_resolved: bool = False
    ) -> list[dict[str, Any]]:
        return copy.deepcopy(self.of({'id': instance_uuid}))

    def fake_get_arq_by_uuid(self, uuid: str) -> Any:
        return copy.deepcopy(self.arqs.get(uuid))

    def fake_delete_arqs_for_instance(self, instance_uuid: str) -> None:
        self.fake_delete_arqs_by_uuid(
            [arq['uuid'] for arq in self.of({'id': instance_uuid})]
        )

    def fake_delete_arqs_by_uuid(self, arq_uuids: Any) -> None:
        for each in list(arq_uuids):
            # Nova deletes the ARQs of a failed build twice.
            arq = self.arqs.pop(each, None)
            if arq and arq['attach_handle_type'] == 'PCI':
                self.functions.append(arq['attach_handle_info']['function'])

# SPDX-License-Identifier: Apache-2.0

"""Drivers, with what a test says that they find."""

import json
import types
from typing import Any

from cyborg import acts


class Fields(types.SimpleNamespace):
    """A versioned object, as far as the helper looks at it."""

    def obj_attr_is_set(self, name: str) -> bool:
        return hasattr(self, name)


def _device(values: dict[str, Any]) -> Fields:
    functions = [
        ['trait9', f'CUSTOM_FPGA_FUNCTION_ID_ACME_{name}']
        for name in acts.told('function').split()
        if values['program']
    ]
    # A device has one deployable unless it says otherwise.
    deployables = [
        _deployable(values | each, functions)
        for each in values.get('deployables') or [{}]
    ]
    return Fields(
        vendor=values['vendor'],
        type='FPGA',
        std_board_info=json.dumps({'product_id': values['product']}),
        controlpath_id=Fields(
            cpid_type='PCI', cpid_info=json.dumps(values['cpid'])
        ),
        deployable_list=deployables,
    )


def _deployable(values: dict[str, Any], functions: list[Any]) -> Fields:
    return Fields(
        num_accelerators=values.get('accelerators', len(values['handles'])),
        attribute_list=[
            Fields(key=key, value=value)
            for key, value in values['attributes'] + functions
        ],
        attach_handle_list=[
            Fields(attach_type=kind, attach_info=json.dumps(info))
            for kind, info in values['handles']
        ],
    )


class Plain:
    """A driver that only finds devices."""

    name = 'plain'

    def discover(self) -> list[Fields]:
        acts.act(f'discover-{self.name}')
        return [
            _device(each)
            for each in json.loads(acts.told('devices') or '[]')
            if each['by'] == self.name
        ]


class FPGA(Plain):
    name = 'fpga'

    def program(self, controlpath_id: Any, image: str) -> bool:
        acts.note(['program', controlpath_id, image])
        acts.act('program')
        reported = acts.told('reports')
        if reported:
            (acts.DIRECTORY / 'function').write_text(reported)
        if acts.told('program') == 'lose':
            (acts.DIRECTORY / 'devices').write_text('[]')
        return acts.told('program') != 'false'

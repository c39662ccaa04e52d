# SPDX-License-Identifier: Apache-2.0

"""ARQs in the form of Cyborg's answers."""

from __future__ import annotations

from typing import Any
import uuid


def arq(
    kind: str,
    address: str,
    hostname: str,
    instance_uuid: str | None = None,
    **info: str,
) -> dict[str, Any]:
    """Make an ARQ in the form of Cyborg's answers.

    :param kind: PCI or MDEV
    :param address: the PCI address of the function, or of the mdev's parent
    :param hostname: the host that it is bound to
    :param instance_uuid: the instance that it is bound to
    :param info: what else attach_handle_info has
    """
    domain, bus, rest = address.split(':')
    device, function = rest.split('.')
    return {
        'uuid': str(uuid.uuid4()),
        'state': 'Bound',
        'device_profile_name': 'crypto',
        'device_profile_group_id': 0,
        'hostname': hostname,
        'device_rp_uuid': str(uuid.uuid4()),
        'instance_uuid': instance_uuid,
        'attach_handle_uuid': str(uuid.uuid4()),
        'attach_handle_type': kind,
        'attach_handle_info': {
            'domain': domain,
            'bus': bus,
            'device': device,
            'function': function,
            **info,
        },
    }

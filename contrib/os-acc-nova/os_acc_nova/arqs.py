# SPDX-License-Identifier: Apache-2.0

"""ARQs as Nova gives them, and what Cyborg says about them."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
import logging
from typing import Any

from nova import context as nova_context
from nova.accelerator import cyborg
from nova.compute import task_states

from os_acc import exception
from os_acc import log
from os_acc import nova as calls
from os_acc import objects
from os_acc_nova import accelerators

LOG = logging.getLogger(__name__)

#: An ARQ, as Nova passes it on from Cyborg's REST API.
ARQ = Mapping[str, Any]


def of_ports(network_info: Any) -> dict[str, str]:
    """Return the ARQs that belong to network ports.

    Nova's network code writes them into the binding profile of the port
    (get_arq_pci_device_profile in nova/accelerator/cyborg.py).

    :returns: the UUID of the port, by the UUID of its ARQ
    """
    found = {}
    for vif in network_info or ():
        arq_uuid = (vif.get('profile') or {}).get('arq_uuid')
        if arq_uuid:
            found[arq_uuid] = vif['id']
    return found


def with_ports(
    context: Any,
    instance_uuid: str,
    arqs_from_nova: Sequence[ARQ] | None,
    ports: Mapping[str, str],
    known: Collection[str],
) -> Sequence[ARQ]:
    """Add the ARQs of ports, which Nova gives in some operations only.

    Nova gives them in a hard reboot, and not in a create (_build_resources in
    nova/compute/manager.py).

    :param arqs_from_nova: the ARQs that Nova gave; None: none, and Cyborg is
        not asked
    :param ports: see of_ports()
    :param known: the UUIDs of the ARQs that have a VAN already
    :returns: the ARQs that Nova gave, and those of ports without a VAN
    :raises AcceleratorRequestOpFailed: if Cyborg does not answer
    """
    if arqs_from_nova is None:
        return ()
    missing = (
        ports.keys() - {arq['uuid'] for arq in arqs_from_nova} - set(known)
    )
    if not missing:
        return arqs_from_nova
    client = cyborg.get_client(context)
    found = client.get_arqs_for_instance(instance_uuid)
    return [*arqs_from_nova, *(arq for arq in found if arq['uuid'] in missing)]


def to_requests(
    context: Any, arqs: Sequence[ARQ], ports: Mapping[str, str]
) -> list[objects.AcceleratorRequest]:
    """Make requests from ARQs, with the functions of their device profiles.

    :raises InvalidRequest, ARQNotBound: see os_acc.nova.requests
    :raises DeviceProfileError: if Cyborg does not answer, or does not know
        the profile
    """
    if not arqs or not accelerators.programs():
        return calls.requests(arqs, ports)
    client = cyborg.get_client(context)
    groups: dict[str, Any] = {}
    for arq in arqs:
        name = arq['device_profile_name']
        if name not in groups:
            groups[name] = client.get_device_profile_groups(name)
    return calls.requests(arqs, ports, groups)


def delete_after_restart(context: Any, instance: Any) -> None:
    """Delete the ARQs of an instance if Nova itself has no token for Cyborg.

    When nova-compute starts, it repeats deletes that were interrupted, in a
    context without a token (_init_instance in nova/compute/manager.py). Its
    own call of Cyborg then fails, and would leave the ARQs bound forever. So
    they are deleted as Nova's service user. An error is only logged.

    :param context: the context of the delete
    :param instance: Nova's Instance. Only an instance that is being deleted
        counts: the ARQs of an evacuated one belong to the guest on its new
        host
    """
    if (
        instance.task_state != task_states.DELETING
        or context.auth_token is not None
        or not instance.flavor.extra_specs.get('accel:device_profile')
    ):
        return
    logger = log.about(LOG, instance.uuid)
    try:
        client = cyborg.get_client(
            nova_context.get_nova_service_user_context()
        )
        client.delete_arqs_for_instance(instance.uuid)
    except Exception as err:
        logger.error(
            'its ARQs were not deleted from Cyborg: %s. Nova has no token of '
            'the user after a restart; its group [service_user] must be set',
            exception.describe(err),
        )
    else:
        logger.info(
            'its ARQs were deleted from Cyborg, because the delete had been '
            'interrupted and Nova has no token of the user any more'
        )

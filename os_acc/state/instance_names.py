# SPDX-License-Identifier: Apache-2.0

"""The UUIDs of instances that have only a name, and of their requests.

Without OpenStack, nobody gives an instance a UUID. os-acc derives one from the
instance's name (RFC 4122, version 5), so that the same name always means the
same instance. A name that begins with HOST means a service of the host itself.
An attachment of the command ``cni-like`` is an instance too; its UUID comes
from another namespace, so no name leads to it.
"""

from __future__ import annotations

import json
import re
import uuid

from os_acc import exception
from os_acc.texts import forms

#: The namespaces never change: the UUIDs are in journals.
INSTANCES = uuid.UUID('95cfe13a-41d1-4b79-8ce3-2922b1cb9532')
ATTACHMENTS = uuid.UUID('5ffb849d-4b6d-4cdd-b81f-ef2138d28b32')

#: The beginning of the name of a service of the host itself.
HOST = 'host:'

#: The longest name of an instance, in characters.
LONGEST = 255

_LIKE_A_UUID = re.compile(r'[{]?[0-9a-f-]{30,40}[}]?', re.I | re.ASCII)


def instance_uuid(name: str) -> str:
    """Return the UUID of an instance.

    :param name: any name; a UUID, in any of its usual forms, stays this UUID
    """
    if (given := forms.uuid(name)) is not None:
        return given
    if _LIKE_A_UUID.fullmatch(name):
        _refuse(name, 'a UUID, or a name that does not look like one')
    if not name.strip() or len(name) > LONGEST or not name.isprintable():
        _refuse(
            name, f'a UUID, or a name of 1 to {LONGEST} printable characters'
        )
    if name.startswith(HOST) and not name.removeprefix(HOST).strip():
        _refuse(name, f'the name of a service after {HOST}, such as host:ovs')
    return str(uuid.uuid5(INSTANCES, name))


def host_service(instance_uuid: str, name: str | None) -> str | None:
    """Say whether an instance is a service of the host itself.

    The UUID counts, because a user can give a guest any name.

    :returns: the name, such as host:ovs; None: it is not
    """
    if name is None or not name.startswith(HOST) or not name.isprintable():
        return None
    return name if str(uuid.uuid5(INSTANCES, name)) == instance_uuid else None


def attachment_uuid(network: str, container: str, interface: str) -> str:
    """Return the UUID of an attachment of cni-like.

    :param container: CNI_CONTAINERID
    :param interface: CNI_IFNAME
    """
    # JSON keeps the three apart, whatever characters they have.
    text = json.dumps([network, container, interface])
    return str(uuid.uuid5(ATTACHMENTS, text))


def request_uuid(instance: str, position: int) -> str:
    """Return the UUID of a request that has none.

    :param position: of the request among those of the instance, from 0
    """
    return str(uuid.uuid5(uuid.UUID(instance), str(position)))


def _refuse(name: str, expected: str) -> None:
    raise exception.InvalidRequest(
        subject='instance', field='uuid', value=name, expected=expected
    )

# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
"""Cyborg's REST API v2, as far as os-acc calls it.

openstacksdk's objects are not used: their to_dict() leaves out
attach_handle_uuid, which is the UUID of a mediated device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from typing import Any

from os_acc import exception

if TYPE_CHECKING:
    from keystoneauth1 import adapter

#: Seconds after which a request is given up.
TIMEOUT = 60.0


class API:
    """Calls Cyborg.

    :param adapter: see os_acc.cyborg.connections. Its user must be an
        administrator to see the ARQs of all projects
    """

    def __init__(self, adapter: adapter.Adapter) -> None:
        self._adapter = adapter

    def arqs(self, instance_uuid: str | None = None) -> list[dict[str, Any]]:
        """List ARQs in all states.

        :param instance_uuid: only those of an instance; None: all that the
            user may see
        :raises RemoteServiceError: if Cyborg does not answer. It answers 404
            if the attach handle of any bound ARQ is gone from its database
        """
        parameters = {'instance': instance_uuid} if instance_uuid else {}
        return self._list('/accelerator_requests', 'arqs', parameters)

    def profile_groups(self, name: str) -> list[dict[str, str]]:
        """Return the groups of a device profile.

        :raises RemoteServiceError: if Cyborg does not answer, or there is no
            such profile
        """
        found = self._list(
            '/device_profiles', 'device_profiles', {'name': name}
        )
        for profile in found:
            if profile.get('name') == name:
                groups: list[dict[str, str]] = profile['groups']
                return groups
        raise exception.RemoteServiceError(
            service='accelerator', reason=f'it has no device profile {name!r}'
        )

    def deployables(self) -> list[dict[str, Any]]:
        """List the deployables of all hosts.

        :raises RemoteServiceError: if Cyborg does not answer
        """
        return self._list('/deployables', 'deployables', {})

    def _list(
        self, path: str, key: str, parameters: Mapping[str, str]
    ) -> list[dict[str, Any]]:
        try:
            answer = self._adapter.get(
                path,
                params=dict(parameters),
                timeout=TIMEOUT,
                raise_exc=False,
            )
        except Exception as err:
            raise exception.RemoteServiceError(
                service='accelerator', reason=exception.describe(err)
            ) from err
        if answer.status_code != 200:
            raise exception.RemoteServiceError(
                service='accelerator',
                reason=f'GET {path}: HTTP {answer.status_code}: '
                f'{answer.text:.300}',
            )
        try:
            found: list[dict[str, Any]] = answer.json()[key]
        except (ValueError, KeyError, TypeError) as err:
            raise exception.RemoteServiceError(
                service='accelerator',
                reason=f'GET {path}: the answer has no {key!r}',
            ) from err
        return found

# SPDX-License-Identifier: Apache-2.0
"""Cyborg's REST API v2, as far as os-acc calls it.

openstacksdk's objects are not used: their to_dict() leaves out
attach_handle_uuid, which is the UUID of a mediated device.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Mapping
import re
from typing import TYPE_CHECKING
from typing import Any

from os_acc import exception

if TYPE_CHECKING:
    from keystoneauth1 import adapter

#: The role that sees the ARQs of all projects (admin_api in
#: cyborg/policies/base.py).
ADMIN = 'admin'

_ARQS = '/accelerator_requests'

# "AttachHandle not found with id=7": attach_handle_get_by_id in
# cyborg/db/sqlalchemy/api.py.
_HANDLE_GONE = re.compile(r'Attach ?Handle not found(?: with id=(\d+))?', re.I)


class BoundHandleGone(exception.RemoteServiceError):
    """The attach handle of a bound ARQ is gone from Cyborg's database.

    Cyborg then answers HTTP 404 when ARQs are listed, for all instances.

    :ivar handle_id: its id in the table attach_handles; None: unknown
    """

    def __init__(self, handle_id: str | None) -> None:
        self.handle_id = handle_id
        which = f' (id {handle_id} of its table attach_handles)' * (
            handle_id is not None
        )
        super().__init__(
            service='accelerator',
            reason='it cannot list the ARQs of any instance, because the '
            f'attach handle of a bound ARQ{which} is gone from its database. '
            'os-acc cyborg check says what to do',
        )


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
        :raises BoundHandleGone: if the attach handle of any bound ARQ is gone
            from Cyborg's database
        :raises RemoteServiceError: if Cyborg does not answer
        """
        parameters = {'instance': instance_uuid} if instance_uuid else {}
        found = self._list(_ARQS, 'arqs', parameters)
        # An earlier Cyborg may not know the parameter.
        return [
            arq
            for arq in found
            if instance_uuid in (None, arq.get('instance_uuid'))
        ]

    def arq(self, uuid: str) -> dict[str, Any] | None:
        """Read one ARQ; None: there is no such ARQ.

        This also works while the attach handle of another ARQ is gone.

        :raises BoundHandleGone: if the attach handle of this ARQ is gone
        :raises RemoteServiceError: if Cyborg does not answer
        """
        path = f'{_ARQS}/{uuid}'
        answer = self._get(path, {}, (200, 404))
        if answer.status_code == 404:
            return None
        return _content(path, answer)

    def sees_all(self) -> bool:
        """Say whether the user may see the ARQs of all projects.

        Cyborg leaves out the ARQs of other projects if the user is not an
        administrator.

        :returns: True also if the authentication is not by Keystone
        :raises RemoteServiceError: if Keystone refuses the user
        """
        try:
            auth: Any = self._adapter.auth or self._adapter.session.auth
            if not hasattr(auth, 'get_access'):
                return True
            roles = auth.get_access(self._adapter.session).role_names
        except Exception as err:
            raise exception.RemoteServiceError(
                service='identity', reason=exception.describe(err)
            ) from err
        return ADMIN in roles

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
                groups: list[dict[str, str]] = profile.get('groups', [])
                return groups
        raise _failure(f'it has no device profile {name!r}')

    def deployables(self) -> list[dict[str, Any]]:
        """List the deployables of all hosts.

        :raises RemoteServiceError: if Cyborg does not answer
        """
        return self._list('/deployables', 'deployables', {})

    def devices(self) -> list[dict[str, Any]]:
        """List the devices of all hosts.

        :raises RemoteServiceError: if Cyborg does not answer
        """
        return self._list('/devices', 'devices', {})

    def _list(
        self, path: str, key: str, parameters: Mapping[str, str]
    ) -> list[dict[str, Any]]:
        answer = self._get(path, parameters, (200,))
        content = _content(path, answer)
        found: Any = content.get(key)
        if not isinstance(found, list) or not all(
            isinstance(each, dict) for each in found
        ):
            raise _failure(f'GET {path}: the answer has no list {key!r}')
        listed: list[dict[str, Any]] = found
        return listed

    def _get(
        self,
        path: str,
        parameters: Mapping[str, str],
        allowed: Collection[int],
    ) -> Any:
        try:
            answer = self._adapter.get(
                path,
                params=dict(parameters),
                raise_exc=False,
            )
        except Exception as err:
            raise _failure(exception.describe(err)) from err
        if answer.status_code == 404:
            gone = _HANDLE_GONE.search(answer.text)
            if gone is not None:
                raise BoundHandleGone(gone[1])
        if answer.status_code not in allowed:
            text = ' '.join(answer.text.split())
            raise _failure(
                f'GET {path}: HTTP {answer.status_code}: {text:.300}'
            )
        return answer


def _content(path: str, answer: Any) -> dict[str, Any]:
    try:
        found = answer.json()
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _failure(f'GET {path}: the answer is not the JSON of Cyborg')
    return found


def _failure(reason: str) -> exception.RemoteServiceError:
    return exception.RemoteServiceError(service='accelerator', reason=reason)

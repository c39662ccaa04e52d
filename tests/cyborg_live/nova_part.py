# SPDX-License-Identifier: Apache-2.0

"""What Nova does with Cyborg and Placement for a server's accelerators."""

from __future__ import annotations

from collections.abc import Mapping
import json
from typing import Any
import uuid

import catalog
from keystoneauth1 import adapter
from keystoneauth1 import service_token
from keystoneauth1 import session
from keystoneauth1.identity import v3
import layout
import processes
import vendor
import views

from os_acc.cyborg import names

#: Group of a device profile.
Group = Mapping[str, str]
#: In these states Cyborg has ended the binding of an ARQ.
RESOLVED = ('Bound', 'BindFailed', 'Deleting')


def group(resource_class: str, count: int = 1, **more: str) -> Group:
    """Return a group of a device profile.

    :param more: function_id or bitstream_id, for accel:function_id or
        accel:bitstream_id
    """
    return {
        f'resources:{resource_class}': str(count),
        **{f'accel:{key}': value for key, value in more.items()},
    }


def _password(user: str, project: str) -> v3.Password:
    return v3.Password(**layout.cloud(user, project)['auth'])


class Nova(views.Views):
    """Binds and deletes ARQs as Nova does, and looks at them as admin.

    Cyborg takes such requests with the token of the user only if they have a
    token of a service too.
    """

    def __init__(self) -> None:
        super().__init__()
        self._instances: set[str] = set()
        both = service_token.ServiceTokenAuthWrapper(
            user_auth=_password(catalog.DEMO, catalog.DEMO),
            service_auth=_password('nova', 'service'),
        )
        self._cyborg = _adapter(both, 'accelerator')
        self._placement = _adapter(
            _password('nova', 'service'), 'placement', microversion='1.36'
        )

    def profile(self, *groups: Group) -> str:
        """Make a device profile and return its name."""
        name = f'profile-{uuid.uuid4().hex[:8]}'
        made = self.admin.accelerator.post(
            '/device_profiles', json=[{'name': name, 'groups': list(groups)}]
        )
        assert made.status_code == 201, made.text
        return name

    def boot(self, *groups: Group, host: str = layout.HOST) -> str:
        """Bind ARQs for a new instance, and wait until they are bound.

        :param host: the host that they are bound to
        :returns: the UUID of the instance
        """
        instance = str(uuid.uuid4())
        arqs = self.bind(instance, *groups, host=host)
        assert {arq['state'] for arq in arqs} == {'Bound'}, arqs
        return instance

    def bind(
        self, instance: str, *groups: Group, host: str = layout.HOST
    ) -> list[dict[str, Any]]:
        """Allocate, make and bind ARQs.

        :returns: them, as soon as all are bound or have failed
        """
        self._instances.add(instance)
        name = self.profile(*groups)
        providers = self._claim(instance, groups)
        arqs = self.create_arqs(name)
        patches = {
            arq['uuid']: [
                {'path': f'/{field}', 'op': 'add', 'value': value}
                for field, value in (
                    ('hostname', host),
                    (
                        'device_rp_uuid',
                        providers[arq['device_profile_group_id']],
                    ),
                    ('instance_uuid', instance),
                )
            ]
            for arq in arqs
        }
        # Cyborg can answer with an error although it goes on.
        self._cyborg.patch('/accelerator_requests', json=patches)
        return self.wait_for_arqs(instance, len(arqs))

    def create_arqs(self, profile: str) -> list[dict[str, Any]]:
        """Make the ARQs of a device profile, in the state Initial."""
        made = self._cyborg.post(
            '/accelerator_requests', json={'device_profile_name': profile}
        )
        assert made.status_code == 201, made.text
        found: list[dict[str, Any]] = made.json()['arqs']
        return found

    def wait_for_arqs(self, instance: str, count: int) -> list[dict[str, Any]]:
        """Wait until an instance's ARQs are bound or have failed."""

        def resolved() -> list[dict[str, Any]]:
            found = self.arqs(instance)
            done = len(found) == count and all(
                arq['state'] in RESOLVED for arq in found
            )
            return found if done else []

        return processes.wait_until(f'{count} resolved ARQs', resolved)

    def unbind(self, arq: str) -> None:
        """Unbind an ARQ; it stays."""
        fields = ('hostname', 'device_rp_uuid', 'instance_uuid')
        patch = [{'path': f'/{each}', 'op': 'remove'} for each in fields]
        done = self._cyborg.patch('/accelerator_requests', json={arq: patch})
        assert done.status_code == 202, done.text

    def delete(self, instance: str) -> None:
        """Delete the ARQs and the allocation of an instance."""
        done = self._cyborg.delete(
            '/accelerator_requests', params={'instance': instance}
        )
        assert done.status_code == 204, done.text
        self._placement.delete(f'/allocations/{instance}')
        self._instances.discard(instance)

    def delete_all(self) -> None:
        """Delete the ARQs of all instances, and those of none."""
        for instance in list(self._instances):
            self.delete(instance)
        if rest := [arq['uuid'] for arq in self.arqs()]:
            done = self._cyborg.delete(
                '/accelerator_requests', params={'arqs': ','.join(rest)}
            )
            assert done.status_code == 204, done.text

    def upload(self, function: str, tool: vendor.Vendor) -> str:
        """Make the image of a bitstream.

        :param function: what it contains
        :returns: its id in Glance
        """
        image = self.admin.image.create_image(
            name=function,
            filename=tool.bitstream(function),
            disk_format='raw',
            container_format='bare',
            visibility='public',
            wait=True,
            **{'accel:function_id': function},
        )
        return str(image.id)

    def providers(self) -> dict[str, dict[str, int]]:
        """Return the totals of all resource providers of devices."""
        found = {}
        for provider in self.admin.placement.resource_providers():
            answer = self._placement.get(
                f'/resource_providers/{provider.id}/inventories'
            )
            # 404: it was deleted meanwhile
            if provider.name != layout.HOST and answer.status_code != 404:
                found[provider.name] = {
                    kind: inventory['total']
                    for kind, inventory in answer.json()['inventories'].items()
                }
        return found

    def traits(self, provider: str) -> set[str]:
        """Return the traits of a resource provider, by its name."""
        answer = self._placement.get(
            f'/resource_providers/{names.provider_uuid(provider)}/traits'
        )
        assert answer.status_code == 200, answer.text
        return set(answer.json()['traits'])

    def _claim(self, instance: str, groups: tuple[Group, ...]) -> list[str]:
        """Allocate in Placement, as Nova's scheduler does.

        :returns: the resource provider of each group
        """
        query = {'group_policy': 'none'}
        for number, each in enumerate(groups):
            query[f'resources_dp{number}'] = ','.join(
                f'{key.removeprefix("resources:")}:{value}'
                for key, value in each.items()
                if key.startswith('resources:')
            )

        def claimed() -> list[str]:
            answer = self._placement.get(
                '/allocation_candidates', params=query
            )
            assert answer.status_code == 200, answer.text
            found = answer.json()['allocation_requests']
            if not found:
                return []
            done = self._placement.put(
                f'/allocations/{instance}',
                json={
                    'allocations': found[0]['allocations'],
                    'consumer_generation': None,
                    'project_id': catalog.DEMO,
                    'user_id': catalog.DEMO,
                },
            )
            # 409: another allocation at the same time
            assert done.status_code in (204, 409), done.text
            if done.status_code == 409:
                return []
            mappings = found[0]['mappings']
            return [mappings[f'_dp{n}'][0] for n in range(len(groups))]

        return processes.wait_until(
            f'allocation of {json.dumps(groups)}', claimed
        )


def _adapter(
    auth: Any, service: str, microversion: str | None = None
) -> adapter.Adapter:
    return adapter.Adapter(
        session.Session(auth=auth),
        service_type=service,
        interface='public',
        region_name=layout.REGION,
        raise_exc=False,
        default_microversion=microversion,
    )

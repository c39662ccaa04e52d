# SPDX-License-Identifier: Apache-2.0
"""Cyborg's real conductor with a database of its own, and a Placement double.

The double refuses what Placement refuses. Cyborg's API is the real one too,
without a web server.
"""

from __future__ import annotations

from collections.abc import Callable
import json
import pathlib
import re
from typing import Any
import uuid

from cyborg import objects as cyborg_objects
from cyborg.api import app
from cyborg.api import hooks
from cyborg.common import utils
from cyborg.conductor import manager
from cyborg.conf import CONF
from cyborg.context import RequestContext
from cyborg.db.sqlalchemy import api as db
from cyborg.db.sqlalchemy import models
from cyborg.objects import ext_arq
from cyborg.objects.driver_objects import driver_device
from cyborg.objects.extarq import fpga_ext_arq
import os_resource_classes
import os_traits
from oslo_db.sqlalchemy import engines
from pecan import hooks as pecan_hooks
import webob

HOST = 'node-1.example.org'
PROJECT = '6c1e0f3d-4c52-4f4e-9f6f-1a3b7c109a5b'


class Answer:
    """An answer of Placement or of Cyborg's API. text: JSON."""

    headers: dict[str, str] = {}

    def __init__(self, status: int, text: str = 'null') -> None:
        self.status_code = status
        self.text = text
        self.ok = status < 400

    def __bool__(self) -> bool:
        return self.ok

    def json(self) -> Any:
        return json.loads(self.text)


def _answer(status: int, body: Any) -> Answer:
    return Answer(status, json.dumps(body))


class Placement:
    """A double of Placement, at Cyborg's HTTP client.

    :ivar providers: by UUID: name, parent, inventories, traits
    :ivar used: by UUID of the provider: what is allocated, by resource class
    :ivar refused: what Placement has refused, with the reason
    """

    def __init__(self) -> None:
        self.providers: dict[str, dict[str, Any]] = {}
        self.used: dict[str, dict[str, int]] = {}
        self.refused: list[str] = []
        self.classes = set(os_resource_classes.STANDARDS)
        self.traits = set(os_traits.get_traits())
        self.add('root', HOST, None)

    def add(self, key: str, name: str, parent: str | None) -> None:
        self.providers[key] = {
            'uuid': key,
            'name': name,
            'parent_provider_uuid': parent,
            'generation': 0,
            'inventories': {},
            'traits': set(),
        }

    def named(self, name: str) -> dict[str, Any] | None:
        for each in self.providers.values():
            if each['name'] == name:
                return each
        return None

    def totals(self) -> dict[str, dict[str, int]]:
        """The inventories by the name of the provider, without the host's."""
        return {
            each['name'].removeprefix(f'{HOST}_'): {
                name: inventory['total']
                for name, inventory in each['inventories'].items()
            }
            for key, each in self.providers.items()
            if key != 'root'
        }

    def get(self, url: str, **_: Any) -> Answer:
        url = url.lstrip('/')
        if found := re.fullmatch(r'resource_providers\?name=(.*)', url):
            one = self.named(found[1])
            return self._providers([one] if one else [])
        if found := re.fullmatch(r'resource_providers\?in_tree=(.*)', url):
            return self._providers(list(self.providers.values()))
        if found := re.fullmatch('resource_providers/([^/]*)/traits', url):
            one = self.providers[found[1]]
            return _answer(200, {'traits': sorted(one['traits'])})
        if found := re.fullmatch('resource_providers/([^/]*)', url):
            if found[1] not in self.providers:
                return Answer(404)
            return _answer(200, self._shown(self.providers[found[1]]))
        if found := re.fullmatch('traits/(.*)', url):
            return Answer(204 if found[1] in self.traits else 404)
        raise AssertionError(url)

    def post(self, url: str, json: Any = None, **_: Any) -> Answer:
        assert url == '/resource_providers'
        self.add(json['uuid'], json['name'], json['parent_provider_uuid'])
        return _answer(200, self._shown(self.providers[json['uuid']]))

    def put(self, url: str, json: Any = None, **_: Any) -> Answer:
        if found := re.fullmatch('/resource_classes/(.*)', url):
            assert found[1].startswith('CUSTOM_')
            self.classes.add(found[1])
            return Answer(201)
        if found := re.fullmatch('/traits/(.*)', url):
            if not re.fullmatch('CUSTOM_[A-Z0-9_]+', found[1]):
                return self._refuse(400, f'trait {found[1]}')
            self.traits.add(found[1])
            return Answer(201)
        if found := re.fullmatch('/resource_providers/([^/]*)/traits', url):
            wanted = set(json['traits'])
            if not wanted <= self.traits:
                return self._refuse(400, f'unknown traits {wanted}')
            self.providers[found[1]]['traits'] = wanted
            return _answer(200, {'traits': sorted(wanted)})
        found = re.fullmatch('/resource_providers/([^/]*)/inventories', url)
        assert found is not None, url
        return self._inventories(found[1], json['inventories'])

    def _inventories(self, key: str, inventories: Any) -> Answer:
        for name, count in self.used.get(key, {}).items():
            if inventories.get(name, {'total': 0})['total'] < count:
                return self._refuse(409, f'{count} {name} of {key} in use')
        for name, inventory in inventories.items():
            if inventory['total'] < 1 or name not in self.classes:
                return self._refuse(400, f'{name}: {inventory}')
        self.providers[key]['inventories'] = inventories
        return _answer(200, {'inventories': inventories})

    def delete(self, url: str, **_: Any) -> Answer:
        if found := re.fullmatch('/resource_providers/(.*)', url):
            if any(self.used.get(found[1], {}).values()):
                return self._refuse(409, f'{found[1]} has allocations')
            del self.providers[found[1]]
            return Answer(204)
        if found := re.fullmatch('/traits/(.*)', url):
            if any(found[1] in p['traits'] for p in self.providers.values()):
                return Answer(409)
            self.traits.discard(found[1])
            return Answer(204)
        assert url.startswith('/resource_classes/'), url
        return Answer(204)

    def _refuse(self, status: int, reason: str) -> Answer:
        self.refused.append(reason)
        return _answer(status, reason)

    def _providers(self, found: list[Any]) -> Answer:
        shown = [self._shown(each) for each in found]
        return _answer(200, {'resource_providers': shown})

    @staticmethod
    def _shown(provider: dict[str, Any]) -> dict[str, Any]:
        names = ('uuid', 'name', 'parent_provider_uuid', 'generation')
        return {name: provider[name] for name in names}


class _NoHook(pecan_hooks.PecanHook):
    """Instead of the hook that connects the API with the conductor."""


def _no_agent(*_: Any) -> None:
    raise AssertionError('the test has no agent that makes mediated devices')


class Cyborg:
    """A conductor, its database, and its API.

    :ivar calls: the paths that its API was asked for
    :ivar down: the API does not answer
    :ivar make_mdev: makes a mediated device, as the agent does at bind
    :ivar remove_mdev: removes it, as the agent does at unbind
    """

    auth = None

    def __init__(self, directory: pathlib.Path, patch: Any) -> None:
        self.placement = Placement()
        # What the agent does for a bound ARQ; a test sets both.
        self.make_mdev: Callable[..., None] = _no_agent
        self.remove_mdev: Callable[..., None] = _no_agent
        self.calls: list[str] = []
        self.down = False
        self.programmed: Any = None
        self.session = type('Session', (), {'auth': object()})()
        patch.setattr(utils, 'get_sdk_adapter', lambda *_: self.placement)
        for module in (ext_arq, fpga_ext_arq):
            patch.setattr(module, 'AgentAPI', lambda: self)
        patch.setattr(
            ext_arq.ExtARQ, 'bind_notify', classmethod(lambda *_: None)
        )
        patch.setattr(hooks, 'ConductorAPIHook', _NoHook)
        self._api = app.setup_app()
        cyborg_objects.register_all()
        engine = engines.create_engine(f'sqlite:///{directory}/cyborg.db')
        models.Base.metadata.create_all(engine)
        self.close = db.main_context_manager.patch_engine(engine)
        CONF.set_override('host', HOST)
        CONF.set_override('resource_provider_name', HOST, 'agent')
        self.context = RequestContext(is_admin=True, project_id=PROJECT)
        self.conductor = manager.ConductorManager('topic', 'conductor')

    # what the agent is asked for

    def create_vgpu_mdev(self, *arguments: Any) -> None:
        _, hostname, pci, kind, handle = arguments
        assert hostname == HOST
        self.make_mdev(pci, kind, handle)

    def remove_vgpu_mdev(self, *arguments: Any) -> None:
        _, hostname, pci, kind, handle = arguments
        assert hostname == HOST
        self.remove_mdev(pci, kind, handle)

    # the conductor

    def report(self, devices: list[driver_device.DriverDevice]) -> None:
        """Take a report, as it arrives by RPC."""
        received = [
            driver_device.DriverDevice.obj_from_primitive(
                each.obj_to_primitive()
            )
            for each in devices
        ]
        self.conductor.report_data(self.context, HOST, received)

    def bind(
        self, deployable: str, group: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """Make an ARQ for a deployable and bind it. Returns the ARQ.

        :param deployable: its name, without the host if it is os-acc's
        """
        provider = self.placement.named(
            f'{HOST}_{deployable}'
        ) or self.placement.named(deployable)
        assert provider is not None, self.placement.totals()
        (resource_class,) = provider['inventories']
        profile = cyborg_objects.DeviceProfile(
            self.context,
            name=str(uuid.uuid4()),
            groups=[{f'resources:{resource_class}': '1', **(group or {})}],
        )
        profile.create(self.context)
        made = cyborg_objects.ExtARQ(
            self.context,
            arq=cyborg_objects.ARQ(
                self.context,
                device_profile_name=profile.name,
                device_profile_group_id=0,
                project_id=PROJECT,
            ),
        )
        arq = self.conductor.arq_create(self.context, made, profile.id).arq
        used = self.placement.used.setdefault(provider['uuid'], {})
        used[resource_class] = used.get(resource_class, 0) + 1
        self.conductor.arq_apply_patch(
            self.context,
            {arq.uuid: [{'op': 'add'}]},
            {
                arq.uuid: {
                    'hostname': HOST,
                    'device_rp_uuid': provider['uuid'],
                    'instance_uuid': str(uuid.uuid4()),
                    'project_id': PROJECT,
                }
            },
        )
        return self.arq(arq.uuid)

    def delete(self, arq: dict[str, Any]) -> None:
        """Delete an ARQ and its allocation."""
        provider = arq['device_rp_uuid']
        cyborg_objects.ExtARQ.delete_by_uuid(self.context, [arq['uuid']])
        for name in self.placement.used[provider]:
            self.placement.used[provider][name] -= 1

    def handles(self, deployable: str) -> list[dict[str, str]]:
        """The attach handles that Cyborg has of a deployable."""
        found = cyborg_objects.Deployable.get_by_name(
            self.context, f'{HOST}_{deployable}'
        )
        handles = cyborg_objects.AttachHandle.get_ah_list_by_deployable_id(
            self.context, found.id
        )
        return [json.loads(each.attach_info) for each in handles]

    # the API, as an adapter of keystoneauth

    def get(self, path: str, **_: Any) -> Answer:
        self.calls.append(path)
        if self.down:
            raise ConnectionError('nobody answers')
        headers = {'X-Roles': 'admin', 'X-Project-Id': PROJECT}
        request = webob.Request.blank(f'/v2{path}', headers=headers)
        answer = request.get_response(self._api)
        return Answer(answer.status_int, answer.text)

    def arq(self, uuid: str) -> dict[str, Any]:
        found = cyborg_objects.ExtARQ.get(self.context, uuid).arq.as_dict()
        assert isinstance(found, dict)
        return found

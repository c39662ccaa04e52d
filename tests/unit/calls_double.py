# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Stands in for the calls of os-acc that the compute driver needs.

Where os-acc has them, nothing is replaced.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import types

from lxml import etree
import pytest

import os_acc
from os_acc import objects

_initialize = os_acc.initialize


class _Device:
    def __init__(self, xml: str) -> None:
        self.xml = xml

    def format_dom(self) -> etree._Element:
        return etree.fromstring(self.xml)


def _requests(accel_info, port_arq_uuids=None, profile_groups=None):
    made = objects.AcceleratorRequest.from_arqs(accel_info)
    for request in made:
        request.port_uuid = (port_arq_uuids or {}).get(request.uuid)
        if profile_groups is not None:
            groups = profile_groups[request.device_profile_name]
            group = groups[request.device_profile_group_id]
            request.function_id = group.get('accel:function_id')
    return made


def _instance_info(instance):
    return objects.InstanceInfo(uuid=instance.uuid, name=instance.name)


@contextlib.contextmanager
def _plugged(instance, wanted, is_running=None):
    if not wanted:
        yield objects.VANList(objects=[])
        return
    vans = os_acc.plug(_instance_info(instance), wanted)
    try:
        yield vans
    except BaseException:
        if is_running is None or not is_running():
            with contextlib.suppress(os_acc.exception.UnplugException):
                os_acc.unplug(_instance_info(instance), vans)
        raise


def _devices(vans, port_arq_uuids=()):
    return [
        _Device(van.guest_config)
        for van in vans
        if van.guest_config is not None and van.uuid not in port_arq_uuids
    ]


def _replug(instance_info):
    entries = os_acc._host.journal.entries(instance_info.uuid)
    requests = [e.request for e in entries if e.van.state == 'plugged']
    return os_acc.plug(instance_info, requests) if requests else []


def _release_orphans(known_instance_uuids, minimum_age):
    found = [
        van
        for van in os_acc.get_vans()
        if van.instance_uuid not in known_instance_uuids
    ]
    for van in found:
        os_acc.unplug(objects.InstanceInfo(uuid=van.instance_uuid), [van])
    return objects.VANList(objects=found)


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add what is missing."""
    if importlib.util.find_spec('os_acc.nova') is None:
        module = types.ModuleType('os_acc.nova')
        module.__dict__.update(
            requests=_requests,
            instance_info=_instance_info,
            plugged=_plugged,
            devices=_devices,
        )
        monkeypatch.setitem(sys.modules, 'os_acc.nova', module)
        monkeypatch.setattr(os_acc, 'nova', module, raising=False)
    if not hasattr(os_acc, 'replug'):
        monkeypatch.setattr(os_acc, 'replug', _replug, raising=False)
        monkeypatch.setattr(
            os_acc, 'release_orphans', _release_orphans, raising=False
        )
        monkeypatch.setattr(
            os_acc, 'initialize', lambda owner=None, **kw: _initialize(**kw)
        )

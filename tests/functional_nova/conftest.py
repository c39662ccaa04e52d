# SPDX-License-Identifier: Apache-2.0

"""The compute driver in Nova's real code, with os-acc's real drivers.

The devices are a generated sysfs. Of Nova's libvirt driver, only the methods
are replaced that would need libvirtd, images and networks; the domains are
kept in a dict. nova_tests.py runs the tests on Nova's own test framework.
"""

from __future__ import annotations

from collections.abc import Iterator
import json
import pathlib
import types
from typing import Any
from unittest import mock
import uuid

import arqs
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects as nova_objects
from nova.compute import power_state
import nova.conf
from nova.virt.libvirt import config as vconfig
from nova.virt.libvirt import driver as libvirt_driver
import nova.virt.os_acc
import pytest

import acc_plug_libvirt
import os_acc
from os_acc.privileged import context
from os_acc.privileged import privsep
from os_acc.testing.kernel import Kernel

PF = '0000:01:00.0'
GPU = '0000:02:00.0'
NODE = 'node-1'
NODE_UUID = 'c0de0000-0000-4000-8000-000000000001'
#: The resource provider of the PF.
PROVIDER = 'c0de0000-0000-4000-8000-000000000002'
CONF = nova.conf.CONF
nova_objects.register_all()
# These run on Nova's own test framework, which nova_tests.py prepares.
collect_ignore = ['operations']


class Domain:
    def __init__(self, instance: Any, xml: str) -> None:
        self.uuid = instance.uuid
        self.xml = xml
        self.state = power_state.RUNNING

    def get_config(self) -> vconfig.LibvirtConfigGuest:
        found = vconfig.LibvirtConfigGuest()
        found.parse_str(self.xml)
        return found

    def get_xml_desc(self) -> str:
        return self.xml

    def get_info(self, host: Any) -> Any:
        return types.SimpleNamespace(state=self.state)


class Hypervisor:
    """Nova's nova.virt.libvirt.host.Host: the domains."""

    def __init__(self) -> None:
        self.domains: dict[str, Domain] = {}

    def initialize(self) -> None:
        pass

    def get_hostname(self) -> str:
        return NODE

    def get_node_uuid(self) -> str:
        return NODE_UUID

    def delete_secret(self, kind: str, uuid: str) -> None:
        pass

    def get_guest(self, instance: Any) -> Domain:
        if instance.uuid not in self.domains:
            raise nova_exception.InstanceNotFound(instance_id=instance.uuid)
        return self.domains[instance.uuid]

    def list_guests(self, only_running: bool = True) -> list[Domain]:
        return list(self.domains.values())


class Site:
    """One nova-compute with two kinds of devices.

    :ivar profiles: Cyborg's device profiles, by name
    :ivar fail_start: the error with which the next guest fails to start
    """

    def __init__(self, kernel: Kernel, patch: Any, path: pathlib.Path) -> None:
        self.kernel = kernel
        self.hypervisor = Hypervisor()
        self.profiles: dict[str, list[dict[str, str]]] = {'crypto': [{}]}
        self.fail_start: Exception | None = None
        self.context = nova_context.get_admin_context()
        self._replace(patch)
        CONF.set_override('instances_path', str(path / 'instances'))
        self.driver = self.start()

    def _replace(self, patch: Any) -> None:
        base = libvirt_driver.LibvirtDriver
        for name in (
            '__init__',
            'init_host',
            '_add_ephemeral_encryption_driver_bdm_attrs',
            '_allocate_mdevs',
            '_ensure_console_log_for_instance',
            '_get_existing_guest_config',
            '_register_undefined_instance_details',
            '_validate_pinning_configuration',
            '_validate_vtpm_configuration',
            '_validate_mem_encryption_configuration',
            '_register_all_undefined_instance_details',
            '_warn_if_nova_managed',
            '_create_configdrive',
            '_build_device_metadata',
            'plug_vifs',
        ):
            patch.setattr(base, name, mock.Mock(return_value=None))
        base._allocate_mdevs.return_value = []
        patch.setattr(base, '_create_image', lambda *a, **k: (False, False))
        # Nova's own part of the domain is empty, except for its mdevs.
        patch.setattr(base, '_get_guest_config', _guest_config)
        patch.setattr(base, '_destroy', self._destroy)
        patch.setattr(base, '_cleanup', self._cleanup)
        patch.setattr(base, '_create_guest', self._create_guest)
        # os-acc asks libvirtd itself.
        patch.setattr(
            acc_plug_libvirt.LibvirtPlugin,
            'has_guest',
            lambda plugin, info: info.uuid in self.hypervisor.domains,
        )
        patch.setattr(libvirt_driver.blockinfo, 'get_disk_info', _disk_info)
        patch.setattr(
            'nova.accelerator.cyborg._CyborgClient.get_device_profile_groups',
            lambda client, name: self.profiles[name],
        )

    def start(self) -> Any:
        """Start nova-compute on this host."""
        driver = nova.virt.os_acc.LibvirtDriver(mock.MagicMock())
        driver._host = self.hypervisor
        driver._device_event_handler = mock.Mock()
        driver._may_keep_vtpm = True
        driver.virtapi = mock.MagicMock()
        driver.instance_claimed_mdevs = {}
        driver.init_host(NODE)
        return driver

    def _destroy(self, instance: Any) -> None:
        if instance.uuid in self.hypervisor.domains:
            self.hypervisor.get_guest(instance).state = power_state.SHUTDOWN

    def _cleanup(self, context: Any, instance: Any, *a: Any, **k: Any) -> None:
        self.hypervisor.domains.pop(instance.uuid, None)

    def _create_guest(
        self, context: Any, xml: str, instance: Any, *a: Any, **k: Any
    ) -> Domain:
        if self.fail_start is not None:
            raise self.fail_start
        made = Domain(instance, xml)
        self.hypervisor.domains[instance.uuid] = made
        return made

    def instance(self, **extra_specs: str) -> Any:
        flavor = nova_objects.Flavor(extra_specs=extra_specs)
        return nova_objects.Instance(
            uuid=str(uuid.uuid4()),
            id=1,
            display_name='web-1',
            project_id='project',
            image_ref='',
            flavor=flavor,
            task_state=None,
            system_metadata={},
        )

    def spawn(
        self,
        instance: Any,
        arqs: list[Any],
        resources: dict[str, int] | None = None,
    ) -> None:
        """Create a guest.

        :param resources: what Placement has allocated of the PF
        """
        self.driver.spawn(
            self.context,
            instance,
            instance.image_meta,
            None,
            None,
            {PROVIDER: {'resources': resources}} if resources else {},
            network_info=[],
            accel_info=arqs,
        )

    def hard_reboot(self, instance: Any, arqs: list[Any]) -> None:
        self.driver.reboot(self.context, instance, [], 'HARD', accel_info=arqs)

    def xml(self, instance: Any) -> str:
        return self.hypervisor.get_guest(instance).xml


def _disk_info(*args: Any, **kwargs: Any) -> dict[str, Any]:
    return {'mapping': {}}


def _guest_config(
    driver: Any, instance: Any, *args: Any
) -> vconfig.LibvirtConfigGuest:
    mdevs, accel_info = args[6], args[7]
    assert accel_info is None
    guest = vconfig.LibvirtConfigGuest()
    guest.name = 'instance-00000001'
    guest.uuid = instance.uuid
    guest.virt_type = 'kvm'
    guest.memory = 1024
    guest.os_type = 'hvm'
    for each in mdevs or ():
        device = vconfig.LibvirtConfigGuestHostdevMDEV()
        device.uuid = each
        guest.add_device(device)
    return guest


def _arq(
    instance: Any, kind: str, address: str, **info: str
) -> dict[str, Any]:
    return arqs.arq(kind, address, NODE, instance.uuid, **info)


@pytest.fixture
def vf() -> Any:
    """Make the ARQ of a VF of the PF."""
    return lambda instance, number=1: _arq(
        instance, 'PCI', f'0000:01:00.{number}'
    )


@pytest.fixture
def vgpu() -> Any:
    """Make the ARQ of an mdev of the GPU."""
    return lambda instance: _arq(instance, 'MDEV', GPU, asked_type='acme-1')


@pytest.fixture
def site(tmp_path, monkeypatch) -> Iterator[Site]:
    CONF([], project='nova', default_config_files=[])
    CONF.set_override('state_path', str(tmp_path / 'nova'))
    kernel = Kernel(tmp_path / 'host')
    kernel.install(monkeypatch)
    kernel.add_function(PF, '8086:4940', 0x0B4000, 'qat', totalvfs=4)
    kernel.add_function(GPU, '10de:1eb8', 0x030200, numa=1)
    kernel.add_mdev_parent(
        (kernel.pci / 'devices' / GPU).resolve(), {'acme-1': 1}, 4
    )
    monkeypatch.setattr(context, 'start_in_background', lambda: None)
    monkeypatch.setattr(os_acc, '_host', None)
    options = {
        'device_spec': [
            json.dumps({'address': PF, 'num_vfs': 4}),
            json.dumps({'address': GPU}),
        ],
        'device_spec_dir': str(tmp_path / 'specs'),
        'release_timeout': 0.2,
        'device_timeout': 2.0,
    }
    for name, value in options.items():
        CONF.set_override(name, value, 'os_acc')
    (tmp_path / 'nova').mkdir()
    made = Site(kernel, monkeypatch, tmp_path)
    made.driver.process_instances_at_startup(made.context, [])
    yield made
    if os_acc._host is not None:
        os_acc._host.close()
    privsep.run_here(False)
    for name in options:
        CONF.clear_override(name, 'os_acc')
    for name in ('host', 'state_path'):
        CONF.clear_default(name, 'os_acc')
    CONF.reset()

# SPDX-License-Identifier: Apache-2.0

"""A stand-in for Nova: as much of it as the compute driver extends.

The classes and methods have the names, the parameters and the order of calls
of Nova 34. What they do is reduced to a domain in a dict. The tests with
Nova itself are in tests/functional_nova.
"""

from __future__ import annotations

import importlib
import pathlib
import sys
import types
from typing import Any

from lxml import etree
import pytest

CONTRIB = pathlib.Path(__file__).parents[2] / 'contrib' / 'os-acc-nova'

RUNNING, SHUTDOWN = 1, 4
#: The UUID of the compute node.
NODE = 'c0de0000-0000-4000-8000-000000000001'


class NovaException(Exception):
    msg_fmt = 'An unknown exception occurred.'
    code = 500

    def __init__(self, message: str | None = None, **kwargs: Any) -> None:
        super().__init__(message or self.msg_fmt % kwargs)


class BuildAbortException(NovaException):
    msg_fmt = 'Build of instance %(instance_uuid)s aborted: %(reason)s'


class InstanceNotFound(NovaException):
    msg_fmt = 'Instance %(instance_id)s could not be found.'


class InvalidConfiguration(NovaException):
    pass


class InstanceFaultRollback(NovaException):
    def __init__(self, inner_exception: NovaException) -> None:
        super().__init__(f'Instance rollback performed: {inner_exception}')
        self.inner_exception = inner_exception


class InstanceSuspendFailure(NovaException):
    msg_fmt = 'Failed to suspend instance: %(reason)s'


class MigrationNotFound(NovaException):
    msg_fmt = 'Migration %(migration_id)s could not be found.'


class MigrationPreCheckError(NovaException):
    msg_fmt = 'Migration pre-check error: %(reason)s'


class ConsumerAllocationRetrievalFailed(NovaException):
    msg_fmt = 'Failed to retrieve allocations: %(error)s'


class ResourceProviderAllocationRetrievalFailed(NovaException):
    msg_fmt = 'Failed to retrieve allocations of %(rp_uuid)s: %(error)s'


class ResourceProviderNotFound(NovaException):
    msg_fmt = 'No such resource provider %(name_or_uuid)s.'


class ResourceProviderRetrievalFailed(NovaException):
    msg_fmt = 'Failed to get resource provider %(uuid)s'


class ReshapeNeeded(NovaException):
    pass


class ReshapeFailed(NovaException):
    msg_fmt = 'Data migration failed: %(error)s'


class DeviceProfileError(NovaException):
    msg_fmt = 'Device profile name %(name)s: %(msg)s'


class AcceleratorRequestOpFailed(NovaException):
    msg_fmt = 'Failed to %(op)s accelerator requests: %(msg)s'


class Placement:
    """Nova's client of Placement.

    :ivar allocations: of every instance, by the UUID of the provider; an
        exception is raised
    :ivar names: the names of providers, by UUID
    :ivar used: the allocations from each provider, by its UUID; an exception
        is raised
    :ivar answers: what get() answers, by the path
    """

    def __init__(self) -> None:
        self.allocations: dict[str, Any] | Exception = {}
        self.names: dict[str, str] = {NODE: 'node-1'}
        self.used: dict[str, Any] | Exception = {}
        self.answers: dict[str, Any] = {}

    def get_resource_provider_name(self, context, uuid):
        if uuid not in self.names:
            raise ResourceProviderNotFound(name_or_uuid=uuid)
        return self.names[uuid]

    def get_allocations_for_resource_provider(self, context, uuid):
        if isinstance(self.used, Exception):
            raise self.used
        found = self.used.get(uuid, {})
        return types.SimpleNamespace(allocations=found)

    def get(self, url, version, global_request_id):
        return self.answers[url]

    def get_allocs_for_consumer(self, context, consumer):
        if isinstance(self.allocations, Exception):
            raise self.allocations
        return {'allocations': self.allocations}


def service_context() -> types.SimpleNamespace:
    """The context of Nova's own user."""
    return types.SimpleNamespace(
        auth_token=None, user_auth_plugin='nova', global_id=None
    )


class BaseHostFilter:
    pass


class BaseHostWeigher:
    pass


class GuestDeviceConfig:
    def __init__(self, *, root_name: str) -> None:
        self.root_name = root_name

    def format_dom(self) -> etree._Element:
        return etree.Element(self.root_name)


class MdevConfig(GuestDeviceConfig):
    def __init__(self, uuid: str) -> None:
        super().__init__(root_name='hostdev')
        self.uuid = uuid

    def format_dom(self) -> etree._Element:
        dom = super().format_dom()
        dom.set('type', 'mdev')
        etree.SubElement(dom, 'address', uuid=self.uuid)
        return dom


class GuestConfig:
    def __init__(self) -> None:
        self.devices: list[GuestDeviceConfig] = []

    def add_device(self, device: GuestDeviceConfig) -> None:
        self.devices.append(device)

    def to_xml(self) -> str:
        root = etree.Element('domain')
        devices = etree.SubElement(root, 'devices')
        for device in self.devices:
            devices.append(device.format_dom())
        return etree.tostring(root, encoding='unicode')


class LibvirtError(Exception):
    """libvirt.libvirtError, with its code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self._code = code

    def get_error_code(self) -> int:
        return self._code


NO_DEVICE = 23


class Hypervisor:
    """nova.virt.libvirt.host.Host, of which os-acc asks for node devices.

    :ivar node_devices: by their names
    """

    def __init__(self) -> None:
        self.node_devices: dict[str, Any] = {}

    def device_lookup_by_name(self, name):
        if name not in self.node_devices:
            raise LibvirtError(f'no node device {name}', NO_DEVICE)
        return self.node_devices[name]


class Domain:
    def __init__(self, xml: str, state: int) -> None:
        self.xml = xml
        self.state = state


class LibvirtDriver:
    """nova.virt.libvirt.driver.LibvirtDriver, with domains in a dict.

    :ivar log: what was done, in order
    :ivar fail_at: the step that raises fail_with
    :ivar own_mdevs: the mdevs that Nova gives to the next instance with a
        vGPU in its flavor
    """

    def __init__(self, virtapi, read_only=False):
        self.virtapi = virtapi
        self.domains: dict[str, Domain] = {}
        self.log: list[str] = []
        self.fail_at: str | None = None
        self.fail_with: BaseException = RuntimeError('no')
        self.own_mdevs: list[str] = []
        self.warned: list[dict[str, str]] = []
        self._host = Hypervisor()

    def _do(self, step):
        self.log.append(step)
        if step == self.fail_at:
            raise self.fail_with

    def init_host(self, host):
        self._do('init_host')

    def get_available_resource(self, nodename):
        self._do('get_available_resource')
        return {}

    def get_available_nodes(self, refresh=False):
        return ['node-1']

    def cleanup_host(self, host):
        self._do('cleanup_host')

    def update_provider_tree(self, provider_tree, nodename, allocations=None):
        provider_tree.update_inventory(nodename, {'VCPU': {'total': 4}})

    def list_instance_uuids(self):
        return list(self.domains)

    def process_instances_at_startup(self, context, instances):
        self._do('process_instances_at_startup')
        return instances

    def get_info(self, instance, use_cache=True):
        if instance.uuid not in self.domains:
            raise InstanceNotFound(instance_id=instance.uuid)
        return types.SimpleNamespace(state=self.domains[instance.uuid].state)

    def spawn(
        self,
        context,
        instance,
        image_meta,
        injected_files,
        admin_password,
        allocations,
        network_info=None,
        block_device_info=None,
        power_on=True,
        accel_info=None,
    ):
        assert accel_info is None
        self._do('create image')
        mdevs, self.own_mdevs = self.own_mdevs, []
        xml = self._get_guest_xml(
            context,
            instance,
            network_info,
            {},
            image_meta,
            block_device_info=block_device_info,
            mdevs=mdevs,
            accel_info=accel_info,
        )
        self._create_guest_with_network(
            context, xml, instance, network_info, block_device_info
        )
        self._do('after boot')

    def finish_migration(
        self,
        context,
        migration,
        instance,
        disk_info,
        network_info,
        image_meta,
        resize_instance,
        allocations,
        block_device_info=None,
        power_on=True,
        share_info=None,
    ):
        self._do('create image')
        xml = self._get_guest_xml(
            context,
            instance,
            network_info,
            {},
            image_meta,
            block_device_info=block_device_info,
            mdevs=[],
            share_info=share_info,
        )
        self._create_guest_with_network(
            context, xml, instance, network_info, block_device_info
        )

    def finish_revert_migration(
        self,
        context,
        instance,
        network_info,
        migration,
        block_device_info=None,
        power_on=True,
        share_info=None,
    ):
        xml = self._get_guest_xml(
            context,
            instance,
            network_info,
            {},
            instance.image_meta,
            block_device_info=block_device_info,
            mdevs=[],
            share_info=share_info,
        )
        self._create_guest_with_network(
            context, xml, instance, network_info, block_device_info
        )

    def migrate_disk_and_power_off(
        self,
        context,
        instance,
        dest,
        flavor,
        network_info,
        block_device_info=None,
        timeout=0,
        retry_interval=0,
    ):
        self._do('migrate disk')
        self._destroy(instance)

    def confirm_migration(self, context, migration, instance, network_info):
        self._do('confirm migration')

    def check_can_live_migrate_source(
        self, context, instance, dest_check_data, block_device_info=None
    ):
        self._do('check live migration')
        return dest_check_data

    def check_source_migrate_data_at_dest(
        self, ctxt, instance, migrate_data, migration, limits, allocs
    ):
        self._do('check at dest')
        return migrate_data

    def pre_live_migration(
        self,
        context,
        instance,
        block_device_info,
        network_info,
        disk_info,
        migrate_data,
    ):
        self._do('pre live migration')
        return migrate_data

    def live_migration(
        self,
        context,
        instance,
        dest,
        post_method,
        recover_method,
        block_migration=False,
        migrate_data=None,
    ):
        self._do('live migration')

    def rollback_live_migration_at_source(
        self, context, instance, migrate_data
    ):
        self._do('rollback at source')

    def rollback_live_migration_at_destination(
        self, context, instance, network_info, block_device_info
    ):
        self.destroy(context, instance, network_info)

    def post_live_migration_at_destination(
        self,
        context,
        instance,
        network_info,
        block_migration=False,
        block_device_info=None,
    ):
        self._do('post at dest')

    def suspend(self, context, instance):
        self._do('suspend')

    def reboot(
        self,
        context,
        instance,
        network_info,
        reboot_type,
        block_device_info=None,
        bad_volumes_callback=None,
        accel_info=None,
        share_info=None,
    ):
        return self._hard_reboot(
            context,
            instance,
            network_info,
            share_info,
            block_device_info,
            accel_info,
        )

    def power_on(
        self,
        context,
        instance,
        network_info,
        block_device_info=None,
        accel_info=None,
        share_info=None,
    ):
        self._hard_reboot(
            context,
            instance,
            network_info,
            share_info,
            block_device_info,
            accel_info,
        )

    def resume_state_on_host_boot(
        self,
        context,
        instance,
        network_info,
        share_info,
        block_device_info=None,
    ):
        self._hard_reboot(
            context, instance, network_info, share_info, block_device_info
        )

    def _hard_reboot(
        self,
        context,
        instance,
        network_info,
        share_info,
        block_device_info=None,
        accel_info=None,
    ):
        assert accel_info is None
        mdevs = list(self._get_all_assigned_mediated_devices(instance))
        self.destroy(
            context,
            instance,
            network_info,
            destroy_disks=False,
            block_device_info=block_device_info,
            destroy_secrets=False,
        )
        xml = self._get_guest_xml(
            context,
            instance,
            network_info,
            {},
            instance.image_meta,
            mdevs=mdevs,
            accel_info=accel_info,
            share_info=share_info,
        )
        self._create_guest_with_network(
            context, xml, instance, network_info, block_device_info
        )

    def rescue(
        self,
        context,
        instance,
        network_info,
        image_meta,
        rescue_password,
        block_device_info,
        share_info,
    ):
        self.unrescue_xml = self.domains[instance.uuid].xml
        mdevs = list(self._get_all_assigned_mediated_devices(instance))
        xml = self._get_guest_xml(
            context,
            instance,
            network_info,
            {},
            image_meta,
            rescue={'image_id': 'rescue'},
            mdevs=mdevs,
            share_info=share_info,
        )
        self._destroy(instance)
        self._create_guest(xml, instance)

    def unrescue(self, context, instance):
        self._destroy(instance)
        self._create_guest(self.unrescue_xml, instance)

    def destroy(
        self,
        context,
        instance,
        network_info,
        block_device_info=None,
        destroy_disks=True,
        destroy_secrets=True,
    ):
        self._destroy(instance)
        self.cleanup(
            context,
            instance,
            network_info,
            block_device_info,
            destroy_disks,
            destroy_secrets=destroy_secrets,
        )

    def cleanup(
        self,
        context,
        instance,
        network_info,
        block_device_info=None,
        destroy_disks=True,
        migrate_data=None,
        destroy_vifs=True,
        destroy_secrets=True,
    ):
        self._cleanup(instance)

    def _cleanup(self, instance):
        self._do('cleanup')
        self.domains.pop(instance.uuid, None)

    def _destroy(self, instance):
        self._do('destroy')
        if instance.uuid in self.domains:
            self.domains[instance.uuid].state = SHUTDOWN

    def _create_guest_with_network(
        self, context, xml, instance, network_info, block_device_info
    ):
        try:
            self._create_guest(xml, instance)
        except Exception:
            self._cleanup(instance)
            raise

    def _create_guest(self, xml, instance):
        self.domains[instance.uuid] = Domain(xml, SHUTDOWN)
        self._do('launch')
        self.domains[instance.uuid].state = RUNNING

    def _get_guest_xml(
        self,
        context,
        instance,
        network_info,
        disk_info,
        image_meta,
        rescue=None,
        block_device_info=None,
        mdevs=None,
        accel_info=None,
        share_info=None,
        old_guest=None,
    ):
        return self._get_guest_config(
            instance,
            network_info,
            image_meta,
            disk_info,
            rescue,
            block_device_info,
            context,
            mdevs,
            accel_info,
            share_info,
            old_guest,
        ).to_xml()

    def _get_guest_config(
        self,
        instance,
        network_info,
        image_meta,
        disk_info,
        rescue=None,
        block_device_info=None,
        context=None,
        mdevs=None,
        accel_info=None,
        share_info=None,
        old_guest=None,
    ):
        assert accel_info is None
        self._do('guest config')
        guest = GuestConfig()
        for _vif in network_info or ():
            guest.add_device(GuestDeviceConfig(root_name='interface'))
        for mdev in mdevs or ():
            guest.add_device(MdevConfig(mdev))
        return guest

    def _get_all_assigned_mediated_devices(self, instance=None):
        found = {}
        for uuid, domain in self.domains.items():
            if instance is None or uuid == instance.uuid:
                root = etree.fromstring(domain.xml)
                for address in root.iter('address'):
                    if address.get('uuid'):
                        found[address.get('uuid')] = uuid
        return found

    def _get_existing_mdevs_not_assigned(self, parent, requested_types=None):
        return set(parent) - set(self._get_all_assigned_mediated_devices())

    def _warn_if_nova_managed(self, attach_handle_info):
        self.warned.append(attach_handle_info)


class LiveMigrateData:
    """nova.objects.LibvirtLiveMigrateData: fields that are set or not."""

    def __contains__(self, name):
        return name in vars(self)


class Records:
    """Nova's database, as nova.objects reads it.

    :ivar migrations: Migrations by their id
    :ivar instances: Instances by UUID
    :ivar faults: the texts of the faults that were added
    """

    def __init__(self) -> None:
        self.migrations: dict[int, Any] = {}
        self.instances: dict[str, Any] = {}
        self.faults: list[str] = []

    def get_by_id_and_instance(self, context, migration_id, instance_uuid):
        return self.migrations[migration_id]

    def get_by_uuid(self, context, uuid):
        if uuid not in self.instances:
            raise InstanceNotFound(instance_id=uuid)
        return self.instances[uuid]

    def get_migration_by_uuid(self, context, uuid):
        for each in self.migrations.values():
            if each.uuid == uuid:
                return each
        raise MigrationNotFound(migration_id=uuid)

    def add_instance_fault_from_exc(self, context, instance, fault):
        self.faults.append(str(fault))


class Cyborg:
    """nova.accelerator.cyborg: the device profiles and ARQs it knows."""

    def __init__(self) -> None:
        self.profiles: dict[str, list[dict[str, str]]] = {}
        self.arqs: dict[str, list[dict[str, Any]]] = {}
        self.contexts: list[Any] = []

    def delete_arqs_for_instance(self, instance_uuid):
        if self.contexts[-1].user_auth_plugin is None:
            raise AcceleratorRequestOpFailed(op='delete', msg='no token')
        del self.arqs[instance_uuid]

    def get_arqs_for_instance(self, instance_uuid, only_resolved=False):
        return self.arqs[instance_uuid]

    def get_client(self, context):
        self.contexts.append(context)
        return self

    def get_device_profile_groups(self, dp_name):
        if dp_name not in self.profiles:
            raise DeviceProfileError(name=dp_name, msg='nothing')
        return self.profiles[dp_name]


def install(
    monkeypatch: pytest.MonkeyPatch, state_path: pathlib.Path
) -> types.SimpleNamespace:
    """Install the stand-in as the package nova, and import the driver.

    :returns: ``driver``, the module os_acc_nova.driver; ``shim``, the module
        nova.virt.os_acc; ``cyborg``
    """
    cyborg = Cyborg()
    conf = types.SimpleNamespace(
        libvirt=types.SimpleNamespace(live_migration_permit_post_copy=False),
        state_path=str(state_path),
        compute=types.SimpleNamespace(
            provider_config_location=str(state_path / 'provider_config')
        ),
    )
    placement = Placement()
    records = Records()
    modules: dict[str, dict[str, Any]] = {
        'nova': {'__path__': []},
        'nova.accelerator': {'__path__': [], 'cyborg': cyborg},
        'nova.accelerator.cyborg': {'get_client': cyborg.get_client},
        'nova.compute': {'__path__': []},
        'nova.compute.task_states': {'DELETING': 'deleting'},
        'nova.compute.utils': {
            'add_instance_fault_from_exc': records.add_instance_fault_from_exc
        },
        'nova.compute.vm_states': {'ERROR': 'error'},
        'nova.objects': {
            'Migration': types.SimpleNamespace(
                get_by_id_and_instance=records.get_by_id_and_instance,
                get_by_uuid=records.get_migration_by_uuid,
            ),
            'Instance': records,
        },
        'nova.context': {
            'get_nova_service_user_context': service_context,
            'get_admin_context': service_context,
        },
        'nova.compute.power_state': {
            'RUNNING': RUNNING,
            'SHUTDOWN': SHUTDOWN,
            'CRASHED': 6,
        },
        'nova.conf': {'CONF': conf},
        'nova.exception': {
            cls.__name__: cls
            for cls in (
                NovaException,
                AcceleratorRequestOpFailed,
                BuildAbortException,
                ConsumerAllocationRetrievalFailed,
                InstanceFaultRollback,
                InstanceNotFound,
                InstanceSuspendFailure,
                InvalidConfiguration,
                MigrationNotFound,
                MigrationPreCheckError,
                ReshapeFailed,
                ReshapeNeeded,
                ResourceProviderAllocationRetrievalFailed,
                ResourceProviderNotFound,
                ResourceProviderRetrievalFailed,
                DeviceProfileError,
            )
        },
        'nova.scheduler': {'__path__': []},
        'nova.scheduler.filters': {'BaseHostFilter': BaseHostFilter},
        'nova.scheduler.weights': {'BaseHostWeigher': BaseHostWeigher},
        'nova.scheduler.client': {'__path__': []},
        'nova.scheduler.client.report': {
            'report_client_singleton': lambda: placement
        },
        'nova.virt': {'__path__': [str(CONTRIB / 'nova' / 'virt')]},
        'nova.virt.libvirt': {'__path__': []},
        'nova.virt.libvirt.config': {
            'LibvirtConfigGuestDevice': GuestDeviceConfig
        },
        'nova.virt.libvirt.driver': {
            'LibvirtDriver': LibvirtDriver,
            'libvirt': types.SimpleNamespace(
                libvirtError=LibvirtError, VIR_ERR_NO_NODE_DEVICE=NO_DEVICE
            ),
        },
        'nova.virt.libvirt.utils': {
            'mdev_uuid2name': lambda uuid: f'mdev_{uuid.replace("-", "_")}'
        },
    }
    for name in [n for n in sys.modules if _is_of_nova(n)]:
        monkeypatch.delitem(sys.modules, name)
    for name, attributes in modules.items():
        module = types.ModuleType(name)
        module.__dict__.update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
        parent, _, child = name.rpartition('.')
        if parent and child not in modules[parent]:
            setattr(sys.modules[parent], child, module)
    monkeypatch.syspath_prepend(CONTRIB)
    return types.SimpleNamespace(
        shim=importlib.import_module('nova.virt.os_acc'),
        driver=importlib.import_module('os_acc_nova.driver'),
        cyborg=cyborg,
        placement=placement,
        records=records,
    )


def uninstall() -> None:
    """Forget the modules that were imported with the stand-in."""
    for name in [n for n in sys.modules if _is_of_nova(n)]:
        del sys.modules[name]


def _is_of_nova(name: str) -> bool:
    return name.partition('.')[0] in ('nova', 'os_acc_nova')

# SPDX-License-Identifier: Apache-2.0

"""Nova's operations on instances, without any service of OpenStack.

The compute driver is started as nova-compute starts it (nova/cmd/compute.py):
with nova.conf, Nova's root helper and Nova's own loader of compute drivers.
What Nova asks the other services for is answered here:

* the conductor: it saves nothing, and every list it is asked for is empty;
* Glance: an image is a file of the same name in a directory;
* Neutron: the instances have no ports.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shlex
import shutil
from typing import Any

from nova import config
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova import utils
import nova.conf
from nova.db.main import api as database
from nova.network import model as network_model
from nova.objects import base as objects_base
from nova.virt import driver as virt_driver
from nova.virt import images as virt_images
import nova.virt.os_acc
import os_vif
from oslo_log import log as logging
from oslo_privsep import priv_context

import os_acc

objects.register_all()


class Conductor:
    """Answers the calls that Nova's objects make to nova-conductor.

    The operations of this test make no other call. One that they make all
    the same raises NotImplementedError, and the test fails.
    """

    def object_class_action_versions(
        self,
        context: Any,
        name: str,
        method: str,
        versions: dict[str, str],
        args: Any,
        kwargs: Any,
    ) -> Any:
        if name == 'Service':
            raise nova_exception.ComputeHostNotFound(host='lab')
        cls = objects_base.NovaObject.obj_class_from_name(name, versions[name])
        if not issubclass(cls, objects_base.ObjectListBase):
            raise NotImplementedError(f'{name}.{method}')
        return cls(context, objects=[])

    def object_action(
        self, context: Any, target: Any, method: str, args: Any, kwargs: Any
    ) -> tuple[dict[str, Any], None]:
        if method != 'save':
            raise NotImplementedError(f'{target.obj_name()}.{method}')
        return {}, None


class Images:
    """Answers the calls to Glance.

    :param directory: the files of the images, by the image's id
    """

    def __init__(self, directory: str) -> None:
        self.directory = pathlib.Path(directory)

    def get(self, context: Any, image: str, **options: Any) -> Any:
        size = (self.directory / image).stat().st_size
        return {'id': image, 'disk_format': 'raw', 'size': size}

    def download(
        self, context: Any, image: str, *, dest_path: str, **options: Any
    ) -> None:
        shutil.copyfile(self.directory / image, dest_path)


class VirtAPI:
    """Answers what the driver asks of the compute manager."""

    @contextlib.contextmanager
    def wait_for_instance_event(
        self, instance: Any, event_names: list[Any], **options: Any
    ):
        assert not event_names
        yield

    def update_compute_provider_status(self, *args: Any) -> None:
        pass


class Compute:
    """What nova-compute calls. Each method is one operation of Nova.

    :param conf_file: the path of nova.conf
    :param images: see Images
    """

    def __init__(self, conf_file: str, images: str) -> None:
        config.parse_args(
            ['nova-compute', '--config-file', conf_file],
            default_config_files=[],
            configure_db=False,
            init_rpc=False,
        )
        # As the compute manager does.
        nova.conf.neutron.register_dynamic_opts(nova.conf.CONF)
        nova.conf.devices.register_dynamic_opts(nova.conf.CONF)
        logging.setup(nova.conf.CONF, 'nova')
        priv_context.init(root_helper=shlex.split(utils.get_root_helper()))
        os_vif.initialize()
        database.DISABLE_DB_ACCESS = True
        objects_base.NovaObject.indirection_api = Conductor()
        virt_images.IMAGE_API = Images(images)
        self.context = nova_context.get_admin_context()
        self.network = network_model.NetworkInfo([])
        self.instances: dict[str, Any] = {}
        self.driver = virt_driver.load_compute_driver(VirtAPI())
        self.driver.init_host(nova.conf.CONF.host)

    def start(self, *known: tuple[Any, ...]) -> None:
        """Finish the start of the service.

        :param known: the arguments of instance() for each instance in Nova's
            database
        """
        for each in known:
            self.instance(*each)
        self.driver.process_instances_at_startup(
            self.context,
            objects.InstanceList(objects=list(self.instances.values())),
        )

    def user(self) -> int:
        return os.geteuid()

    def node(self) -> str:
        """The name to which Nova's conductor binds ARQs."""
        node: str = self.driver.get_available_nodes()[0]
        return node

    def vans(self) -> list[str]:
        return [van.uuid for van in os_acc.get_vans()]

    def instance(
        self,
        uuid: str,
        name: str,
        images: dict[str, str],
        properties: dict[str, str],
    ) -> None:
        """Make an instance without asking the driver.

        :param images: image_ref, kernel_id and ramdisk_id
        :param properties: the properties of its image
        """
        flavor = objects.Flavor(
            id=1,
            name='small',
            flavorid='1',
            memory_mb=256,
            vcpus=1,
            root_gb=0,
            ephemeral_gb=0,
            swap=0,
            vcpu_weight=None,
            rxtx_factor=1.0,
            disabled=False,
            is_public=True,
            extra_specs={},
        )
        self.instances[uuid] = objects.Instance(
            self.context,
            id=1,
            uuid=uuid,
            display_name=name,
            hostname=name,
            project_id='project',
            user_id='user',
            host=nova.conf.CONF.host,
            node=self.driver.get_available_nodes()[0],
            **images,
            root_device_name='/dev/vda',
            default_ephemeral_device=None,
            default_swap_device=None,
            config_drive='',
            vm_mode=None,
            os_type=None,
            architecture=None,
            vm_state='building',
            task_state='spawning',
            power_state=0,
            memory_mb=flavor.memory_mb,
            vcpus=flavor.vcpus,
            root_gb=0,
            ephemeral_gb=0,
            ephemeral_key_uuid=None,
            key_name=None,
            key_data=None,
            user_data=None,
            hidden=False,
            deleted=False,
            created_at=None,
            launched_at=None,
            flavor=flavor,
            old_flavor=None,
            new_flavor=None,
            system_metadata={
                f'image_{key}': value for key, value in properties.items()
            },
            metadata={},
            tags=objects.TagList(objects=[]),
            info_cache=objects.InstanceInfoCache(network_info=self.network),
            numa_topology=None,
            pci_requests=objects.InstancePCIRequests(requests=[]),
            pci_devices=objects.PciDeviceList(objects=[]),
            resources=None,
            trusted_certs=None,
            vcpu_model=None,
            device_metadata=None,
            migration_context=None,
            keypairs=objects.KeyPairList(objects=[]),
            fault=None,
        )

    def spawn(self, uuid: str, arqs: list[dict[str, Any]]) -> None:
        instance = self.instances[uuid]
        self.driver.spawn(
            self.context,
            instance,
            instance.image_meta,
            None,
            None,
            {},
            network_info=self.network,
            block_device_info=None,
            accel_info=arqs,
        )

    def hard_reboot(self, uuid: str, arqs: list[dict[str, Any]]) -> None:
        self.driver.reboot(
            self.context,
            self.instances[uuid],
            self.network,
            'HARD',
            accel_info=arqs,
            share_info=objects.ShareMappingList(objects=[]),
        )

    def stop(self, uuid: str) -> None:
        self.driver.power_off(self.instances[uuid])

    def start_guest(self, uuid: str, arqs: list[dict[str, Any]]) -> None:
        self.driver.power_on(
            self.context,
            self.instances[uuid],
            self.network,
            accel_info=arqs,
            share_info=objects.ShareMappingList(objects=[]),
        )

    def rescue(self, uuid: str) -> None:
        instance = self.instances[uuid]
        self.driver.rescue(
            self.context,
            instance,
            self.network,
            instance.image_meta,
            'password',
            None,
            objects.ShareMappingList(objects=[]),
        )

    def unrescue(self, uuid: str) -> None:
        self.driver.unrescue(self.context, self.instances[uuid])

    def console(self, uuid: str) -> str:
        """Nova reads it with its own privileges."""
        shown = self.driver.get_console_output(
            self.context, self.instances[uuid]
        )
        return shown.decode(errors='replace')

    def delete(self, uuid: str) -> None:
        self.driver.destroy(self.context, self.instances[uuid], self.network)

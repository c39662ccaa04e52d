# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
"""Connections to services of OpenStack, by keystoneauth's adapters.

The package openstacksdk is required: ``pip install os-acc[openstack]``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any

from os_acc import exception

if TYPE_CHECKING:
    from keystoneauth1 import adapter

#: Service types of the catalog.
ACCELERATOR = 'accelerator'
PLACEMENT = 'placement'


def by_cloud(service_type: str, cloud: str | None) -> adapter.Adapter:
    """Connect as clouds.yaml or the environment says.

    :param service_type: ACCELERATOR or PLACEMENT
    :param cloud: the name of a cloud in clouds.yaml; None: OS_CLOUD, or
        OS_AUTH_URL and the other variables of the environment
    :raises RemoteServiceError: if openstacksdk is not installed, or there is
        no such cloud
    """
    openstack = _import_sdk(service_type)
    try:
        from keystoneauth1 import adapter

        region = openstack.config.get_cloud_region(cloud=cloud)
        # openstacksdk's own adapter works only inside of its Connection.
        found = adapter.Adapter(
            region.get_session(),
            service_type=service_type,
            interface=region.get_interface(service_type),
            region_name=region.get_region_name(service_type),
            endpoint_override=region.get_endpoint(service_type),
        )
    except Exception as err:
        raise exception.RemoteServiceError(
            service=service_type, reason=exception.describe(err)
        ) from err
    return found


def by_group(service_type: str, conf: Any, group: str) -> adapter.Adapter:
    """Connect as a group of oslo.config says, such as [placement].

    The group has the options of keystoneauth: auth_type, auth_url, and so on.

    :param service_type: ACCELERATOR or PLACEMENT
    :raises RemoteServiceError: if the group lacks something
    """
    try:
        from keystoneauth1 import adapter
        from keystoneauth1 import loading

        loading.register_auth_conf_options(conf, group)
        loading.register_session_conf_options(conf, group)
        loading.register_adapter_conf_options(conf, group)
        auth = loading.load_auth_from_conf_options(conf, group)
        session = loading.load_session_from_conf_options(
            conf, group, auth=auth
        )
        options = conf[group]
        return adapter.Adapter(
            session,
            service_type=service_type,
            interface=options.valid_interfaces,
            region_name=options.region_name,
        )
    except Exception as err:
        raise exception.RemoteServiceError(
            service=service_type,
            reason=f'group [{group}]: {exception.describe(err)}',
        ) from err


def _import_sdk(service_type: str) -> Any:
    try:
        import openstack
        import openstack.config
    except ImportError as err:
        raise exception.RemoteServiceError(
            service=service_type,
            reason='openstacksdk is missing: install os-acc[openstack]',
        ) from err
    return openstack

# SPDX-License-Identifier: Apache-2.0
"""Connections to OpenStack services, through keystoneauth's adapters.

The package openstacksdk is required: ``pip install os-acc[openstack]``.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING
from typing import Any

from oslo_config import cfg

from os_acc import exception

if TYPE_CHECKING:
    from keystoneauth1 import adapter

#: Service types of the catalog.
ACCELERATOR = 'accelerator'
PLACEMENT = 'placement'

# Seconds to wait for an answer, unless the cloud of clouds.yaml (api_timeout)
# or the group (timeout) says it.
_TIMEOUT = 60.0


def by_cloud(service_type: str, cloud: str | None) -> adapter.Adapter:
    """Connect as clouds.yaml or the environment says.

    :param service_type: ACCELERATOR or PLACEMENT
    :param cloud: the name of a cloud in clouds.yaml; None: OS_CLOUD, or
        OS_AUTH_URL and the other variables of the environment
    :raises RemoteServiceError: if openstacksdk is not installed, or there is
        no such cloud
    """
    try:
        import openstack
        import openstack.config
    except ImportError as err:
        raise exception.RemoteServiceError(
            service=service_type,
            reason='openstacksdk is missing: install os-acc[openstack]',
        ) from err
    try:
        from keystoneauth1 import adapter

        region = openstack.config.get_cloud_region(cloud=cloud)
        session = region.get_session()
        session.timeout = session.timeout or _TIMEOUT
        # openstacksdk's own adapter works only inside of its Connection.
        found = adapter.Adapter(
            session,
            service_type=service_type,
            interface=region.get_interface(service_type),
            region_name=region.get_region_name(service_type),
            endpoint_override=region.get_endpoint(service_type),
        )
    except Exception as err:
        reason = exception.describe(err)
        if cloud is None:
            reason += (
                '. Name a cloud in clouds.yaml with --os-cloud or OS_CLOUD, '
                'or set OS_AUTH_URL and the other variables of the '
                'environment'
            )
        raise exception.RemoteServiceError(
            service=service_type, reason=reason
        ) from err
    return found


def by_group(service_type: str, conf: Any, group: str) -> adapter.Adapter:
    """Connect as a group of oslo.config says, such as [placement].

    The group has the options of keystoneauth: auth_type, auth_url, and so on.
    The endpoint_override of [placement] counts only for Placement.
    Services such as nova-compute have registered some groups already, with
    defaults of their own. These are kept.

    :param service_type: ACCELERATOR or PLACEMENT
    :raises RemoteServiceError: if the group lacks something, or keystoneauth
        is not installed
    """
    try:
        from keystoneauth1 import loading

        for option in (
            *loading.get_auth_common_conf_options(),
            *loading.get_session_conf_options(),
            *loading.get_adapter_conf_options(),
        ):
            with contextlib.suppress(cfg.DuplicateOptError):
                conf.register_opt(option, group)
        auth = loading.load_auth_from_conf_options(conf, group)
        if auth is None:
            raise ValueError('auth_type is not set')
        session = loading.load_session_from_conf_options(
            conf, group, auth=auth
        )
        # Otherwise it would wait for Keystone forever.
        session.timeout = session.timeout or _TIMEOUT
        other: dict[str, Any] = {}
        if group == PLACEMENT and service_type != PLACEMENT:
            # The group is for another service, and so is its URL.
            other = {'endpoint_override': None}
        found: adapter.Adapter = loading.load_adapter_from_conf_options(
            conf, group, session=session, service_type=service_type, **other
        )
    except Exception as err:
        raise exception.RemoteServiceError(
            service=service_type,
            reason=f'group [{group}]: {exception.describe(err)}',
        ) from err
    return found

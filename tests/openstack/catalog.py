# SPDX-License-Identifier: Apache-2.0

"""Users, services and connections: what is in Keystone."""

from __future__ import annotations

import layout
import openstack
from openstack import connection

#: The project whose user makes the servers of the tests.
DEMO = 'demo'
#: The newest version of Nova's API with all that the tests use.
COMPUTE_VERSION = '2.96'


def connect(
    user: str = 'admin', project: str | None = None
) -> connection.Connection:
    """Connect as a user. Its project has the same name unless one is given."""
    found: connection.Connection = openstack.connect(
        load_envvars=False,
        load_yaml_config=False,
        **layout.cloud(user, project),
    )
    found.compute.default_microversion = COMPUTE_VERSION
    return found


def fill() -> None:
    """Create the users, the services and their endpoints."""
    identity = connect().identity
    roles = {role.name: role for role in identity.roles()}
    for name in ('admin', 'service', 'member', 'reader'):
        if name not in roles:
            roles[name] = identity.create_role(name=name)
    service = identity.create_project(name='service', domain_id='default')
    demo = identity.create_project(name=DEMO, domain_id='default')
    for name, project, given in (
        ('cyborg', service, ('admin', 'service')),
        ('glance', service, ('admin', 'service')),
        ('nova', service, ('admin', 'service')),
        ('placement', service, ('admin', 'service')),
        (DEMO, demo, ('member',)),
    ):
        user = identity.create_user(
            name=name,
            password=layout.PASSWORD,
            domain_id='default',
            default_project_id=project.id,
        )
        for role in given:
            identity.assign_project_role_to_user(project, user, roles[role])
    for kind, name, url in layout.CATALOG:
        made = identity.create_service(type=kind, name=name)
        for face in ('public', 'internal'):
            identity.create_endpoint(
                service_id=made.id,
                interface=face,
                region_id=layout.REGION,
                url=url,
            )

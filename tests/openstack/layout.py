# SPDX-License-Identifier: Apache-2.0

"""Where everything is: directories, programs, addresses and names."""

from __future__ import annotations

import os
import pathlib
import socket
import sys
from typing import Any

#: The temporary directory, made by isolated.sh.
ROOT = pathlib.Path(os.environ['OS_ACC_OPENSTACK_DIR'])
ETC = ROOT / 'etc'
STATE = ROOT / 'state'
#: The logs are outside the temporary directory, to be read after the run.
LOGS = pathlib.Path(os.environ['OS_ACC_OPENSTACK_LOGS'])
HERE = pathlib.Path(__file__).parent

#: The environment with Nova, Glance and os-acc: that of this process.
NOVA = pathlib.Path(sys.prefix)
#: The environment with Keystone, Placement and Cyborg.
SERVICES = pathlib.Path(os.environ['OS_ACC_OPENSTACK_SERVICES'])

#: The name of the host, and of its hypervisor and resource provider.
HOST = socket.gethostname()
ADDRESS = '127.0.0.1'
REGION = 'RegionOne'
PASSWORD = 'secret'
KEYSTONE = f'http://{ADDRESS}:5000/v3'
RABBIT = f'rabbit://guest:guest@{ADDRESS}:5672/'
MARIADB_SOCKET = ROOT / 'mariadb.sock'
LIBVIRT = 'qemu:///system'

KEYSTONE_PORT = 5000
PLACEMENT_PORT = 8778
CYBORG_PORT = 6666
GLANCE_PORT = 9292
NEUTRON_PORT = 9696
NOVA_PORT = 8774

#: The services of the catalog: type, name and URL.
CATALOG = (
    ('placement', 'placement', f'http://{ADDRESS}:{PLACEMENT_PORT}'),
    ('accelerator', 'cyborg', f'http://{ADDRESS}:{CYBORG_PORT}/v2'),
    ('image', 'glance', f'http://{ADDRESS}:{GLANCE_PORT}'),
    ('network', 'neutron', f'http://{ADDRESS}:{NEUTRON_PORT}'),
    ('compute', 'nova', f'http://{ADDRESS}:{NOVA_PORT}/v2.1'),
)

#: How many handles the device local has. Cyborg does not know it.
LOCAL_DEVICES = 4
#: Devices beside it, which can be programmed. Each has one handle.
FPGAS = ('fpga0', 'fpga1')

NOVA_COMPUTE_CONF = ETC / 'nova' / 'nova-compute.conf'

#: The second compute host, which test_two_hosts.py starts: see second_host.py.
SECOND_HOST = f'{HOST}-2'
SECOND_COMPUTE_CONF = ETC / 'nova' / 'nova-compute-2.conf'


def os_acc_state(compute_conf: pathlib.Path) -> pathlib.Path:
    """Return the directory of os-acc's journal on a compute host.

    :param compute_conf: the configuration of its nova-compute
    """
    return STATE / compute_conf.stem / 'os-acc'


def nova_program(name: str) -> str:
    """Return the path of a program of the environment with Nova."""
    return str(NOVA / 'bin' / name)


def services_program(name: str) -> str:
    """Return the path of a program of the environment with Keystone."""
    return str(SERVICES / 'bin' / name)


def cloud(user: str, project: str | None = None) -> dict[str, Any]:
    """Return how openstacksdk connects as a user.

    :param project: its project; None: that of the same name
    """
    return {
        'region_name': REGION,
        'auth': {
            'auth_url': KEYSTONE,
            'username': user,
            'password': PASSWORD,
            'project_name': project or user,
            'user_domain_id': 'default',
            'project_domain_id': 'default',
        },
    }


def database(name: str) -> str:
    """Return the URL of a database."""
    return f'mysql+pymysql://openstack:{PASSWORD}@{ADDRESS}/{name}?charset=utf8mb4'

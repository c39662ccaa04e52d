# SPDX-License-Identifier: Apache-2.0

"""The configuration files of all services."""

from __future__ import annotations

import base64
from collections.abc import Mapping
import json
import os
import pathlib
import shutil
from typing import Any

import layout

Sections = Mapping[str, Mapping[str, Any]]

#: The name in clouds.yaml of the user admin. It is fixed in Cyborg's code.
ADMIN_CLOUD = 'devstack-admin'


def write(path: pathlib.Path, sections: Sections) -> None:
    """Write a configuration file of oslo.config.

    :param sections: the value of an option that is repeated is a list
    """
    lines = []
    for section, options in sections.items():
        lines.append(f'[{section}]')
        for name, value in options.items():
            values = value if isinstance(value, list) else [value]
            lines.extend(f'{name} = {each}' for each in values)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('\n'.join(lines) + '\n')


def write_all() -> None:
    """Write the files of all services, below layout.ETC."""
    _keystone()
    _placement()
    _cyborg()
    _glance()
    _nova()
    _libvirt()
    _rabbit()


def set_delays(**seconds: float) -> None:
    """Set how long each step of os-acc's driver fake takes.

    nova-compute reads it when it starts.

    :param seconds: by the name of the step; none: no step is delayed
    """
    delays = ','.join(f'{step}:{each}' for step, each in seconds.items())
    write(
        layout.ETC / 'nova' / 'delays.conf',
        {'os_acc_fake': {'delays': delays}},
    )


def set_weigher(*, in_use: bool, multiplier: float | None = None) -> None:
    """Set whether the scheduler uses os-acc's weigher and filter.

    nova-scheduler reads it when it starts.

    :param multiplier: of the weigher; None: the default of os-acc
    """
    # Servers fail in the tests of failures. That must not decide later.
    chosen: dict[str, Any] = {'build_failure_weight_multiplier': 0}
    if in_use:
        chosen |= {
            'weight_classes': (
                'nova.scheduler.weights.all_weighers, '
                'os_acc_nova.scheduling.FunctionWeigher'
            ),
            'available_filters': [
                'nova.scheduler.filters.all_filters',
                'os_acc_nova.scheduling.FunctionFilter',
            ],
            'enabled_filters': (
                'ComputeFilter, ComputeCapabilitiesFilter, '
                'ImagePropertiesFilter, ServerGroupAntiAffinityFilter, '
                'ServerGroupAffinityFilter, FunctionFilter'
            ),
        }
    weight = (
        {}
        if multiplier is None
        else {'function_weight_multiplier': multiplier}
    )
    write(
        layout.ETC / 'nova' / 'scheduler.conf',
        {'filter_scheduler': chosen, 'os_acc_nova': weight},
    )


def user(name: str) -> dict[str, str]:
    """Return the options by which a service is a user of Keystone."""
    return {
        'auth_type': 'password',
        'auth_url': layout.KEYSTONE,
        'username': name,
        'password': layout.PASSWORD,
        'project_name': 'service',
        'user_domain_id': 'default',
        'project_domain_id': 'default',
        'region_name': layout.REGION,
    }


def _token_user(name: str) -> dict[str, str]:
    return {
        **user(name),
        'www_authenticate_uri': layout.KEYSTONE,
        'service_token_roles_required': 'true',
    }


def _service_user(name: str) -> dict[str, str]:
    return {**user(name), 'send_service_user_token': 'true'}


def _state(*parts: str) -> pathlib.Path:
    path = layout.STATE.joinpath(*parts)
    path.mkdir(parents=True, exist_ok=True)
    return path


def _keystone() -> None:
    keys = _state('keystone-keys')
    keys.chmod(0o700)
    # the keys for the tokens, as "keystone-manage fernet_setup" makes them
    for name in ('0', '1'):
        key = base64.urlsafe_b64encode(os.urandom(32))
        (keys / name).write_bytes(key)
    write(
        layout.ETC / 'keystone.conf',
        {
            'DEFAULT': {'log_file': layout.LOGS / 'keystone.log'},
            'database': {'connection': layout.database('keystone')},
            'token': {'provider': 'fernet', 'expiration': 86400},
            'fernet_tokens': {'key_repository': keys},
            'fernet_receipts': {'key_repository': keys},
            # the shortest hash: passwords are checked often, and are no secret
            'identity': {'password_hash_rounds': 4},
            'cache': {'enabled': 'true', 'backend': 'dogpile.cache.memory'},
        },
    )


def _placement() -> None:
    write(
        layout.ETC / 'placement' / 'placement.conf',
        {
            'DEFAULT': {'log_file': layout.LOGS / 'placement.log'},
            'api': {'auth_strategy': 'keystone'},
            'placement_database': {'connection': layout.database('placement')},
            'keystone_authtoken': _token_user('placement'),
        },
    )


def _cyborg() -> None:
    """Write cyborg.conf, and the clouds.yaml by which it finds bitstreams."""
    clouds = layout.ROOT / '.config' / 'openstack' / 'clouds.yaml'
    clouds.parent.mkdir(parents=True)
    # JSON is YAML.
    clouds.write_text(
        json.dumps({'clouds': {ADMIN_CLOUD: layout.cloud('admin')}})
    )
    installed = layout.SERVICES / 'etc' / 'cyborg'
    helper = layout.services_program('privsep-helper')
    path = layout.ETC / 'cyborg.conf'
    write(
        path,
        {
            'DEFAULT': {
                'host': layout.HOST,
                'debug': 'true',
                'log_dir': layout.LOGS,
                'state_path': _state('cyborg'),
                'transport_url': layout.RABBIT,
                'periodic_interval': 10,
                'rpc_response_timeout': 300,
            },
            'database': {'connection': layout.database('cyborg')},
            'api': {
                'host_ip': layout.ADDRESS,
                'port': layout.CYBORG_PORT,
                'api_paste_config': installed / 'api-paste.ini',
            },
            'agent': {
                'enabled_drivers': 'fake_driver',
                'resource_provider_name': layout.HOST,
            },
            'oslo_concurrency': {'lock_path': _state('cyborg', 'lock')},
            'oslo_policy': {'policy_file': installed / 'policy.yaml'},
            'cyborg_sys_admin': {
                'helper_command': f'{helper} --config-file {path}'
            },
            'keystone_authtoken': _token_user('cyborg'),
            'placement': user('cyborg'),
            'nova': user('cyborg'),
            'service_user': _service_user('cyborg'),
        },
    )


def _glance() -> None:
    write(
        layout.ETC / 'glance' / 'glance-api.conf',
        {
            'DEFAULT': {
                'log_file': layout.LOGS / 'glance-api.log',
                'enabled_backends': 'file:file',
                'worker_self_reference_url': (
                    f'http://{layout.ADDRESS}:{layout.GLANCE_PORT}'
                ),
            },
            'glance_store': {'default_backend': 'file'},
            'file': {'filesystem_store_datadir': _state('glance', 'images')},
            'os_glance_staging_store': {
                'filesystem_store_datadir': _state('glance', 'staging')
            },
            'os_glance_tasks_store': {
                'filesystem_store_datadir': _state('glance', 'tasks')
            },
            'database': {'connection': layout.database('glance')},
            'oslo_concurrency': {'lock_path': _state('glance', 'lock')},
            'paste_deploy': {
                'flavor': 'keystone',
                'config_file': (
                    layout.NOVA / 'etc' / 'glance' / 'glance-api-paste.ini'
                ),
            },
            'keystone_authtoken': _token_user('glance'),
        },
    )


def _nova() -> None:
    """Write nova.conf, and nova-compute.conf of both hosts.

    Those of nova-compute are without the databases.
    """
    compute = _compute(layout.HOST, layout.NOVA_COMPUTE_CONF)
    write(layout.NOVA_COMPUTE_CONF, compute)
    write(
        layout.SECOND_COMPUTE_CONF,
        _compute(layout.SECOND_HOST, layout.SECOND_COMPUTE_CONF),
    )
    write(
        layout.NOVA_COMPUTE_CONF.with_name('nova.conf'),
        {
            **compute,
            'api_database': {'connection': layout.database('nova_api')},
            'database': {'connection': layout.database('nova_cell1')},
        },
    )
    shutil.copy(
        layout.NOVA / 'etc' / 'nova' / 'api-paste.ini', layout.ETC / 'nova'
    )
    set_delays()
    set_weigher(in_use=True)


def _compute(host: str, path: pathlib.Path) -> Sections:
    """Return the configuration of nova-compute on a host.

    :param path: the file that it is written to
    """
    helper = layout.nova_program('privsep-helper')
    state = path.stem
    fpgas = [f'{name}:test:1:single' for name in layout.FPGAS]
    return {
        'DEFAULT': {
            'host': host,
            'my_ip': layout.ADDRESS,
            'debug': 'true',
            'log_dir': layout.LOGS,
            'state_path': _state(state),
            'instances_path': _state(state, 'instances'),
            'transport_url': layout.RABBIT,
            'compute_driver': 'os_acc.LibvirtDriver',
            # the guest does not react to its power button
            'shutdown_timeout': 2,
            'graceful_shutdown_timeout': 10,
            'manager_shutdown_timeout': 0,
            # a slow machine is no error
            'service_down_time': 600,
            'rpc_response_timeout': 300,
        },
        'libvirt': {
            'connection_uri': layout.LIBVIRT,
            'virt_type': 'qemu',
            'cpu_mode': 'none',
        },
        'os_acc': {
            'plugin': 'libvirt',
            'state_path': layout.os_acc_state(path),
        },
        # devices that Cyborg does not know, for test_without_cyborg.py and
        # test_two_hosts.py
        'os_acc_fake': {
            'discover': 'true',
            'devices': ', '.join(
                [f'local:test:{layout.LOCAL_DEVICES}', *fpgas]
            ),
        },
        'os_acc_nova': {'resource_classes': 'CUSTOM_FAKE_TEST'},
        'api': {'auth_strategy': 'keystone'},
        'conductor': {'workers': 1},
        # With one attempt, the fault of a server is the error of its host.
        # With more, it is that there is no other host.
        'scheduler': {'workers': 1, 'max_attempts': 1},
        # for os-acc-nova-demand; nobody else reads notifications
        'oslo_messaging_notifications': {'driver': 'messagingv2'},
        'notifications': {
            'notification_format': 'versioned',
            'versioned_notifications_topics': 'os_acc_demand',
        },
        'vnc': {'enabled': 'false'},
        'spice': {'enabled': 'false'},
        'oslo_concurrency': {'lock_path': _state(state, 'lock')},
        # nova-compute runs as root here, and needs no sudo
        'nova_sys_admin': {'helper_command': f'{helper} --config-file {path}'},
        'keystone_authtoken': _token_user('nova'),
        'placement': user('nova'),
        'cyborg': user('nova'),
        'neutron': user('nova'),
        'service_user': _service_user('nova'),
    }


def _libvirt() -> None:
    """Write the files of libvirtd into /etc/libvirt, which is ours alone."""
    directory = pathlib.Path('/etc/libvirt')
    log = layout.LOGS / 'libvirtd.log'
    (directory / 'libvirtd.conf').write_text(
        f'auth_unix_ro = "none"\nauth_unix_rw = "none"\n'
        f'log_outputs = "3:file:{log}"\n'
    )
    # No virtlogd, cgroups, AppArmor or other users are needed.
    (directory / 'qemu.conf').write_text(
        'user = "root"\ngroup = "root"\nsecurity_driver = "none"\n'
        'remember_owner = 0\ncgroup_controllers = [ ]\nnamespaces = [ ]\n'
        'stdio_handler = "file"\n'
    )


def _rabbit() -> None:
    (layout.ETC / 'rabbitmq.conf').write_text(
        f'listeners.tcp.local = {layout.ADDRESS}:5672\n'
        f'log.file = {layout.LOGS / "rabbitmq.log"}\nlog.console = false\n'
    )
    (layout.ETC / 'rabbitmq-env.conf').touch()
    (layout.ETC / 'enabled_plugins').write_text('[].\n')

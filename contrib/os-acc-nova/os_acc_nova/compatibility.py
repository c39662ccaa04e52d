# SPDX-License-Identifier: Apache-2.0

"""Checks that the installed Nova is one that this driver knows.

The driver overrides private methods of Nova's libvirt driver, and relies on
the order in which Nova's methods call each other. A Nova that has changed
them could start a guest without its devices, or release the devices of a
guest that runs. So the driver refuses such a Nova when it is imported.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata
import inspect
from typing import Any

_GUEST = (
    'instance',
    'network_info',
    'image_meta',
    'disk_info',
    'rescue',
    'block_device_info',
    'context',
    'mdevs',
    'accel_info',
    'share_info',
    'old_guest',
)

#: The methods that the driver overrides or calls, with their parameters. All
#: are in nova/virt/libvirt/driver.py of Nova 34. An additional parameter is
#: refused too, because Nova would pass it to a method that does not take it.
METHODS: dict[str, tuple[str, ...]] = {
    # overridden
    '__init__': ('virtapi', 'read_only'),
    'init_host': ('host',),
    'cleanup_host': ('host',),
    'process_instances_at_startup': ('context', 'instances'),
    'get_available_resource': ('nodename',),
    'update_provider_tree': ('provider_tree', 'nodename', 'allocations'),
    'spawn': (
        'context',
        'instance',
        'image_meta',
        'injected_files',
        'admin_password',
        'allocations',
        'network_info',
        'block_device_info',
        'power_on',
        'accel_info',
    ),
    'cleanup': (
        'context',
        'instance',
        'network_info',
        'block_device_info',
        'destroy_disks',
        'migrate_data',
        'destroy_vifs',
        'destroy_secrets',
    ),
    '_hard_reboot': (
        'context',
        'instance',
        'network_info',
        'share_info',
        'block_device_info',
        'accel_info',
    ),
    'finish_migration': (
        'context',
        'migration',
        'instance',
        'disk_info',
        'network_info',
        'image_meta',
        'resize_instance',
        'allocations',
        'block_device_info',
        'power_on',
        'share_info',
    ),
    'finish_revert_migration': (
        'context',
        'instance',
        'network_info',
        'migration',
        'block_device_info',
        'power_on',
        'share_info',
    ),
    'migrate_disk_and_power_off': (
        'context',
        'instance',
        'dest',
        'flavor',
        'network_info',
        'block_device_info',
        'timeout',
        'retry_interval',
    ),
    'check_can_live_migrate_source': (
        'context',
        'instance',
        'dest_check_data',
        'block_device_info',
    ),
    'confirm_migration': (
        'context',
        'migration',
        'instance',
        'network_info',
    ),
    'check_source_migrate_data_at_dest': (
        'ctxt',
        'instance',
        'migrate_data',
        'migration',
        'limits',
        'allocs',
    ),
    'pre_live_migration': (
        'context',
        'instance',
        'block_device_info',
        'network_info',
        'disk_info',
        'migrate_data',
    ),
    'live_migration': (
        'context',
        'instance',
        'dest',
        'post_method',
        'recover_method',
        'block_migration',
        'migrate_data',
    ),
    'rollback_live_migration_at_source': (
        'context',
        'instance',
        'migrate_data',
    ),
    'post_live_migration_at_destination': (
        'context',
        'instance',
        'network_info',
        'block_migration',
        'block_device_info',
    ),
    'suspend': ('context', 'instance'),
    '_get_guest_config': _GUEST,
    '_get_all_assigned_mediated_devices': ('instance',),
    # called
    '_warn_if_nova_managed': ('attach_handle_info',),
    'get_available_nodes': ('refresh',),
    'get_info': ('instance', 'use_cache'),
    'list_instance_uuids': (),
}

#: The calls that each method must make, in this order.
CALLS: dict[str, tuple[str, ...]] = {
    # The domain is gone before the VANs are released.
    'destroy': ('_destroy', 'cleanup'),
    # Plugging is done in _get_guest_config: before the guest is created, and
    # in a hard reboot after the old domain is gone.
    'spawn': ('_get_guest_xml', '_create_guest_with_network'),
    'finish_migration': ('_get_guest_xml', '_create_guest_with_network'),
    'finish_revert_migration': (
        '_get_guest_xml',
        '_create_guest_with_network',
    ),
    # This releases what is prepared on the target.
    'rollback_live_migration_at_destination': ('destroy',),
    '_hard_reboot': (
        '_get_all_assigned_mediated_devices',
        'destroy',
        '_get_guest_xml',
        '_create_guest_with_network',
    ),
    '_get_guest_xml': ('_get_guest_config',),
    # These methods define the domain again. Its VANs stay plugged.
    'power_on': ('_hard_reboot',),
    'reboot': ('_hard_reboot',),
    'resume_state_on_host_boot': ('_hard_reboot',),
    'rescue': ('_get_all_assigned_mediated_devices', '_get_guest_xml'),
    # By this call, Nova learns which mdevs belong to os-acc, and does not
    # give them to another instance.
    '_get_existing_mdevs_not_assigned': (
        '_get_all_assigned_mediated_devices',
    ),
}


class UnsupportedNova(ImportError):
    """This Nova is not one that the driver can extend.

    Nova logs an ImportError of a compute driver, and nova-compute ends
    (load_compute_driver in nova/virt/driver.py).
    """


def check(driver: type) -> None:
    """Check Nova's libvirt driver.

    :param driver: the class nova.virt.libvirt.driver.LibvirtDriver
    :raises UnsupportedNova: if a method is missing, has other parameters, or
        does not make the calls that it must; the error lists all of these
    """
    if found := list(_differences(driver)):
        raise UnsupportedNova(
            f'Nova {_version()} is not supported by os-acc-nova: '
            f'{"; ".join(found)}. Supported: Nova 34, and later versions '
            'without these differences. Install another version of '
            'os-acc-nova, or set [DEFAULT] compute_driver to '
            'libvirt.LibvirtDriver'
        )


def _differences(driver: type) -> Iterator[str]:
    for name in METHODS | CALLS:
        method = getattr(driver, name, None)
        if not callable(method):
            yield f'LibvirtDriver has no method {name}()'
            continue
        if name in METHODS:
            yield from _wrong_parameters(name, method)
        if name in CALLS:
            yield from _wrong_calls(name, method)


def _wrong_parameters(name: str, method: Any) -> Iterator[str]:
    expected = METHODS[name]
    # The first parameter is self.
    found = tuple(inspect.signature(method).parameters)[1:]
    if found != expected:
        yield (
            f'LibvirtDriver.{name} takes ({", ".join(found)}), expected '
            f'({", ".join(expected)})'
        )


def _wrong_calls(name: str, method: Any) -> Iterator[str]:
    expected = CALLS[name]
    found = [each for each in _names(method) if each in expected]
    if found != list(expected):
        yield (
            f'LibvirtDriver.{name} uses {", ".join(found) or "none"} of '
            f'{", ".join(expected)}, expected all in this order'
        )


def _names(method: Any) -> tuple[str, ...]:
    """Return the names that a method uses, in the order of their first use."""
    code = getattr(inspect.unwrap(method), '__code__', None)
    return code.co_names if code is not None else ()


def _version() -> str:
    try:
        return metadata.version('nova')
    except metadata.PackageNotFoundError:
        return '(of unknown version)'

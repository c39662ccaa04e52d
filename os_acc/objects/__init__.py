# SPDX-License-Identifier: Apache-2.0

"""The versioned objects, such as ``objects.VAN``.

The module of an object is imported when the object is first used, so that
``import os_acc`` stays fast.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING
from typing import Any

if TYPE_CHECKING:
    from os_acc.objects.device import Device as Device
    from os_acc.objects.device import DeviceChipInfo as DeviceChipInfo
    from os_acc.objects.device import DeviceHandleInfo as DeviceHandleInfo
    from os_acc.objects.device import DeviceMdevTypeInfo as DeviceMdevTypeInfo
    from os_acc.objects.handle import AttachHandle as AttachHandle
    from os_acc.objects.handle import BlockHandle as BlockHandle
    from os_acc.objects.handle import DeviceFile as DeviceFile
    from os_acc.objects.handle import DeviceFileHandle as DeviceFileHandle
    from os_acc.objects.handle import DRCHandle as DRCHandle
    from os_acc.objects.handle import MdevHandle as MdevHandle
    from os_acc.objects.handle import PCIHandle as PCIHandle
    from os_acc.objects.handle import TestHandle as TestHandle
    from os_acc.objects.host_info import HostDriverInfo as HostDriverInfo
    from os_acc.objects.host_info import HostHandleInfo as HostHandleInfo
    from os_acc.objects.host_info import HostInfo as HostInfo
    from os_acc.objects.host_info import HostPluginInfo as HostPluginInfo
    from os_acc.objects.instance_info import InstanceInfo as InstanceInfo
    from os_acc.objects.migration import (
        MigrationAccelerator as MigrationAccelerator,
    )
    from os_acc.objects.migration import MigrationChange as MigrationChange
    from os_acc.objects.migration import MigrationMap as MigrationMap
    from os_acc.objects.migration import MigrationPlan as MigrationPlan
    from os_acc.objects.port import PortBinding as PortBinding
    from os_acc.objects.report import ApplyReport as ApplyReport
    from os_acc.objects.report import ApplyStep as ApplyStep
    from os_acc.objects.report import RecoveryReport as RecoveryReport
    from os_acc.objects.request import AcceleratorRequest as AcceleratorRequest
    from os_acc.objects.van import VAN as VAN
    from os_acc.objects.van import VANList as VANList

_MODULES = {
    'AcceleratorRequest': 'request',
    'ApplyReport': 'report',
    'ApplyStep': 'report',
    'AttachHandle': 'handle',
    'BlockHandle': 'handle',
    'DRCHandle': 'handle',
    'Device': 'device',
    'DeviceChipInfo': 'device',
    'DeviceFile': 'handle',
    'DeviceFileHandle': 'handle',
    'DeviceHandleInfo': 'device',
    'DeviceMdevTypeInfo': 'device',
    'HostDriverInfo': 'host_info',
    'HostHandleInfo': 'host_info',
    'HostInfo': 'host_info',
    'HostPluginInfo': 'host_info',
    'InstanceInfo': 'instance_info',
    'MdevHandle': 'handle',
    'MigrationAccelerator': 'migration',
    'MigrationChange': 'migration',
    'MigrationMap': 'migration',
    'MigrationPlan': 'migration',
    'PCIHandle': 'handle',
    'PortBinding': 'port',
    'RecoveryReport': 'report',
    'TestHandle': 'handle',
    'VAN': 'van',
    'VANList': 'van',
}

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    module = importlib.import_module(f'{__name__}.{_MODULES[name]}')
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


@functools.cache
def register_all() -> None:
    """Import all objects, so that each can be read from a primitive.

    A process does it only once: a plug calls it for each handle version.
    """
    for module in set(_MODULES.values()):
        importlib.import_module(f'{__name__}.{module}')

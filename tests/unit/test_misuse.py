# SPDX-License-Identifier: Apache-2.0

"""Misuses of the privileged calls: each is refused and changes nothing."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import devices
import misuse
import pytest

import os_acc
from os_acc import privileged
from os_acc.privileged import context

UNNAMED = '0000:60:00.0'
# As in the lab, it is an NVMe drive.
PF = '0000:61:00.0'
PF_IDS = '1b36:0010'


@pytest.fixture
def place(kernel):
    devices.furnish(kernel)
    kernel.add_function(UNNAMED, '8086:0d58')
    kernel.add_function(
        PF,
        PF_IDS,
        0x010802,
        'nvme',
        totalvfs=4,
        files={'reset': '', 'reset_method': 'flr\n'},
    )
    devices.spec(
        {'address': PF, 'num_vfs': 4},
        {'address': {'domain': '0000', 'bus': '0[1-6]', 'slot': '00'}},
        {'address': 'mtty'},
    )
    # What an administrator has set up.
    kernel.write_file(
        'proc/self/mountinfo',
        '36 35 259:0 / /data rw - ext4 /dev/nvme0n1 rw\n',
    )
    for name in ('eth0', 'eth1'):
        (kernel.sys / f'class/net/{name}/flags').write_text('0x1003\n')
    path = kernel.pci / 'devices' / devices.GPU
    kernel.write(f'{path}/driver_override', 'vfio-pci')
    kernel.write(str(kernel.pci / 'drivers_probe'), devices.GPU)
    pf = kernel.pci / 'devices' / PF
    kernel.write(f'{pf}/sriov_numvfs', '2')
    kernel.write(
        str(
            kernel.sys
            / 'class/mdev_bus/mtty/mdev_supported_types/mtty-1/create'
        ),
        misuse.INSTANCE,
    )
    os_acc.CONF.set_override('cleaning_command', 'false {address}', 'os_acc')
    return misuse.Place(
        bound=devices.GPU,
        bound_ids='10de:1eb8',
        disk=devices.DISK,
        disk_ids='1b36:0010',
        nic=devices.NIC,
        nic_ids='8086:10d3',
        bridge=devices.BRIDGE,
        pf=PF,
        pf_ids=PF_IDS,
        shared=devices.SHARED,
        shared_nic=devices.SHARED_NIC,
        unnamed=UNNAMED,
        unnamed_ids='8086:0d58',
        mdev=misuse.INSTANCE,
        mdev_parent='mtty',
        mdev_type='mtty-1',
    )


def is_lock_of_a_device(kernel, path) -> bool:
    """Each lock stays as a file, so a caller must not make up their names."""
    return path.parent.name == 'locks' and any(
        (kernel.sys / directory / path.name).exists()
        for directory in ('bus/pci/devices', 'class/mdev_bus')
    )


def tree(kernel) -> dict[str, str | bytes]:
    """All of /sys, byte for byte, and what the privileged half has noted."""
    found: dict[str, str | bytes] = {}
    for top in (kernel.sys, kernel.root / 'run', kernel.root / 'held'):
        for path in sorted(top.rglob('*')):
            if path.is_symlink():
                found[str(path)] = str(path.readlink())
            elif path.is_file() and not is_lock_of_a_device(kernel, path):
                found[str(path)] = path.read_bytes()
    return found


@pytest.mark.parametrize('name', misuse.MISUSES)
def test_a_misuse(kernel, place, name):
    before, writes = tree(kernel), list(kernel.writes)
    assert misuse.outcome(name, place) == misuse.MISUSES[name][1]
    assert kernel.writes == writes
    assert kernel.resets == []
    assert tree(kernel) == before


def entry_points() -> set[tuple[str, str]]:
    """Module and function of each privileged call that has arguments."""
    found = set()
    for module in pkgutil.walk_packages(
        privileged.__path__, f'{privileged.__name__}.'
    ):
        loaded = importlib.import_module(module.name)
        for name, value in vars(loaded).items():
            if (
                inspect.isfunction(value)
                and value.__module__ == module.name
                and context.pctxt.is_entrypoint(value)
                and inspect.signature(value).parameters
            ):
                found.add((module.name, name))
    return found


def test_each_entry_point_is_misused(place, monkeypatch):
    called = set()
    wanted = entry_points()
    for module, name in wanted:

        def note(*args, _called=(module, name), **kwargs):
            called.add(_called)

        monkeypatch.setattr(importlib.import_module(module), name, note)
    for name in misuse.MISUSES:
        misuse.outcome(name, place)
    assert ('os_acc.privileged.pci.functions', 'take') in wanted
    assert wanted - called == set()

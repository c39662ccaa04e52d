# SPDX-License-Identifier: Apache-2.0

"""Preparing a VF for a guest and releasing it.

The peer is the writes to sysfs alone. os-acc also checks that the VF is not in
use, writes its journal before each step, waits until the guest has released
the VF, and can undo what it did.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import os
import pathlib
import time

import lab_devices
import pytest
import use

import os_acc

SYS = pathlib.Path('/sys/bus/pci')
PF = SYS / 'devices' / lab_devices.NVME_PF
VF = use.VFS[1]
NUMBER = lab_devices.NVME_PF_VFS


def until(check: Callable[[], object]) -> None:
    while not check():
        time.sleep(0.001)


def write(path: pathlib.Path, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def make() -> None:
    write(PF / 'sriov_drivers_autoprobe', '0')
    write(PF / 'sriov_numvfs', str(NUMBER))
    until(lambda: len(list(PF.glob('virtfn*'))) == NUMBER)


def remove() -> None:
    write(PF / 'sriov_numvfs', '0')
    write(PF / 'sriov_drivers_autoprobe', '1')


def bind() -> None:
    vf = SYS / 'devices' / VF
    write(vf / 'driver_override', 'vfio-pci')
    write(SYS / 'drivers_probe', VF)
    until((vf / 'driver').exists)
    group = (vf / 'iommu_group').readlink().name
    until(pathlib.Path('/dev/vfio', group).exists)


def unbind() -> None:
    vf = SYS / 'devices' / VF
    write(vf / 'driver_override', '\n')
    write(vf / 'driver/unbind', VF)


@pytest.fixture
def plug(tmp_path: pathlib.Path) -> Iterator[Callable[[], None]]:
    use.configure(tmp_path / 'state')
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    instance = use.instance()

    def plug() -> None:
        os_acc.plug(instance, [use.pci_request(VF)])
        os_acc.unplug(instance)

    yield plug
    use.close()


def test_vf(plug, take_turns) -> None:
    """The VF exists already; it is bound to vfio-pci and back."""
    make()

    def bare() -> None:
        bind()
        unbind()

    take_turns(plug, bare, 20)
    remove()


def test_vf_from_nothing(plug, take_turns) -> None:
    """The VFs are created before and removed afterwards."""

    def bare() -> None:
        make()
        bind()
        unbind()
        remove()

    take_turns(plug, bare, 10)

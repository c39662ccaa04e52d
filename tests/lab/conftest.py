# SPDX-License-Identifier: Apache-2.0

"""Fixtures for the tests in the lab: its devices, and checks after each test.

These tests change devices of the kernel that they run on. So they run only in
the machine that boot.py boots.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import time
from typing import Any

import lab_devices
import live
import pytest

# pytest finds these hooks by their names in a conftest.
from says import pytest_report_teststatus  # noqa: F401
from says import pytest_runtest_makereport  # noqa: F401
from says import pytest_runtest_protocol  # noqa: F401
from summary import pytest_terminal_summary  # noqa: F401
from summary import report  # noqa: F401
import use

import os_acc

PCI = pathlib.Path('/sys/bus/pci/devices')
MDEVS = pathlib.Path('/sys/bus/mdev/devices')
MODULES = ('vfio-pci', 'mdev', 'mtty', 'nvme', 'e1000', 'e1000e')
# Nova is in one environment only, see tox.ini. Name the directory to run it.
collect_ignore = ['with_nova']
MARKERS = ('boot1', 'boot2', 'boot3')

IN_LAB = 'os_acc_lab=1' in pathlib.Path('/proc/cmdline').read_text().split()
BOOT = int(os.environ.get('OS_ACC_LAB_BOOT', '1'))
BOOTS = int(os.environ.get('OS_ACC_LAB_BOOTS', '1'))


def pytest_configure(config: pytest.Config) -> None:
    # Collecting changes nothing: boot.py does it on the host.
    if not IN_LAB and not config.getoption('collectonly'):
        raise pytest.UsageError(
            'this is not the lab: run these tests by "python '
            'tests/lab/boot.py"'
        )
    for marker in MARKERS:
        config.addinivalue_line(
            'markers', f'{marker}: runs at that boot only, see boot.py'
        )


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    def wanted(item: pytest.Item) -> bool:
        boots = [name for name in MARKERS if item.get_closest_marker(name)]
        if boots:
            return BOOTS > 1 and f'boot{BOOT}' in boots
        return BOOT == 1

    left_out = [item for item in items if not wanted(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if wanted(item)]
    # Tests that leave devices in use for the next boot run last.
    items.sort(key=lambda item: 'leave_all' in item.fixturenames)


def _text(path: pathlib.Path) -> str | None:
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return None


def _link(path: pathlib.Path) -> str | None:
    try:
        return path.readlink().name
    except FileNotFoundError:
        return None


def _snapshot() -> dict[str, dict[str, Any]]:
    devices: dict[str, dict[str, Any]] = {
        path.name: {
            'driver': _link(path / 'driver'),
            'driver_override': _text(path / 'driver_override'),
            'sriov_numvfs': _text(path / 'sriov_numvfs'),
            'sriov_drivers_autoprobe': _text(path / 'sriov_drivers_autoprobe'),
        }
        for path in PCI.iterdir()
    }
    for path in MDEVS.iterdir():
        devices[path.name] = {
            'parent': path.resolve().parent.name,
            'type': _link(path / 'mdev_type'),
        }
    return devices


def _differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [
        f'{name}: was {before.get(name)}, is {after.get(name)}'
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def _put_back(before: dict[str, dict[str, Any]]) -> None:
    """Clean up, so that only the test that left something behind fails."""
    for name in _snapshot().keys() - before.keys():
        with contextlib.suppress(OSError):
            (MDEVS / name / 'remove').write_text('1')
    for name, was in before.items():
        now = _snapshot().get(name)
        device = PCI / name
        if now is None or now == was or 'driver' not in was:
            continue
        with contextlib.suppress(OSError):
            if now['sriov_numvfs'] != was['sriov_numvfs']:
                (device / 'sriov_numvfs').write_text('0')
            (device / 'driver_override').write_text('\n')
            if now['driver'] and now['driver'] != was['driver']:
                (device / 'driver' / 'unbind').write_text(name)
            (PCI.parent / 'drivers_probe').write_text(name)


@pytest.fixture(scope='session', autouse=True)
def _modules() -> None:
    subprocess.run(['modprobe', '-a', *MODULES], check=True, timeout=120)
    subprocess.run(['udevadm', 'settle'], check=True, timeout=120)


@pytest.fixture
def snapshot(_modules):
    """A function: all of the host's PCI functions and mediated devices."""
    return _snapshot


@pytest.fixture
def leave_all():
    """For a test that leaves devices in use, which the next boot checks."""


@pytest.fixture(autouse=True)
def _nothing_is_left(request, snapshot):
    """Check that every other test leaves the devices as it found them."""
    before = snapshot()
    yield
    if 'leave_all' in request.fixturenames:
        return
    # Drivers are bound in the background.
    deadline = time.monotonic() + 15
    while (left := _differences(before, snapshot())) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.2)
    if left:
        _put_back(before)
        pytest.fail('the test left behind:\n' + '\n'.join(left))


@pytest.fixture
def nvme_pf() -> str:
    """The address of the SR-IOV physical function, with no VFs."""
    return lab_devices.NVME_PF


@pytest.fixture
def mtty() -> pathlib.Path:
    """The parent of mediated devices, which is no PCI function."""
    return pathlib.Path('/sys/class/mdev_bus/mtty').resolve()


@pytest.fixture
def mounted_nvme(tmp_path):
    """The address of an NVMe of which a namespace is mounted."""
    (disk,) = (PCI / lab_devices.NVME_DISK).glob('nvme/nvme*/nvme*n1')
    device = f'/dev/{disk.name}'
    # Not on tmp_path itself, where the journal is.
    mount = tmp_path / 'mount'
    mount.mkdir()
    for command in (
        ['mkfs.ext2', '-q', '-F', device],
        ['mount', device, mount],
    ):
        subprocess.run(command, check=True, timeout=120)
    yield lab_devices.NVME_DISK
    subprocess.run(['umount', mount], check=True, timeout=120)


@pytest.fixture
def nic_up():
    """The address of an Ethernet function whose interface is up."""
    (interface,) = (PCI / lab_devices.NIC / 'net').iterdir()
    link = ['ip', 'link', 'set', interface.name]
    subprocess.run([*link, 'up'], check=True, timeout=60)
    yield lab_devices.NIC
    subprocess.run([*link, 'down'], check=True, timeout=60)


@pytest.fixture
def configured(tmp_path):
    """This process uses os-acc as root, without privsep's daemon."""
    use.configure(tmp_path / 'state')
    yield os_acc.CONF
    use.close()


@pytest.fixture
def held():
    """A function that holds a VFIO file open in another process."""
    holders = []

    def hold(path: str) -> int:
        started = use.Holder(path)
        holders.append(started)
        return started.pid

    yield hold
    for holder in holders:
        holder.end()


@pytest.fixture
def lab_state() -> pathlib.Path:
    """A directory on a disk that is kept over a reboot (see boot.py)."""
    return pathlib.Path('/lab/state')


@pytest.fixture(scope='module')
def libvirtd(tmp_path_factory):
    started = live.Libvirtd(tmp_path_factory.mktemp('libvirt'))
    yield started
    started.stop()


@pytest.fixture(scope='module')
def guest(libvirtd):
    """A running guest for all tests of this module."""
    made = live.Guest(libvirtd)
    made.start()
    yield made
    made.remove()


@pytest.fixture
def here(configured):
    """Configure os-acc for live calls. The tests read libvirt by virsh."""
    conf = configured
    conf.set_override('release_timeout', 20.0, 'os_acc')
    for name, value in {
        'connection_uri': live.URI,
        'detach_attempt_timeout': 15.0,
        'detach_timeout': 60.0,
    }.items():
        conf.set_override(name, value, 'os_acc_libvirt')
    return conf

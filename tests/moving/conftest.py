# SPDX-License-Identifier: Apache-2.0

"""Fixtures for the moves of a guest between two hosts: see machine.py."""

from __future__ import annotations

import pathlib
import sys

import pytest

sys.path.append(str(pathlib.Path(__file__).parents[1] / 'lab'))

from hosts import Host
from moving import Instance

# pytest finds these hooks by their names in a conftest.
from says import pytest_report_teststatus  # noqa: F401
from says import pytest_runtest_makereport  # noqa: F401
from says import pytest_runtest_protocol  # noqa: F401
from summary import pytest_terminal_summary  # noqa: F401
from summary import report  # noqa: F401

#: Of the VFs that init.sh has made, but for the number.
VFS = '0000:01:00'
COMMAND_LINE = pathlib.Path('/proc/cmdline').read_text().split()


def pytest_configure(config: pytest.Config) -> None:
    if 'os_acc_moving=1' not in COMMAND_LINE and not config.getoption(
        'collectonly'
    ):
        raise pytest.UsageError(
            'these tests run by "python tests/moving/machine.py"'
        )


@pytest.fixture(scope='session')
def hosts(tmp_path_factory):
    """Host one and host two."""
    directory = tmp_path_factory.mktemp('hosts')
    found = [
        Host(name, directory / name, f'127.0.1.{number}', f'{VFS}.{number}')
        for number, name in enumerate(('one', 'two'), 1)
    ]
    for host in found:
        host.start_libvirtd()
        host.wait_for_libvirtd()
        if host is found[0]:
            # It asks QEMU what it can, which takes long.
            host.virsh('domcapabilities', '--virttype', 'kvm')
            host.copy_capabilities(found[1])
        host.start_agent()
    yield found
    for host in found:
        host.stop()


@pytest.fixture
def instance(hosts, tmp_path):
    """An instance that runs on host one."""
    made = Instance(*hosts, tmp_path)
    made.start()
    yield made
    made.remove()


@pytest.fixture
def both(hosts, tmp_path):
    """An instance that runs on host one, and has a VF, too."""
    made = Instance(*hosts, tmp_path, with_vf=True)
    made.start()
    yield made
    made.remove()

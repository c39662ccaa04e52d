# SPDX-License-Identifier: Apache-2.0

"""Discovery of PCI functions with get_devices(). The peer is lspci.

Each driver of Cyborg runs ``lspci -nn -D`` and parses its lines. Here lspci
runs once, on the same tree. os-acc also finds the NUMA node and the traits of
each function, and whether the host or a VAN uses it.

Hosts have two shapes: the functions are VFs of some PFs, or none is a VF.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
import pathlib
import re
import subprocess

import pytest

import os_acc
from os_acc.kernel import pci_scan
from os_acc.privileged import context
from os_acc.testing.kernel import Kernel

ROUNDS = 10
NUMBERS = (512, 1024, 2048, 4096)
IDS, CLASS = '8086:09c4', 0x120000
VFS = 64

_LINE = re.compile(
    r'(?P<address>\S+) .*\[(?P<class>[0-9a-f]{4})\]: .*'
    r'\[(?P<vendor>[0-9a-f]{4}):(?P<product>[0-9a-f]{4})\]'
)


def address(number: int) -> str:
    return f'0000:{number >> 8:02x}:{number >> 3 & 31:02x}.{number & 7}'


def build(root: pathlib.Path, number: int, vfs: bool) -> Kernel:
    """Build the tree of a host.

    lspci can read the tree too.

    :param vfs: one function in 64 is a PF, and the others are its VFs. False:
        all are plain functions
    """
    made = Kernel(root)
    ids = b''.join(bytes.fromhex(part)[::-1] for part in IDS.split(':'))
    config = ids + bytes(5) + CLASS.to_bytes(3, 'little')
    config += bytes(64 - len(config))
    for place in range(number):
        pf = place - place % VFS
        is_vf = vfs and place != pf
        path = made.add_function(
            address(place),
            IDS,
            CLASS,
            group=place,
            files={'resource': '0x0 0x0 0x0\n' * 7, 'irq': '0\n'},
            physfn=address(pf) if is_vf else None,
            totalvfs=VFS - 1 if vfs and not is_vf else 0,
        )
        (path / 'config').write_bytes(config)
        if is_vf:
            link = made.pci / 'devices' / address(pf)
            (link / f'virtfn{place - pf - 1}').symlink_to(path)
    return made


def lspci(sysfs: pathlib.Path) -> dict[str, str]:
    """Return the ids of each address, as Cyborg's drivers do."""
    output = subprocess.run(
        [
            'lspci',
            '-A',
            'linux-sysfs',
            '-O',
            f'sysfs.path={sysfs}/bus/pci',
            '-nn',
            '-D',
        ],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    found = {}
    for line in output.splitlines():
        if match := _LINE.match(line):
            found[match['address']] = f'{match["vendor"]}:{match["product"]}'
    return found


def own() -> int:
    """Return how many functions get_devices() finds."""
    return sum(d.handles_total for d in os_acc.get_devices())


@pytest.fixture(scope='module')
def host(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[int, bool], Kernel]:
    return functools.cache(
        lambda number, vfs: build(
            tmp_path_factory.mktemp('host') / str(number), number, vfs
        )
    )


@pytest.fixture
def use(host, initialize, monkeypatch) -> Callable[..., pathlib.Path]:
    """Make os-acc use the tree with so many functions. Returns its sysfs."""

    def do(number: int, vfs: bool = True) -> pathlib.Path:
        made = host(number, vfs)
        made.install(monkeypatch)
        return made.sys

    initialize()
    os_acc.CONF.set_override('device_spec', ['{"address": "*"}'], 'os_acc')
    yield do
    os_acc.CONF.clear_override('device_spec', 'os_acc')
    context.pctxt.set_client_mode(True)


@pytest.mark.parametrize('shape', ['vfs', 'plain'])
def test_discovery(use, take_turns, shape) -> None:
    number = NUMBERS[-1]
    sysfs = use(number, shape == 'vfs')
    # Only the VFs count, because a PF that has VFs is no handle.
    pfs = number // VFS if shape == 'vfs' else 0
    assert own() == number - pfs
    there = {
        function.address: f'{function.vendor_id}:{function.product_id}'
        for function in pci_scan.functions()
    }
    assert (
        there
        == lspci(sysfs)
        == dict.fromkeys(map(address, range(number)), IDS)
    )
    take_turns(own, lambda: lspci(sysfs), ROUNDS)


@pytest.mark.parametrize('number', NUMBERS[:-1])
def test_growth(use, take_turns, number) -> None:
    """Compare the time for 4,096 functions with the time for fewer."""
    use(number)
    assert own() == number - number // VFS

    def peer() -> None:
        use(number)
        own()

    def act() -> None:
        use(NUMBERS[-1])
        own()

    take_turns(act, peer, ROUNDS)

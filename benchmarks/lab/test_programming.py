# SPDX-License-Identifier: Apache-2.0

"""Programming a port of the simulated DFL card.

The peer is the kernel's ioctl alone. os-acc also checks the image and that
the card is not in use, copies the image to where only root can change it,
writes its journal, and reads afterwards which function the port has.
benchmarks/test_pools.py uses the time of this.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import itertools
import pathlib
from typing import Any

import dfl_card
import pytest
import use

import os_acc
from os_acc.bitstreams import gbs
from os_acc.kernel import dfl
from os_acc.privileged.fpga import dfl_ioctl

#: Bytes of an image: about that of a port of Intel's PAC with an Arria 10.
SIZE = 10 << 20
FUNCTIONS = (
    'aaaaaaaa-1111-4222-8333-444455556666',
    'ffffffff-1111-4222-8333-444455556666',
)
SPEC = {
    'address': dfl_card.PF,
    'programmer': 'dfl',
    'programming': 'dynamic',
    'num_vfs': 2,
}


@pytest.fixture
def images(tmp_path: pathlib.Path) -> Iterator[list[pathlib.Path]]:
    """Images of two functions; the card is up."""
    dfl_card.up()
    use.configure(tmp_path / 'state', [SPEC], initialize=False)
    os_acc.CONF.set_override(
        'allowed_folders', [str(tmp_path)], 'os_acc_bitstreams'
    )
    os_acc.initialize(reset=True)
    made = []
    for each in FUNCTIONS:
        made.append(tmp_path / f'{each}.gbs')
        made[-1].write_bytes(dfl_card.image(each, SIZE))
    yield made
    use.close()
    dfl_card.down()


def test_programming(
    images: list[pathlib.Path],
    benchmark: Any,
    take_turns: Callable[..., None],
) -> None:
    """One function after the other; the peer repeats the last one."""
    card = dfl.find(dfl_card.PF)
    assert card is not None
    turns = itertools.cycle(images)
    last = next(turns)

    def program() -> None:
        nonlocal last
        last = next(turns)
        assert os_acc.program_device(dfl_card.PF, str(last), None, '0')

    def bare() -> None:
        data = bytearray(last.read_bytes())
        offset = gbs.parse(bytes(data[: gbs.HEAD]), len(data), '').offset
        dfl_ioctl.program(card, 0, data, offset)

    program()
    take_turns(program, bare, 10)
    benchmark.extra_info['bytes'] = SIZE

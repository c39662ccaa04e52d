# SPDX-License-Identifier: Apache-2.0

"""Many processes and threads, few devices."""

from __future__ import annotations

from concurrent import futures
import random
import threading
import time

import processes
import use

import os_acc
from os_acc import exception

AT_ONCE = 32
PROCESSES = 2


def test_64_at_once_over_4_vfs_and_12_mdevs(tmp_path, snapshot):
    before = snapshot()
    handles = [use.pci_request(vf).handle for vf in use.VFS]
    handles += [use.mdev_request('mtty-2').handle for _ in range(12)]
    claims = tmp_path / 'claims'
    claims.mkdir()

    def work() -> None:
        use.configure(tmp_path / 'state')
        # Many wait for one parent, and the emulated machine is slow.
        os_acc.CONF.set_override('device_timeout', 300.0, 'os_acc')
        with futures.ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(one, range(AT_ONCE)))

    def one(number: int) -> None:
        """Plug a free device, check that no other guest has it, unplug it."""
        chance = random.Random(number)
        deadline = time.monotonic() + 2000
        while time.monotonic() < deadline:
            handle = chance.choice(handles)
            instance = use.instance()
            try:
                os_acc.plug(
                    instance,
                    [
                        os_acc.objects.AcceleratorRequest(
                            uuid=use.instance().uuid, handle=handle
                        )
                    ],
                )
            except exception.PlugException as err:
                assert isinstance(err.__cause__, exception.DeviceBusy), err
                # Attempts that are refused take the CPU from the others.
                time.sleep(2 * chance.random())
                continue
            claim = claims / handle.identity.replace('/', '_')
            claim.touch(exist_ok=False)
            time.sleep(chance.random() / 50)
            claim.unlink()
            assert os_acc.unplug(instance) == 1
            return
        raise AssertionError('no device in all that time')

    started = [processes.start(work) for _ in range(PROCESSES)]
    assert [processes.wait(pid) for pid in started] == [0] * PROCESSES
    assert threading.active_count() < AT_ONCE
    use.configure(tmp_path / 'state')
    assert not os_acc.get_vans()
    use.close()
    assert snapshot() == before

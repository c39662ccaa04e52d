# SPDX-License-Identifier: Apache-2.0

"""Which handles are free for a VAN, and which it may give back."""

from __future__ import annotations

import os_acc
from os_acc import objects


def test_handles_of_others(host):
    first, second = os_acc.plug(host.instance(), host.requests(2))
    by = host.driver
    assert by.handles_of_others(first) == {second.handle.identity}
    assert by.handles_of_others(second) == {first.handle.identity}
    assert not by.is_anothers(first)


def test_a_handle_that_the_request_names_is_the_vans_own(host):
    """It is in the journal before prepareVAN is called."""
    handle = objects.TestHandle(name='asked')
    seen = []
    prepare = host.driver.prepareVAN

    def look(van, request, instance_info):
        listed = {each.handle for each in host.driver.handles()}
        seen.append((listed, host.driver.handles_of_others(van)))
        prepare(van, request, instance_info)

    host.driver.prepareVAN = look
    os_acc.plug(host.instance(), [host.request(handle=handle)])
    assert seen == [({handle.identity}, set())]


def test_a_late_undo(host):
    instance = host.instance()
    handle = objects.TestHandle(name='asked')
    (old,) = os_acc.plug(instance, [host.request(handle=handle)])
    assert not host.driver.is_anothers(old)
    os_acc.unplug(instance)
    # Another VAN may get it before the undo has ended.
    assert host.driver.is_anothers(old)
    (new,) = os_acc.plug(host.instance(), [host.request(handle=handle)])
    assert host.driver.is_anothers(old)
    assert not host.driver.is_anothers(new)
    assert not host.driver.is_anothers(objects.VAN(uuid=old.uuid))

# SPDX-License-Identifier: Apache-2.0

"""Something dies while a guest moves live; then both hosts recover.

Each test is a row of a table: what dies, in the copy of the memory or in the
switch, when the source is paused and the target not yet started. In each, the
journals of both hosts say the same as the hypervisors: one host has each
device. Where no host can know it, the source waits.
"""

from __future__ import annotations

import signal

from guest import wait
from hosts import Refused
import pytest

MOMENTS = ('copy', 'switch')


@pytest.fixture
def moving(instance):
    """An instance whose target is prepared."""
    instance.prepare(instance.one, instance.two)
    instance.check('outgoing', 'incoming')
    return instance


@pytest.fixture(params=MOMENTS)
def at(request, moving):
    """A function: begin to move, and act at a moment."""
    return {'copy': moving.in_the_copy, 'switch': moving.in_the_switch}[
        request.param
    ]


def fails(instance) -> None:
    """The call of libvirt that moves the guest raises an error."""
    with pytest.raises(Refused) as caught:
        instance.one.result()
    assert caught.value.name == 'libvirtError'


def goes_on_at_the_source(instance) -> None:
    """Both recover: the source has its device again, the target none."""
    wait(lambda: instance.two.qemu(instance.guest.name) is None)
    instance.recover()
    instance.lives_on(instance.one, instance.two)
    instance.check('plugged', None)


def is_at_the_target(instance) -> None:
    """Both recover: the target has its device, and the source waits."""
    wait(lambda: instance.one.qemu(instance.guest.name) is None)
    instance.recover()
    instance.lives_on(instance.two, instance.one)
    instance.check('outgoing', 'plugged')
    instance.finish(instance.one)
    instance.check(None, 'plugged')


def again(host) -> None:
    """libvirtd starts again."""
    host.start_libvirtd()
    host.wait_for_libvirtd()


def test_qemu_of_the_target(moving, at):
    at(lambda: moving.two.kill_qemu(moving.guest.name))
    fails(moving)
    goes_on_at_the_source(moving)
    # The target can be tried again, with a device that is made anew.
    moving.prepare(moving.one, moving.two)
    moving.begin(moving.one, moving.two)
    moving.one.result()
    moving.switch(moving.two)
    moving.finish(moving.one)
    moving.lives_on(moving.two, moving.one)
    moving.check(None, 'plugged')


def test_qemu_of_the_source_in_the_copy(moving):
    """The guest is lost. Its device waits for it on the source."""
    moving.in_the_copy(lambda: moving.one.kill_qemu(moving.guest.name))
    fails(moving)
    wait(lambda: moving.two.qemu(moving.guest.name) is None)
    moving.recover()
    moving.check('outgoing', None)
    moving.one.call('abort', instance=moving.uuid, move=moving.move)
    moving.check('plugged', None)
    moving.one.virsh('start', moving.guest.name)
    moving.lives_on(moving.one, moving.two)


def test_qemu_of_the_source_in_the_switch(moving):
    moving.in_the_switch(lambda: moving.one.kill_qemu(moving.guest.name))
    moving.one.result()
    is_at_the_target(moving)


def test_libvirtd_of_the_target(moving, at):
    at(lambda: moving.two.signal_libvirtd(signal.SIGKILL))
    fails(moving)
    # Its hypervisor does not answer, which decides nothing: QEMU lives on.
    assert moving.two.qemu(moving.guest.name) is not None
    moving.two.call('recover', migration_timeout=1.0)
    assert moving.two.journal(moving.uuid) == [
        ('incoming', f'mdev/{moving.mdevs["two"]}')
    ]
    again(moving.two)
    goes_on_at_the_source(moving)


def test_libvirtd_of_the_source_in_the_copy(moving):
    moving.in_the_copy(lambda: moving.one.signal_libvirtd(signal.SIGKILL))
    fails(moving)
    again(moving.one)
    goes_on_at_the_source(moving)


def test_libvirtd_of_the_source_in_the_switch(moving):
    """The source stays paused. The target runs, or is gone.

    It runs if libvirtd of the source has told it that all is copied.
    """
    moving.in_the_switch(lambda: moving.one.signal_libvirtd(signal.SIGKILL))
    fails(moving)
    again(moving.one)
    name, one, two = moving.guest.name, moving.one, moving.two
    wait(
        lambda: two.qemu(name) is None or two.state(name).startswith('running')
    )
    moving.recover()
    assert one.state(name).startswith('paused')
    if two.qemu(name) is None:
        moving.check('outgoing', None)
        one.virsh('resume', name)
        goes_on_at_the_source(moving)
    else:
        moving.check('outgoing', 'plugged')
        with pytest.raises(Refused):
            one.call('finish', instance=moving.uuid, move=moving.move)
        one.virsh('destroy', name)
        one.virsh('undefine', name)
        is_at_the_target(moving)


def test_the_caller(moving, at):
    """libvirt goes on without it."""
    at(moving.one.kill_agent)
    moving.one.start_agent()
    is_at_the_target(moving)


def test_domjobabort_in_the_copy(moving):
    moving.in_the_copy(lambda: moving.one.virsh('domjobabort', moving.uuid))
    fails(moving)
    goes_on_at_the_source(moving)


def test_domjobabort_in_the_switch(moving):
    """libvirt says that it has aborted, and then the guest moves."""
    moving.in_the_switch(
        lambda: moving.one.virsh('domjobabort', moving.uuid, check=False)
    )
    moving.one.result()
    is_at_the_target(moving)

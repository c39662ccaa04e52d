# SPDX-License-Identifier: Apache-2.0

"""A guest moves from one host to the other, in each of the three ways."""

from __future__ import annotations

import pathlib
import re
import shlex
import time
import uuid

import agent
import hosts
from hosts import ADDRESS
from hosts import Host
from hosts import mdev_exists

from os_acc import objects

TYPE = pathlib.Path(
    f'/sys/class/mdev_bus/{agent.PARENT}/mdev_supported_types/{agent.TYPE}'
)


def live(instance, source, target) -> str:
    """Move it live, and say how long each step has taken."""
    instance.prepare(source, target)
    instance.begin(source, target)
    source.result()
    instance.switch(target)
    instance.finish(source)
    steps = {
        'describe': source,
        'prepare': target,
        'hand_over': source,
        'migrate': source,
        'switch': target,
        'finish': source,
    }
    said = [
        f'{name} {host.seconds[name]:.3f} s' for name, host in steps.items()
    ]
    return f'{", ".join(said)}, downtime {downtime(instance, target)}'


def downtime(instance, target) -> str:
    """How long the guest stood still in its last move, as libvirt says."""
    shown = target.virsh('domjobinfo', '--completed', instance.guest.name)
    # libvirt does not always keep the figures of the job.
    found = re.search(r'Total downtime: *(\d+ ms)', shown.stdout)
    return found[1] if found else 'unknown'


def by_virsh(instance, source, target, mdev: str) -> str:
    """Move it live without os-acc, to a device that is there.

    :returns: how long that has taken
    """
    files = []
    for option in '--migratable', '--inactive':
        xml = source.virsh('dumpxml', option, instance.guest.name).stdout
        files.append(source.directory / f'move{option}.xml')
        files[-1].write_text(ADDRESS.sub(f"<address uuid='{mdev}'", xml))
    running, kept = map(str, files)
    started = time.monotonic()
    source.virsh(
        *('migrate', '--live', '--p2p', '--persistent', '--undefinesource'),
        *('--xml', running, '--persistent-xml', kept),
        *('--migrateuri', f'unix://{agent.SOCKET}'),
        *(instance.guest.name, target.uri),
    )
    seconds = time.monotonic() - started
    return f'migrate {seconds:.3f} s, downtime {downtime(instance, target)}'


def test_the_kernel_is_asked(tmp_path):
    """The kernel says that a device of mtty migrates."""
    host = Host('three', tmp_path / 'three')
    host.start_agent()
    instance, van, mdev = (str(uuid.uuid4()) for _ in range(3))
    host.call('plug', instance=instance, handles={van: f'mdev/{mdev}'})
    plan = objects.MigrationPlan.obj_from_primitive(
        host.call('describe', instance=instance)
    )
    assert (plan.way, plan.obstacles) == ('live', [])
    assert host.call('unplug', instance=instance) == 1
    assert not mdev_exists(mdev)
    host.stop()


def test_live(instance, report):
    """It keeps its device and the state of it, there and back."""
    one, two = instance.one, instance.two
    report(f'live: {live(instance, one, two)}')
    instance.lives_on(two, one)
    instance.check(None, 'plugged')
    report(f'live, back: {live(instance, two, one)}')
    instance.lives_on(one, two)
    instance.check('plugged', None)


def test_beside_virsh(instance, report):
    """The same guest moves with os-acc and without it."""
    one, two = instance.one, instance.two
    for _ in range(2):
        report(f'live, os-acc: {live(instance, one, two)}')
        report(f'live, os-acc: {live(instance, two, one)}')
        mine, other = instance.mdevs['one'], str(uuid.uuid4())
        (TYPE / 'create').write_text(other)
        report(f'live, virsh: {by_virsh(instance, one, two, other)}')
        assert two.mdevs_of(instance.guest.name) == ([other], [other])
        report(f'live, virsh: {by_virsh(instance, two, one, mine)}')
        (hosts.MDEVS / other / 'remove').write_text('1')
    instance.lives_on(one, two)
    instance.check('plugged', None)


def test_by_the_command(instance, report):
    """``os-acc migrate`` prepares, moves, switches and releases."""
    one, two = instance.one, instance.two
    command = ['migrate', instance.uuid, '--json', '--way', 'live']
    command += ['--to', two.uri]
    command += ['--remote-command', shlex.join(two.command())]
    assert one.os_acc(*command, '--dry-run')['way'] == 'live'
    started = time.monotonic()
    assert one.os_acc(*command)['way'] == 'live'
    report(f'os-acc migrate --way live: {time.monotonic() - started:.1f} s')
    ((_, identity),) = two.journal(instance.uuid)
    instance.mdevs['two'] = identity.removeprefix('mdev/')
    instance.lives_on(two, one)
    instance.check(None, 'plugged')
    # There is nothing left to move.
    assert 'error' in one.os_acc(*command, code=4)
    instance.lives_on(two, one)


def test_replug(both, report):
    """It gives its devices back, moves, and gets others."""
    one, two, guest = both.one, both.two, both.guest
    started = time.monotonic()
    both.prepare(one, two, live=True)
    assert (guest.mark(), guest.drives()) == (None, 0)
    both.begin(one, two, with_device=False)
    one.result()
    both.switch(two, live=True)
    # A second device, without the state of the first.
    both.lives_on(two, one, 'B')
    report(f'replug: {time.monotonic() - started:.1f} s')
    both.finish(one)
    both.check(None, 'plugged')


def test_cold(both):
    """It is stopped, and starts on the other host."""
    one, two, guest = both.one, both.two, both.guest
    last = int(guest.beats()[-1][0])
    both.prepare(one, two)
    one.virsh('destroy', guest.name)
    both.switch(two)
    both.define(two)
    one.virsh('undefine', guest.name)
    guest.log.write_text('')
    two.virsh('start', guest.name)
    both.lives_on(two, one)
    assert int(guest.beats()[0][0]) < last
    both.finish(one)
    both.check(None, 'plugged')

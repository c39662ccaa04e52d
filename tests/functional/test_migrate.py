# SPDX-License-Identifier: Apache-2.0

"""os-acc migrate between two libvirtd, with guests that QEMU emulates.

The devices are those of the fake driver, of which a domain's XML has nothing.
Needs root, and Debian's packages libvirt-clients, libvirt-daemon,
libvirt-daemon-driver-qemu and qemu-system-x86. If one of them is missing, the
tests fail. KVM is not needed.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import json
import signal

import libvirt_hosts
import processes
import pytest

from acc_plug_libvirt import guest as guest_module
from os_acc.moving import carrying
from os_acc.moving import moves
from os_acc.texts import ways

pytestmark = [pytest.mark.no_cover, pytest.mark.timeout(900)]

# After which step the command is killed, and which host has the guest when
# that is settled.
KILLS = [
    (ways.COLD, 'Target.prepare', 'one'),
    (ways.COLD, 'LibvirtGuest.define', 'one'),
    (ways.COLD, 'LibvirtGuest.stop', 'one'),
    (ways.COLD, 'hand_over', 'one'),
    (ways.COLD, 'Target.switch', 'two'),
    (ways.COLD, 'LibvirtGuest.forget', 'two'),
    (ways.COLD, 'LibvirtGuest.start', 'two'),
    (ways.COLD, 'finish', 'two'),
    (ways.REPLUG, 'Target.prepare', 'one'),
    (ways.REPLUG, 'hand_over', 'one'),
    (ways.REPLUG, 'LibvirtGuest.carry', 'two'),
    (ways.REPLUG, 'Target.switch', 'two'),
    (ways.REPLUG, 'finish', 'two'),
]


@pytest.fixture(scope='module')
def hosts(tmp_path_factory) -> Iterator[libvirt_hosts.Hosts]:
    made = libvirt_hosts.Hosts(tmp_path_factory.mktemp('hosts'))
    yield made
    made.close()


@pytest.fixture
def guest(hosts) -> Iterator[Callable[..., str]]:
    """Make a guest on the source, called web."""
    made: list[str] = []

    def make(**options) -> str:
        made.append(hosts.guest('web', **options))
        return made[-1]

    yield make
    for each in made:
        hosts.remove('web', each)


def move(hosts, instance, *arguments, **options) -> str:
    return hosts.source.os_acc(
        'migrate',
        instance,
        *hosts.target.destination(),
        *arguments,
        **options,
    )


def is_at(hosts, there, state='running') -> bool:
    """Whether all of the guest is on a host, and nothing on the other one."""
    (other,) = {hosts.source, hosts.target} - {there}
    assert (there.state('web'), other.state('web')) == (state, None)
    assert (there.states(), other.states()) == (['plugged'] * 2, [])
    assert (there.in_use(), other.in_use()) == (2, 0)
    return True


@pytest.mark.parametrize('way', [ways.REPLUG, ways.COLD])
def test_a_running_guest(hosts, guest, way, report):
    instance = guest()
    answer = json.loads(move(hosts, instance, '--way', way, '--json'))
    assert answer['left'] == answer['obstacles'] == []
    assert answer['way'] == way
    assert is_at(hosts, hosts.target)
    _, text = hosts.target.virsh('list', '--persistent', '--name')
    assert 'web' in text
    shown = ', '.join(f'{s["step"]} {s["seconds"]}' for s in answer['steps'])
    report(f'os-acc migrate, {way}: {shown} s')


def test_a_guest_that_does_not_shut_down(hosts, guest):
    """It goes on at the source, with its devices."""
    hosts.kernel.write_bytes(libvirt_hosts.kernel(obeys=False))
    try:
        instance = guest()
    finally:
        hosts.kernel.write_bytes(libvirt_hosts.kernel())
    move(hosts, instance, '--way', 'cold', '--timeout', '1', code=1)
    assert 'to shut down' in (hosts.source.directory / 'err').read_text()
    assert is_at(hosts, hosts.source)


@pytest.mark.parametrize(('way', 'code'), [(ways.REPLUG, 1), (ways.COLD, 3)])
def test_a_target_that_cannot_run_the_guest(hosts, guest, way, code):
    """Its QEMU cannot write the log of the guest's serial port.

    A running guest stays where it is. A guest that was stopped has moved when
    that is seen.
    """
    hosts.source.inside('mkdir', '-p', '/var/log/libvirt/here')
    log = (
        "<serial type='file'><source path='/var/log/libvirt/here/web'/>"
        "<target port='1'/></serial>"
    )
    instance = guest(devices=log)
    move(hosts, instance, '--way', way, code=code)
    said = (hosts.source.directory / 'err').read_text()
    assert '/var/log/libvirt/here/web' in said.replace('\n', '')
    if way == ways.REPLUG:
        assert is_at(hosts, hosts.source)
    else:
        assert is_at(hosts, hosts.target, 'shut off')


def killed_after(name: str) -> Callable[[], None]:
    """Make what kills a process after a step."""

    def watch() -> None:
        owner, _, method = name.rpartition('.')
        found = {
            'Target': carrying.Target,
            'LibvirtGuest': guest_module.LibvirtGuest,
            '': moves,
        }[owner]
        # It is cut before and after the step: it dies at the second.
        processes.Boundaries(1).watch(found, owner, [method])

    return watch


def end(host, act, instance, releases) -> None:
    """End a migration on a host, which may release the devices there.

    If the guest is still defined there then, the command says so.
    """
    left = releases and host.state('web') == 'shut off'
    host.os_acc('migration', act, instance, code=3 if left else 0)
    said = (host.directory / 'err').read_text()
    assert ('undefine --keep-nvram' in ' '.join(said.split())) == left, said


def settle(hosts, instance) -> libvirt_hosts.Host:
    """Do what doc/source/migration.rst says.

    :returns: the host that has the instance then
    """
    source, target = hosts.source, hosts.target
    if 'incoming' in target.states():
        runs = target.state('web') == 'running'
        end(target, 'finish' if runs else 'abort', instance, not runs)
    owner, other = source, target
    if target.states():
        owner, other = target, source
    if 'outgoing' in source.states():
        goes = owner is not source
        end(source, 'finish' if goes else 'abort', instance, goes)
    if other.state('web') is not None:
        other.virsh('undefine', 'web')
    if owner.state('web') != 'running':
        owner.virsh('start', 'web')
    return owner


@pytest.mark.parametrize(('way', 'step', 'where'), KILLS)
def test_the_command_is_killed(hosts, guest, way, step, where):
    instance = guest()
    move(
        hosts,
        instance,
        '--way',
        way,
        code=-signal.SIGKILL,
        before=killed_after(step),
    )
    owner = settle(hosts, instance)
    assert owner.name == where
    assert is_at(hosts, owner)

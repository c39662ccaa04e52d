# SPDX-License-Identifier: Apache-2.0

"""Where os-acc migrate moves to, and the command that it runs there."""

from __future__ import annotations

import pytest

from acc_plug_libvirt import guest
from os_acc import exception
from os_acc.moving import destination

OS_ACC = ['os-acc', '--config-file', '/etc/a b.conf', 'migration', 'target']
QUOTED = "os-acc --config-file '/etc/a b.conf' migration target"


@pytest.mark.parametrize(
    ('uri', 'options', 'host'),
    [
        ('ssh://two', [], 'two'),
        ('ssh://nova@two.example.org:2222/', ['-p', '2222', '-l', 'nova'], 0),
        ('ssh://[fe80::1%eth0]', [], 'fe80::1%eth0'),
        ('qemu+ssh://root@two:24/system', ['-p', '24', '-l', 'root'], 'two'),
        # The port and the user are libvirt's.
        ('qemu+tls://me@two:16514/system?no_verify=1', [], 'two'),
        ('qemu+tcp://192.0.2.7/system', [], '192.0.2.7'),
    ],
)
def test_os_acc_is_run_there_by_ssh(uri, options, host):
    command = destination.parse_uri(uri).command(OS_ACC)
    end = command[command.index('ServerAliveCountMax=4') + 1 :]
    assert end == [*options, '--', host or 'two.example.org', QUOTED]
    assert command[:4] == ['ssh', '-T', '-o', 'BatchMode=yes']


@pytest.mark.parametrize(
    'uri', ['qemu+unix:///system?socket=/run/two', 'qemu:///system']
)
def test_without_a_host_it_is_run_here(uri):
    assert destination.parse_uri(uri).command(OS_ACC) == OS_ACC


@pytest.mark.parametrize(
    'uri',
    [
        '',
        'two',
        'ssh://',
        'ssh:///',
        'ssh://-oProxyCommand=id',
        'ssh://-two',
        'ssh://two-',
        'ssh://two;id',
        'ssh://$(id)',
        'ssh://two two',
        'ssh://two\n',
        'ssh://-l@two',
        'ssh://me:secret@two',
        'ssh://two/system',
        'ssh://two?a=b',
        'ssh://two:0x16',
        'ssh://two:99999',
        'ssh://[::1',
        'qemu+ssh://-oProxyCommand=id/system',
        'qemu+ssh://a b/system',
        'qemu+tls://me:secret@two/system',
        '-x://two',
        'qemu:',
    ],
)
def test_anything_else_is_refused(uri):
    with pytest.raises(exception.InvalidRequest, match='--to') as error:
        destination.parse_uri(uri)
    assert error.value.kwargs['expected'] == destination.EXPECTED


@pytest.mark.parametrize(
    ('own', 'target', 'expected'),
    [
        ('qemu:///system', 'ssh://two', 'qemu+ssh://two/system'),
        ('qemu:///session', 'ssh://me@two:24', 'qemu+ssh://me@two:24/session'),
        (
            'qemu+unix:///system?socket=/x',
            'ssh://two/',
            'qemu+ssh://two/system',
        ),
        ('qemu:///system', 'qemu+tls://two/system', 'qemu+tls://two/system'),
    ],
)
def test_libvirt_there(own, target, expected):
    assert guest.target_uri(own, target) == expected

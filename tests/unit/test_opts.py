# SPDX-License-Identifier: Apache-2.0

"""The options of the group [os_acc], and of all extensions."""

from __future__ import annotations

import io

import command
from oslo_config import cfg
from oslo_config import generator
import pytest

from os_acc import exception
from os_acc import loader
from os_acc import opts


@pytest.fixture
def conf():
    made = cfg.ConfigOpts()
    opts.register(made)
    made([], default_config_files=[])
    return made


def test_defaults(conf):
    assert conf.os_acc.plugin == 'libvirt'
    assert conf.os_acc.drivers == []
    assert conf.os_acc.state_path == '/var/lib/os-acc'
    assert conf.os_acc.max_workers == 16
    assert conf.os_acc.lock_timeout == 300
    assert conf.os_acc.journal_timeout == 30


def test_registered_twice(conf):
    opts.register(conf)
    assert conf.os_acc.plugin == 'libvirt'


def test_registered_globally():
    import os_acc

    assert 'state_path' in os_acc.CONF.os_acc


def test_lock_path(conf):
    assert opts.lock_path(conf) == '/var/lib/os-acc/locks'
    conf.set_override('state_path', '/srv/acc', 'os_acc')
    assert opts.lock_path(conf) == '/srv/acc/locks'
    conf.set_override('lock_path', '/run/lock/acc', 'os_acc')
    assert opts.lock_path(conf) == '/run/lock/acc'


def test_host(conf, monkeypatch):
    monkeypatch.setattr('socket.gethostname', lambda: 'kernel-name')
    assert conf.os_acc.host == ''
    assert opts.host(conf) == 'kernel-name'
    # nova-compute and the Cyborg agent have this option.
    conf.register_opt(cfg.StrOpt('host'))
    assert opts.host(conf) == 'kernel-name'
    conf.set_override('host', 'compute-7')
    assert opts.host(conf) == 'compute-7'
    conf.set_override('host', 'compute-8', 'os_acc')
    assert opts.host(conf) == 'compute-8'


def test_host_of_the_command(clean, tmp_path, capsys, monkeypatch):
    """The command reads Nova's option in Nova's file."""
    run = command.Command(tmp_path / 'none', capsys, monkeypatch)
    file = tmp_path / 'nova.conf'
    file.write_text('[DEFAULT]\nhost = compute-7\n', encoding='utf-8')
    assert run('--config-file', file, 'van', 'list').code == 0
    assert opts.host(cfg.CONF) == 'compute-7'


@pytest.mark.parametrize(
    ('name', 'value'),
    [
        ('max_workers', 0),
        ('max_workers', 257),
        ('max_workers', 'many'),
        ('lock_timeout', -1),
        ('journal_timeout', 0),
    ],
)
def test_out_of_range(conf, name, value):
    with pytest.raises(ValueError, match=r'[Ss]hould be|invalid'):
        conf.set_override(name, value, 'os_acc')


def test_from_a_file(tmp_path):
    file = tmp_path / 'nova.conf'
    file.write_text(
        '[os_acc]\ndrivers = qat, pci\nlock_timeout = 0.5\n', encoding='utf-8'
    )
    conf = cfg.ConfigOpts()
    opts.register(conf)
    conf([], default_config_files=[str(file)])
    assert conf.os_acc.drivers == ['qat', 'pci']
    assert conf.os_acc.lock_timeout == 0.5


def test_list_opts():
    listed = dict(loader.list_opts())
    assert {'os_acc', 'os_acc_fake', 'os_acc_libvirt'} <= set(listed)
    assert 'os_acc_noop' not in listed  # it has none
    assert {o.name for o in listed['os_acc']} == {o.name for o in opts.OPTS}
    assert 'managed' in {o.name for o in listed['os_acc_libvirt']}
    assert 'hardware_path' in {o.name for o in listed['os_acc_fake']}
    for options in listed.values():
        for option in options:
            assert option.help, option.name


def test_sample_file():
    conf = cfg.ConfigOpts()
    generator.register_cli_opts(conf)
    conf(['--namespace', 'os_acc'], default_config_files=[])
    sample = io.StringIO()
    generator.generate(conf, sample)
    text = sample.getvalue()
    assert '[os_acc]\n' in text
    assert '#state_path = /var/lib/os-acc\n' in text
    assert '#lock_path = <state_path>/locks\n' in text
    assert '#host = <host name>\n' in text
    assert '[os_acc_libvirt]\n' in text
    assert '#guest_addresses =\n' in text


@pytest.fixture
def from_file(tmp_path):
    def read(text):
        made = cfg.ConfigOpts()
        opts.register(made)
        path = tmp_path / 'nova.conf'
        path.write_text(text)
        made([], default_config_files=[str(path)])
        return made

    return read


GOOD = '[os_acc]\nstate_path = /srv/os-acc\nlock_path = /run/os-acc\n'
EXTRA = [('os_acc_x', [cfg.BoolOpt('fast'), cfg.StrOpt('a-b')])]


def test_no_fault(from_file):
    conf = from_file(GOOD + '[os_acc_x]\nfast = yes\n')
    conf.register_opts(EXTRA[0][1], 'os_acc_x')
    assert opts.faults(conf, EXTRA) == []
    assert opts.faults(from_file('')) == []
    opts.check(conf, EXTRA)


def test_all_faults_are_told(from_file, tmp_path):
    conf = from_file(
        '[os_acc]\nmax_workers = many\nlock_timeout = -1\n'
        '[os_acc_bitstreams]\ncache_size = big\n[os_acc_x]\nfast = maybe\n'
    )
    conf.register_opts(EXTRA[0][1], 'os_acc_x')
    file = tmp_path / 'nova.conf'
    with pytest.raises(exception.InvalidRequest) as caught:
        opts.check(conf, EXTRA)
    told = str(caught.value).removeprefix('configuration: ').split('; ')
    assert told[:2] == [
        f'[os_acc] max_workers in {file}:2: invalid literal for int() '
        "with base 10: 'many'. Write a number and nothing else, such as 16",
        f'[os_acc] lock_timeout in {file}:3: Should be greater than or '
        'equal to 0',
    ]
    assert told[2].startswith(f'[os_acc_bitstreams] cache_size in {file}:5: ')
    assert told[3:] == [
        f"[os_acc_x] fast in {file}:7: Unexpected boolean value 'maybe'. "
        'Write true or false'
    ]


@pytest.mark.parametrize('option', ['state_path', 'lock_path'])
def test_a_relative_directory(from_file, tmp_path, option):
    (fault,) = opts.faults(from_file(f'[os_acc]\n{option} = os-acc\n'))
    assert fault == (
        f"[os_acc] {option} in {tmp_path}/nova.conf:2: it is 'os-acc', "
        'expected the absolute path of a directory'
    )


def test_no_state_path(from_file, tmp_path):
    (fault,) = opts.faults(from_file('[os_acc]\nstate_path =\n'))
    place = f'[os_acc] state_path in {tmp_path}/nova.conf:2: '
    assert f"{place}it is '', expected" in fault


@pytest.mark.parametrize('value', ['inf', 'nan', '1e300'])
@pytest.mark.parametrize('option', ['journal_timeout', 'lock_timeout'])
def test_a_time_that_nobody_can_wait_for(from_file, option, value):
    """It would fail in the middle of a plug, and of its undo."""
    (fault,) = opts.faults(from_file(f'[os_acc]\n{option} = {value}\n'))
    assert f'[os_acc] {option} in ' in fault
    assert 'expected a number of at most 9223372036' in fault

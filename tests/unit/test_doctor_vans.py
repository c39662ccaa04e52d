# SPDX-License-Identifier: Apache-2.0
"""os-acc doctor: the hardware of each VAN, and the service's user."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import types

import command
import devices
import pytest

import os_acc
from os_acc import loader
from os_acc.doctor import daemon_of_user
from os_acc.doctor import privileges
from os_acc.doctor import service_user
from os_acc.privileged import context


@pytest.fixture
def run(clean, capsys, monkeypatch):
    """One VAN on a fake device is plugged, and doctor is run."""
    monkeypatch.setattr(privileges, 'findings', lambda: [])
    loader.load_all()  # registers the options
    for name, value in {'devices': ['nic0:pci:4'], 'discover': True}.items():
        os_acc.CONF.set_override(name, value, 'os_acc_fake')
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    os_acc.initialize()
    (van,) = os_acc.plug(
        devices.instance(), [devices.wanted('CUSTOM_FAKE_PCI')]
    )
    path = os_acc.CONF.os_acc.state_path
    made = command.Command(path, capsys, monkeypatch)

    def run():
        result = made('doctor', '--json')
        found = [
            (each['verdict'], each['finding'])
            for each in result.json['findings']
            if each['subject'] == f'VAN {van.uuid}'
        ]
        assert (result.code == 1) == (not result.json['healthy'])
        return found

    run.van = van
    run.command = made
    return run


def change(run, **values):
    for name, value in values.items():
        setattr(run.van, name, value)
    os_acc._host.journal.save(run.van)


def one(run):
    ((verdict, text),) = run()
    assert verdict == 'error'
    assert run.van.instance_uuid in text
    return text


def test_json(run):
    answer = run.command('doctor', '--json').json
    assert set(answer) == {'healthy', 'findings'}
    (found,) = [
        each
        for each in answer['findings']
        if each['subject'] == 'devices of driver fake'
    ]
    assert found == {
        'subject': 'devices of driver fake',
        'verdict': 'ok',
        'finding': 'discovery lists 1, with 3 of 4 handles free',
        'what_to_do': '',
    }


def test_a_van_in_order(run):
    assert run() == []


def test_hardware_that_was_changed_by_hand(run):
    directory = f'{run.command.state_path}/fake-hardware'
    for name in os.listdir(directory):
        os.unlink(f'{directory}/{name}')
    assert "is not as driver 'fake' has prepared it" in one(run)


@pytest.mark.parametrize(
    ('method', 'act', 'says'),
    [
        ('is_intact', lambda *_: False, 'what plugin'),
        ('is_intact', lambda *_: 1 / 0, 'cannot be examined: ZeroDivision'),
    ],
)
def test_the_instance_half(run, monkeypatch, method, act, says):
    monkeypatch.setattr(f'acc_plug_noop.NoopPlugin.{method}', act)
    assert says in one(run)


def test_a_handle_that_the_plugin_does_not_take(run):
    change(run, plugin='powervm')
    assert 'does not accept' in one(run)


def test_a_plugged_van_without_a_handle(run):
    change(run, handle=None)
    assert 'it is plugged, but has no attach handle' in one(run)


def test_extensions_that_are_not_loaded(run):
    change(run, driver='gone', plugin='lost')
    texts = [text for _, text in run()]
    assert any("its driver 'gone' is not loaded" in text for text in texts)
    assert any("its plugin 'lost' is not loaded" in text for text in texts)


# --- the daemon, as the user of the service


@pytest.fixture
def as_root(monkeypatch, tmp_path):
    """This process is root, and another user owns the state path.

    :returns: makes the child answer, and returns the finding
    """
    user = pwd.struct_passwd(
        ('nova', 'x', 4242, 4242, '', '/var/lib/nova', '/bin/sh')
    )
    monkeypatch.setattr(os, 'geteuid', lambda: 0)
    monkeypatch.setattr(os, 'getgrouplist', lambda *_: [4242])
    monkeypatch.setattr(pwd, 'getpwuid', lambda _: user)
    owner = types.SimpleNamespace(st_uid=4242)
    conf = types.SimpleNamespace(
        os_acc=types.SimpleNamespace(state_path=str(tmp_path)),
        config_file=['/etc/nova/nova.conf'],
    )

    def check(answer):
        def start(words, **kwargs):
            assert words[-1] == '/etc/nova/nova.conf'
            assert kwargs['user'] == 4242
            if isinstance(answer, BaseException):
                raise answer
            return subprocess.CompletedProcess(words, 3, answer, 'a\nb\n')

        with monkeypatch.context() as patch:
            patch.setattr(subprocess, 'run', start)
            patch.setattr(os, 'stat', lambda *_, **__: owner)
            return list(service_user.findings(conf))

    check.conf = conf
    return check


def answer(**values):
    return json.dumps({'user': 0, 'missing': [], 'error': None} | values)


def test_the_user_of_the_service_can_start_the_daemon(as_root):
    (found,) = as_root(f'noise\n{answer()}\n')
    assert (found.subject, found.verdict) == (
        'privsep daemon of user nova',
        'ok',
    )


@pytest.mark.parametrize(
    ('said', 'text'),
    [
        (answer(error='sudo says no'), 'sudo says no'),
        (answer(user=4242), 'it runs as user id 4242'),
        (answer(missing=['CAP_CHOWN']), 'lacks CAP_CHOWN'),
        ('', 'the check ended with exit code 3: b'),
        (OSError(13, 'Permission denied'), 'Permission denied'),
        (subprocess.TimeoutExpired('x', 60), 'did not start within 60 s'),
    ],
)
def test_the_user_of_the_service_cannot(as_root, said, text):
    (found,) = as_root(said)
    assert found.verdict == 'error'
    assert text in found.text
    assert 'allow nova to start' in found.advice


def test_an_owner_without_a_name(as_root, monkeypatch):
    def fail(_):
        raise KeyError

    monkeypatch.setattr(pwd, 'getpwuid', fail)
    (found,) = as_root('')
    assert found.verdict == 'warning'
    assert 'user id 4242' in found.text


def test_nothing_to_check_without_root(as_root, monkeypatch):
    assert list(service_user.findings(as_root.conf)) == []  # root owns it
    as_root.conf.os_acc.state_path += '/no'
    assert list(service_user.findings(as_root.conf)) == []
    monkeypatch.setattr(os, 'geteuid', lambda: 1)
    assert as_root('') == []


def test_a_directory_of_configuration_files(as_root, monkeypatch):
    """It may say how the daemon is started."""
    as_root.conf.config_file = []
    as_root.conf.config_dir = ['/etc/none.d', '/etc/nova/nova.conf']
    monkeypatch.setattr(os.path, 'isdir', lambda path: 'none' not in path)
    (found,) = as_root(answer())
    assert found.verdict == 'ok'


def test_the_child_reads_a_directory(clean, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(context, 'whoami', lambda: (0, []))
    (tmp_path / 'os-acc.conf').write_text('[os_acc]\nplugin = noop\n')
    daemon_of_user.main([str(tmp_path)])
    assert json.loads(capsys.readouterr().out)['error'] is None
    assert os_acc.CONF.os_acc.plugin == 'noop'


def test_the_child(clean, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(context, 'whoami', lambda: (0, ['CAP_CHOWN']))
    path = tmp_path / 'os-acc.conf'
    path.write_text('[os_acc]\nplugin = noop\n')
    daemon_of_user.main([str(path)])
    said = json.loads(capsys.readouterr().out)
    assert said == {'user': 0, 'missing': ['CAP_CHOWN'], 'error': None}
    daemon_of_user.main([f'{tmp_path}/none'])
    assert 'none' in json.loads(capsys.readouterr().out)['error']

# SPDX-License-Identifier: Apache-2.0
"""os-acc complete: the candidates, and the script of bash."""

from __future__ import annotations

import subprocess

import command
import pytest

import os_acc
from os_acc.cli import app
from os_acc.cli import candidates
from os_acc.cli import completion as completion_scripts


@pytest.fixture
def config(tmp_path):
    path = tmp_path / 'os-acc.conf'
    path.write_text(
        f'[os_acc]\nplugin = noop\nstate_path = {tmp_path}/state\n'
        '[os_acc_fake]\ndevices = nic0:pci:4, gpu0:mdev:1\ndiscover = True\n'
    )
    return path


@pytest.fixture
def run(clean, tmp_path, capsys, monkeypatch):
    return command.Command(tmp_path / 'state', capsys, monkeypatch)


@pytest.fixture
def words(clean, run):
    """The candidates for the last word of a line, with their texts."""

    def words(*line):
        text = ''.join(f'{word}\n' for word in ('os-acc', *line))
        result = run.fine('complete', 'words', stdin=text)
        return dict(row.split('\t') for row in result.out.splitlines())

    return words


def test_commands(words):
    assert set(words('va')) == {'van'}
    assert set(words('van', '')) >= {'forget', 'list', 'show'}
    assert set(words('van', 's')) == {'show'}
    assert 'doctor' in words('')
    assert words('nonsense', '') == {}


def test_options(words):
    assert '--config-file' in words('--c')
    found = words('plug', 'web-1', '--dr')
    assert set(found) == {'--driver', '--dry-run'}
    assert found['--driver'] == 'use this driver for all requests'
    assert words('--config-file', '') == {}
    assert words('run', '--', 'l') == {}


def test_choices(words):
    assert set(words('van', 'list', '--state', 'plu')) == {
        'plugged',
        'plugging',
    }
    assert set(words('complete', '')) == {'bash', 'fish', 'zsh'}
    assert 'fake' in words('plug', 'x', '--driver', '')
    assert set(words('plug', 'x', '--plugin', 'no')) == {'noop'}
    assert words('plug', 'x', '--arqs', '') == {}


def test_what_is_in_the_journal(words, run, config):
    plugged = run(
        '--config-file',
        config,
        'plug',
        'web-1',
        *('--resource-class', 'CUSTOM_FAKE_PCI', '--json'),
    ).json
    van, instance = plugged['vans'][0]['uuid'], plugged['instance']['uuid']
    line = ('--config-file', str(config))
    assert words(*line, 'van', 'show', '') == {van: 'plugged, nic0, web-1'}
    assert words(*line, 'unplug', '') == {
        'web-1': instance,
        instance: 'web-1',
    }
    assert words(*line, 'unplug', 'web-1', '--van', van[:5]) == {
        van: 'plugged, nic0, web-1'
    }
    assert words(f'--state-path={config.parent}/no', 'van', 'show', '') == {}


def test_what_is_on_the_host(words, config):
    line = ('-v', '--config-file', str(config))
    assert words(*line, 'device', 'show', '') == {
        'gpu0': 'CUSTOM_FAKE_MDEV, 1 of 1 free',
        'nic0': 'CUSTOM_FAKE_PCI, 4 of 4 free',
    }
    plug = (*line, 'plug', 'x')
    assert set(words(*plug, '--resource-class', 'CUSTOM_FAKE_M')) == {
        'CUSTOM_FAKE_MDEV'
    }
    assert set(words(*plug, '--trait', '')) == {'CUSTOM_FAKE_DEVICE'}


def test_a_directory_of_configuration_files(words, config, tmp_path):
    directory = tmp_path / 'conf.d'
    directory.mkdir()
    config.rename(directory / 'fake.conf')
    for option in (['--config-dir', directory], [f'--config-dir={directory}']):
        assert set(words(*option, 'device', 'show', '')) == {'gpu0', 'nic0'}
    assert words('--config-dir', '') == {}


def test_what_cannot_be_read_is_no_error(clean, monkeypatch):
    def fail(*_):
        raise OSError

    monkeypatch.setattr(candidates.journal_module, 'Journal', fail)
    assert candidates.of('van') == {}
    assert candidates.of(None) == {}


def test_unreadable_rows_and_failing_drivers(words, run, config):
    os_acc.CONF.clear_override('state_path', 'os_acc')
    config.write_text(
        config.read_text().replace('= True', '= True\nfail = get_devices')
    )
    assert words('--config-file', str(config), 'device', 'show', '') == {}


def test_the_scripts(run):
    for name, script in completion_scripts.SCRIPTS.items():
        assert run.fine('complete', name).out == script
        assert 'os-acc complete words' in script


def test_a_name_is_one_line(words, monkeypatch):
    names = {'web\nx; reboot': '', 'web\33[2J': '', 'web-1': ''}
    monkeypatch.setattr(candidates, 'of', lambda kind: names)
    assert words('unplug', '') == {'web-1': ''}


def test_bash_quotes_a_name(tmp_path):
    """Else Enter would run what is in the name of an instance."""
    script = tmp_path / 'try.sh'
    script.write_text(
        "os-acc() { printf '%s\\t%s\\n' 'web; $(reboot)' a; }\n"
        + completion_scripts.BASH
        + 'COMP_LINE="os-acc unplug we"; COMP_POINT=${#COMP_LINE}\n'
        '_os_acc; eval "echo $COMPREPLY"\n'
    )
    done = subprocess.run(
        ['bash', str(script)],
        capture_output=True,
        text=True,
        timeout=600,
        env={'PATH': '/nowhere'},
        executable='/bin/bash',
    )
    assert (done.stdout, done.stderr) == ('web; $(reboot)\n', '')


def test_bash(tmp_path):
    """Its script works with a command that answers as os-acc does."""
    tool = tmp_path / 'os-acc'
    tool.write_text(
        '#!/bin/bash\nmapfile -t words\n'
        'printf "%s\tx y\n" "${words[@]}" 0000:3b:00.0\n'
    )
    tool.chmod(0o755)
    script = tmp_path / 'try.sh'
    script.write_text(
        completion_scripts.BASH
        + 'COMP_LINE="os-acc device show 0000:3b:"; COMP_POINT=${#COMP_LINE}\n'
        '_os_acc; printf "%s\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(
        ['bash', str(script)],
        env={'PATH': f'{tmp_path}:/usr/bin:/bin'},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert (done.stderr, done.returncode) == ('', 0)
    assert done.stdout.splitlines()[1:] == ['device', 'show', '', '00.0']


def test_cliffs_own_command_is_replaced(clean):
    made = app.OSAccApp()
    factory, _, _ = made.command_manager.find_command(['complete', 'bash'])
    assert factory.__module__ == 'os_acc.cli.completion'

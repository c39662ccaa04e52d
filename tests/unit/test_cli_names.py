# SPDX-License-Identifier: Apache-2.0

"""Names that nobody has, words that are no commands, and one style of help."""

import pathlib
import re

import command
import pytest

import os_acc
from os_acc import loader
from os_acc.cli import app
from os_acc.cli import exit_codes
from os_acc.cli import usage as neighbours

FAKE = ('--resource-class', 'CUSTOM_FAKE_PCI', '--driver', 'fake')
VAN = '0f5d1c7e-6a83-4b0e-9c59-5f3f1c9be001'
COMMANDS = sorted(app.Commands('os_acc.cli').commands)


@pytest.fixture
def run(clean, tmp_path, capsys, monkeypatch):
    loader.load_all()  # it registers the options
    os_acc.CONF.set_override('devices', ['nic0:pci:4'], 'os_acc_fake')
    yield command.Command(tmp_path / 'state', capsys, monkeypatch)
    os_acc.CONF.clear_override('devices', 'os_acc_fake')


def test_unplug_of_a_name_that_never_was(run):
    run.fine('plug', 'web-1', *FAKE)
    result = run('unplug', 'web-2')
    assert result.code == 0
    assert result.out == 'released 0: instance web-2 has none\n'
    said = ' '.join(result.err.split())
    assert said == (
        "The journal has no record of an instance 'web-2', current or past. "
        "Did you mean 'web-1'? See: os-acc van list"
    )
    # Again, of a script that retries, is no reason to say anything.
    assert run.fine('unplug', 'web-1').out == 'released 1\n'
    again = run.fine('unplug', 'web-1').out
    assert again == 'released 0: instance web-1 has none\n'


def test_a_name_does_not_control_the_terminal(run):
    run.fine('plug', 'web-1', *FAKE, '--name', 'web-\33[2J1')
    result = run('unplug', 'web-2')
    assert "Did you mean 'web-\\x1b[2J1'?" in ' '.join(result.err.split())
    assert '\33' not in result.out + result.err
    assert '\33' not in run('unplug', 'web-2', '--must-exist').err


def test_handles_that_are_not_free_as_yaml(run):
    os_acc.CONF.set_override('discover', True, 'os_acc_fake')
    run.fine('plug', 'web-1', *FAKE)
    said = run.fine('device', 'list', '-f', 'yaml', '-c', 'not_free').out
    assert 'used: 1' in said


def test_an_instance_that_is_called_run(run):
    run.fine('plug', *FAKE, '--', 'run')
    assert run.fine('unplug', '--', 'run').out == 'released 1\n'


def test_unplug_that_must_exist(run):
    van = run.fine('plug', 'web-1', *FAKE, '-f', 'json').json[0]['uuid']
    for instance in ('web-2', 'elephant'):
        line = run.fails(
            exit_codes.NOT_FOUND, 'unplug', instance, '--must-exist'
        )
        assert f"INSTANCE is '{instance}'" in line
        assert ("Did you mean 'web-1'?" in line) is (instance == 'web-2')
        assert 'See: os-acc van list' in line
    for extra in ([], ['--dry-run']):
        line = run.fails(
            exit_codes.NOT_FOUND,
            *('unplug', 'web-1', '--must-exist', '--van', VAN, '--van', van),
            *extra,
        )
        assert VAN in line
    assert len(run.fine('van', 'list', '-f', 'json').json) == 1
    done = run.fine('unplug', 'web-1', '--must-exist', '--van', van)
    assert done.out == 'released 1\n'
    run.fails(exit_codes.NOT_FOUND, 'unplug', 'web-1', '--must-exist')


def test_unplug_that_must_exist_without_a_journal(run):
    result = run('unplug', 'web-1', '--must-exist')
    assert result.code == exit_codes.NOT_FOUND
    assert not pathlib.Path(os_acc.CONF.os_acc.state_path).exists()


@pytest.mark.parametrize(
    ('typed', 'named'),
    [
        ('attach', 'plug'),
        ('bundle', 'support'),
        ('preview', 'plug --dry-run'),
        ('rollback', 'recover'),
        ('list', 'device list'),
        ('show', 'van show'),
        ('allow', 'device allow'),
        ('Status', 'doctor'),
        ('unplgu', 'unplug'),
    ],
)
def test_words_for_a_command(run, typed, named):
    line = run.fails(exit_codes.WRONG_USAGE, typed, 'x')
    known = line.partition('; there is ')[2].partition('. See:')[0]
    assert named in known.split(', ')


def test_neighbours_are_no_commands_and_name_commands():
    firsts = {name.split()[0] for name in COMMANDS}
    known = neighbours.WORDS
    assert known.keys() & firsts == set()
    for named in known.values():
        for each in named:
            assert each.partition(' --')[0] in COMMANDS


@pytest.mark.parametrize('name', ['', *COMMANDS])
def test_one_style_of_help(run, name):
    """Each option: lower case or a name, no full stop at the end."""
    text = run.fine(*name.split(), '--help').out
    options = text.partition('\noptions:\n')[2].partition('\ncommands:')[0]
    found = re.split(r'\n(?=  -)', '\n' + options)[1:]
    assert found
    for each in found:
        _, _, said = each.strip().partition('  ' if '  ' in each else '\n')
        said = ' '.join(said.split()).partition('\n')[0]
        assert said, each
        assert re.match(r'[a-z]|[A-Z]{2}|-', said), each
        assert not said.endswith('.'), each
    for theirs in ('Formatter', 'formatter', 'show this help message'):
        assert theirs not in text

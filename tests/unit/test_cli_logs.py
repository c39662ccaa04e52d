# SPDX-License-Identifier: Apache-2.0
"""What the command logs: to the file of --log-file, and to its stderr."""

import io
import logging
import re

import command
import pytest

from os_acc.cli import logs

SECONDS = r'\d+\.\d{3} s'
HALVES = f'device half {SECONDS}, instance half {SECONDS}'


@pytest.fixture
def run(clean, tmp_path, capsys, monkeypatch):
    """Run the command with a configuration of fake devices."""
    path = tmp_path / 'os-acc.conf'
    path.write_text(
        '[os_acc]\nplugin = noop\n'
        '[os_acc_fake]\ndevices = nic0:pci:4\ndiscover = True\n'
    )
    made = command.Command(tmp_path / 'state', capsys, monkeypatch)
    return lambda *arguments: made('--config-file', path, *arguments)


def plug(run, *options):
    return run(
        *options,
        'plug',
        'web-1',
        '--resource-class',
        'CUSTOM_FAKE_PCI',
        '-f',
        'value',
        '-c',
        'VAN',
    )


def test_the_file_says_what_was_plugged_and_unplugged(run, tmp_path):
    log = tmp_path / 'log'
    van = plug(run, '--log-file', log).out.strip()
    assert run('--log-file', log, 'unplug', 'web-1').code == 0
    text = log.read_text()
    lines = [line for line in text.splitlines() if f'[van: {van}]' in line]
    assert len(lines) == 2
    for line, said in zip(
        lines, ('plugged pci/ffff:00:00.0 by', 'unplugged pci/'), strict=True
    ):
        assert ' INFO os_acc.attach.' in line
        assert '[instance: ' in line
        assert said in line
        assert re.search(f'{HALVES}$', line)
    assert re.search(r'Command plug of user id \d+ begins', text)
    assert 'Command unplug ended with exit code 0 after' in text
    assert 'stevedore' not in text
    assert 'DEBUG' not in text


def test_the_file_says_what_failed(run, tmp_path):
    log = tmp_path / 'log'
    result = run('--log-file', log, 'device', 'show', 'nothing')
    assert result.code not in (0, 2)
    assert 'ERROR' in log.read_text()
    assert 'nothing' in log.read_text()


def test_a_password_in_the_arguments_is_not_logged(run, tmp_path):
    log = tmp_path / 'log'
    plug(run, '--log-file', log, '-vv')
    result = run(
        '--log-file',
        log,
        'device',
        'program',
        'nic0',
        '--bitstream',
        'https://me:s3cret@images.test/x',
    )
    assert result.code != 0
    assert 's3cret' not in log.read_text()


@pytest.mark.parametrize(
    ('options', 'levels'),
    [
        ((), set()),
        (('-v',), {'plugged', 'begins'}),
        (('-vv',), {'plugged', 'begins', 'prepareVAN by'}),
    ],
)
def test_standard_error(run, options, levels):
    text = plug(run, *options).err
    assert 'stevedore' not in text
    assert 'found extension' not in text
    assert {
        w for w in ('plugged', 'begins', 'prepareVAN by') if w in text
    } == (levels)


def test_debug_in_the_file_too(run, tmp_path):
    log = tmp_path / 'log'
    plug(run, '--log-file', log, '-vv')
    assert 'DEBUG os_acc.attach.steps: ' in log.read_text()
    assert 'stevedore' not in log.read_text()


def test_a_log_file_that_cannot_be_written(run, tmp_path):
    path = tmp_path / 'no' / 'log'
    result = run('--log-file', path, 'van', 'list')
    assert result.code == 2
    assert result.err == (
        f"InvalidRequest: os-acc: --log-file is '{path}', expected a file "
        'that can be written (No such file or directory)\n'
    )


def test_a_configuration_file_that_is_not_utf_8(run, tmp_path):
    path = tmp_path / 'latin.conf'
    path.write_bytes(b'[os_acc]\n# Ren\xe9\nplugin = noop\n')
    result = run('--config-file', path, 'van', 'list')
    assert result.code == 2
    assert result.err == (
        f'InvalidRequest: configuration file {path}: line 2 is not UTF-8 '
        '(byte 0xe9 at position 6 of the line)\n'
    )


def test_recovery_says_how_long_each_half_took(run, caplog, monkeypatch):
    plug(run)
    caplog.set_level(logging.INFO, 'os_acc')
    monkeypatch.setattr('os_acc.kernel.sysfs.boot_id', lambda: 'b' * 36)
    assert run('recover').code == 0
    assert any(
        re.search(f'prepared again after a reboot: {HALVES}$', line)
        for line in caplog.messages
    )


@pytest.mark.parametrize('error', [OSError(28, 'No space'), ValueError('x')])
def test_a_file_that_cannot_be_written_is_told_once(
    tmp_path, monkeypatch, error
):
    """An error of the program's own is shown as logging shows it."""

    def fail():
        raise error

    console, log = io.StringIO(), logging.getLogger('os_acc.test')
    monkeypatch.setattr(logging.root, 'handlers', [])
    monkeypatch.setattr(logging.root, 'level', logging.root.level)
    monkeypatch.setattr(logging, 'raiseExceptions', False)
    _, file = logs.configure(console, 1, False, str(tmp_path / 'log'))
    with monkeypatch.context() as patch:
        patch.setattr(file, 'flush', fail)
        for _ in range(2):
            log.info('a line')
    file.close()
    told = f'The log file {tmp_path}/log cannot be written: No space\n'
    assert console.getvalue() == (told if isinstance(error, OSError) else '')

# SPDX-License-Identifier: Apache-2.0

"""Wrong inputs of the command: one line that says what is wrong, a code."""

import pathlib

import command
import pytest

import os_acc
from os_acc.cli import exit_codes
from os_acc.privileged import context

DATA = pathlib.Path(__file__).parent.parent / 'data'
FAKE = DATA / 'bound-arqs-fake.json'
INSTANCE = 'ac407c84-63e6-412c-91a9-6bf933a420ad'
VAN = '061c0c22-0139-4404-af0c-dad4469dc6b7'
OTHER = 'b5a2c9a4-7b1c-4e70-8a4e-30a4c1a3a7f1'

FAILED = exit_codes.FAILED
USAGE = exit_codes.WRONG_USAGE
NOT_FOUND = exit_codes.NOT_FOUND
BUSY = exit_codes.BUSY

PCI = ('--resource-class', 'CUSTOM_FAKE_PCI')
FPGA = ('device', 'program', 'fpga0', '--region', '0')
NONE = ('--resource-class', 'X')
RUN = ('run', *PCI)

# What is typed, the exit code, what is wrong, and what to do about it.
WRONG = [
    # No such command or option.
    (['dance'], USAGE, "'dance'", '--help'),
    (['van'], USAGE, "'van'", 'van list'),
    (['vam', 'list'], USAGE, "'vam list'", 'van list'),
    (['device', 'lst'], USAGE, "'device lst'", 'device list'),
    (['--nonsense', 'van', 'list'], USAGE, '--nonsense', '--help'),
    (['van', 'list', '--nonsense'], USAGE, '--nonsense', 'help van list'),
    (['recover', 'everything'], USAGE, 'everything', 'help recover'),
    (['--config-file'], USAGE, '--config-file', 'expected one argument'),
    (['help', 'dance'], USAGE, "'dance'", '--help'),
    # Arguments that are missing.
    (['plug'], USAGE, 'INSTANCE', 'help plug'),
    (['plug', 'web'], USAGE, '--arqs', 'help plug'),
    (['unplug'], USAGE, 'INSTANCE', 'help unplug'),
    (['unplug', 'web', '--van'], USAGE, '--van', 'help unplug'),
    (['van', 'show'], USAGE, 'VAN', 'help van show'),
    (['van', 'forget'], USAGE, 'VAN', 'help van forget'),
    (['device', 'show'], USAGE, 'ADDRESS', 'help device show'),
    (['device', 'program'], USAGE, 'ADDRESS', 'help device program'),
    (['run', '--', 'true'], 2, '--resource-class', 'help run'),
    # Instances and VANs.
    (['plug', '', *PCI], USAGE, "''", '1 to 255 printable'),
    (['plug', 'a' * 256, *PCI], USAGE, 'aaa', '1 to 255 printable'),
    (['plug', 'a\nb', *PCI], USAGE, "'a\\nb'", '1 to 255 printable'),
    (['plug', OTHER[1:], *PCI], USAGE, OTHER[1:], 'a UUID, or a name'),
    (['unplug', OTHER[1:]], USAGE, OTHER[1:], 'a UUID, or a name'),
    (['unplug', INSTANCE, '--van', 'x'], USAGE, "'x'", 'a UUID, or the'),
    (['unplug', INSTANCE, '--van', '061'], USAGE, "'061'", 'first 8 or'),
    (['unplug', INSTANCE, '--van', 'f' * 8], NOT_FOUND, 'fff', 'van list'),
    (['van', 'show', OTHER], NOT_FOUND, OTHER, 'van list'),
    (['van', 'show', 'nobody'], NOT_FOUND, "'nobody'", 'van list'),
    (['van', 'show', '06'], USAGE, "'06'", 'first 8 or more'),
    (['van', 'forget', OTHER, '--yes'], NOT_FOUND, OTHER, 'van list'),
    (['van', 'forget', 'x', '--yes'], USAGE, "'x'", 'a UUID'),
    (['van', 'forget', VAN, '--yes'], USAGE, VAN, 'os-acc unplug'),
    (['van', 'list', '--instance', OTHER[1:]], USAGE, OTHER[1:], 'a UUID'),
    (['van', 'list', '--state', 'dancing'], USAGE, "'dancing'", 'plugged'),
    # Columns and formats.
    (['van', 'list', '-c', 'nonsense'], USAGE, "'nonsense'", 'instance_uuid'),
    (['van', 'show', VAN, '-c', 'x'], USAGE, "'x'", 'instance_uuid'),
    (['van', 'list', '--sort-column', 'x'], USAGE, "'x'", 'instance_uuid'),
    (['van', 'list', '-f', 'xml'], USAGE, "'xml'", 'json'),
    (['device', 'list', '--max-width', 'x'], USAGE, "'x'", 'help device'),
    # Requests.
    (['plug', OTHER, '--arqs', '/no/file'], USAGE, '/no/file', 'readable'),
    (['plug', OTHER, '--arqs', '/'], USAGE, "'/'", 'a readable file'),
    (['plug', INSTANCE, '--arqs', '-'], USAGE, "'-'", 'with JSON'),
    (['plug', 'web', '--arqs', FAKE], USAGE, "'web'", 'expected'),
    (['plug', OTHER, '--arqs', FAKE], USAGE, OTHER, 'expected'),
    (['plug', 'web', '--resource-class', 'a b'], USAGE, "'a b'", 'A-Z'),
    (['plug', 'web', *PCI, '--trait', 'x'], USAGE, "'x'", 'letters A-Z'),
    (['plug', 'web', *PCI, '--count', '0'], USAGE, "'0'", '1 to 256'),
    (['plug', 'web', *PCI, '--count', 'x'], USAGE, "'x'", '1 to 256'),
    (['plug', 'web', *PCI, '--count', '9'], BUSY, 'No device', 'free'),
    (['plug', 'web', *PCI, '--wait', '-1'], USAGE, "'-1'", '0 or more'),
    (['plug', 'web', *PCI, '--wait', 'x'], USAGE, "'x'", 'invalid'),
    (['plug', 'web', *PCI, '--arqs', '-'], USAGE, '--arqs', 'not allowed'),
    (['plug', 'web', *PCI, '--driver', 'x'], USAGE, "'x'", 'drivers are'),
    (['plug', 'web', *PCI, '--plugin', 'x'], USAGE, "'x'", 'plugins are'),
    (['plug', 'web', *PCI, '--os-cloud', 'x'], USAGE, '--os-cloud', 'is for'),
    (['plug', 'web', '--resource-class', 'X'], USAGE, "'X'", 'claims it'),
    # Devices.
    (['device', 'show', 'nowhere'], NOT_FOUND, 'nowhere', 'no driver'),
    (['device', 'free', 'nowhere'], USAGE, "'nowhere'", 'a device that is'),
    (['device', 'allow', 'x:y'], USAGE, "'x:y'", 'dddd:bb:ss.f'),
    (['device', 'deny', '/dev/../x'], USAGE, '/dev/../x', 'expected'),
    (
        ['device', 'program', 'nowhere', '--function', 'f'],
        NOT_FOUND,
        'nowhere',
        'no d',
    ),
    (FPGA, USAGE, 'bitstream', 'expected'),
    ([*FPGA, '--bitstream', '/etc/x'], FAILED, '/etc/x', 'allowed_folders'),
    ([*FPGA, '--bitstream', 'ftp://h/x'], USAGE, 'bitstream', 'https URL'),
    ([*FPGA, '--function', 'f', '--region', '9'], USAGE, "'9'", 'expected'),
    # Others.
    (['orphans', '--release'], USAGE, '--release', '--known and --owner'),
    (['orphans', '--known', '/no/file'], USAGE, '/no/file', 'readable file'),
    (['orphans', '--known', '-'], USAGE, "'-'", 'at least one UUID'),
    (['orphans', '--minimum-age', 'x'], USAGE, "'x'", 'help orphans'),
    (['orphans', '--minimum-age', '-1'], USAGE, '-1', 'expected'),
    (['recover', '--rebuild'], FAILED, 'not damaged', 'nothing to rebuild'),
    # Events, metrics and the file for a bug report.
    (['events', '--van', 'web'], USAGE, "'web'", 'first 8 or more'),
    (['events', '--van', '061c0c2'], USAGE, "'061c0c2'", 'first 8 or more'),
    (['events', '--instance', OTHER[1:]], USAGE, OTHER[1:], 'a UUID, or a'),
    (['events', '--since', 'soon'], USAGE, "'soon'", 'such as 90s'),
    (['events', '--since', '5y'], USAGE, "'5y'", '7d or 2w'),
    (['events', '--since'], USAGE, '--since', 'help events'),
    (['events', '--follow', '-f', 'csv'], USAGE, "'csv'", 'with --json'),
    (['events', '--follow', '--since', 'x'], USAGE, "'x'", 'such as 90s'),
    (['events', 'web'], USAGE, 'web', 'help events'),
    (['events', '-c', 'when'], USAGE, "'when'", 'instance_uuid'),
    (['metrics', '--output'], USAGE, '--output', 'help metrics'),
    (['metrics', '--output', '/no/x.prom'], USAGE, '/no/x.prom', 'No such'),
    (['metrics', '--output', '/'], USAGE, "'/'", 'a regular file'),
    (['metrics', 'all'], USAGE, 'all', 'help metrics'),
    (['support'], USAGE, 'FILE', 'help support'),
    (['support', '/etc/passwd'], USAGE, '/etc/passwd', 'exists already'),
    (['support', '/no/x.tar.gz'], USAGE, '/no/x.tar.gz', 'a new file'),
    # Forget.
    (['van', 'forget', VAN], USAGE, VAN, 'release it: os-acc unplug'),
    (['van', 'forget', '061c', '--yes'], USAGE, "'061c'", 'first 8 or more'),
    (['van', 'forget', VAN, 'x'], USAGE, 'x', 'help van forget'),
    # What is only tried, or waited for; what watch(1) does.
    (['plug', 'web', '--dry-run'], USAGE, '--arqs', 'help plug'),
    (['plug', 'web', *NONE, '--dry-run'], USAGE, "'X'", 'claims it'),
    (['plug', 'web', *PCI, '--count', '0', '--dry-run'], USAGE, "'0'", '1 to'),
    (['unplug', OTHER[1:], '--dry-run'], USAGE, OTHER[1:], 'a UUID, or a'),
    (['unplug', 'web', '--wait', 'inf'], USAGE, "'inf'", '0 or more'),
    (['unplug', 'web', '--wait', '-5'], USAGE, "'-5'", '0 or more'),
    ([*RUN, '--wait', 'x', '--', 'true'], USAGE, "'x'", 'help run'),
    (['unplug', 'web', '--wait', 'nan'], USAGE, "'nan'", '0 or more'),
    (['van', 'list', '--watch'], USAGE, '--watch', 'help van list'),
    (['device', 'list', '--watch'], USAGE, '--watch', 'help device list'),
    # Completion.
    (['complete'], USAGE, 'shell', 'help complete'),
    (['complete', 'tcsh'], USAGE, "'tcsh'", 'bash'),
    # A driver of one's own.
    (['new-driver'], USAGE, 'NAME', 'help new-driver'),
    (['new-driver', 'Acme-1'], USAGE, "'Acme-1'", 'underscores'),
    (['new-driver', 'fake'], USAGE, "'fake'", 'no installed driver'),
    (['new-driver', 'x' * 33], USAGE, 'xxx', '32 characters'),
    (
        ['new-driver', 'a', '--directory', '/etc/passwd'],
        USAGE,
        'passwd',
        'dir',
    ),
    # run has its own codes: see os_acc.cli.run.
    ([*RUN, '--plugin', 'x', '--', 'true'], 125, "'x'", 'plugins are'),
    ([*RUN, '--driver', 'x', '--', 'true'], 125, "'x'", 'drivers are'),
    ([*RUN, '--count', '9', '--', 'true'], 125, 'No device', 'free'),
    (['run', *NONE, '--', 'true'], 125, "'X'", 'claims it'),
    ([*RUN, 'true'], 125, 'command', '-- COMMAND'),
    (RUN, 125, 'command', 'os-acc run'),
    ([*RUN, '--', '/no/such/command'], 127, '/no/such/command', 'no such'),
    ([*RUN, '--', '/etc/passwd'], 126, '/etc/passwd', 'executable'),
    # cni-like has its answers on standard output.
    (['cni-like', 'dance'], FAILED, 'dance', 'add'),
    (['cni-like', 'add'], FAILED, 'standard input', 'Expecting value'),
    (['cni-like'], FAILED, 'ACTION', 'required'),
]


def name(case):
    return ' '.join(map(str, case[0]))[:40]


@pytest.fixture
def run(clean, tmp_path, capsys, monkeypatch):
    os_acc.CONF.set_override('host', 'vm', 'os_acc')
    path = tmp_path / 'os-acc.conf'
    path.write_text(
        '[os_acc_fake]\ndevices = nic0:pci:1, fpga0:pci:2:dynamic\n'
        'discover = True\n'
    )
    made = command.Command(tmp_path / 'state', capsys, monkeypatch)
    made.configuration = ('--config-file', path)
    made.fine('plug', INSTANCE, '--arqs', FAKE)
    return made


@pytest.mark.parametrize('case', WRONG, ids=map(name, WRONG))
def test_wrong_input(run, case):
    arguments, code, wrong, remedy = case
    before = run.fine('van', 'list', '-f', 'json').out
    result = run(*run.configuration, *arguments)
    assert result.code == code, result
    if arguments[0] == 'cni-like':
        line = result.json['details']
        assert result.err == ''
    else:
        line = result.err
        assert result.out == ''
        assert line.count('\n') == 1, line
    assert 'Traceback' not in line
    assert wrong in line
    assert remedy in line
    assert run.fine('van', 'list', '-f', 'json').out == before
    # Nothing is done as root for a wrong input.
    assert context.pctxt.channel is None


def test_there_are_sixty():
    assert len(WRONG) >= 60


@pytest.mark.parametrize(
    ('content', 'says'),
    [
        (b'[os_acc]\njournal_timeout = soon\n', 'journal_timeout'),
        (b'nonsense\n', 'wrong.conf:1 (the line is left out)'),
    ],
)
def test_wrong_configuration(run, tmp_path, content, says):
    path = tmp_path / 'wrong.conf'
    path.write_bytes(content)
    for arguments in (['van', 'list'], ['plug', 'web', *PCI]):
        line = run.fails(USAGE, '--config-file', path, *arguments)
        assert str(path) in line
        assert says in line


def test_a_configuration_file_that_is_missing(run):
    line = run.fails(USAGE, '--config-file', '/no/such.conf', 'van', 'list')
    assert '/no/such.conf' in line


def test_a_value_that_oslo_config_refuses(run, tmp_path):
    path = tmp_path / 'wrong.conf'
    path.write_text('[os_acc]\njournal_timeout = soon\n')
    result = run('--config-file', path, 'device', 'list')
    assert result.code == USAGE
    assert result.err == (
        f'InvalidRequest: configuration: [os_acc] journal_timeout in {path}:2'
        ": could not convert string to float: 'soon'. Write a number and "
        'nothing else, such as 30\n'
    )

# SPDX-License-Identifier: Apache-2.0

"""What the commands print on terminals of 80 and of 120 columns.

The directory screens has the output of each command. To write the files anew
after a change, and to look at the difference with git::

    pytest tests/unit/test_screens.py --write-screens
"""

import contextlib
import datetime
import pathlib
import re
import shutil
import sys
import types

from autopage import argparse
import command
import movable
from oslo_utils import timeutils
import pytest

import acc_plug_libvirt
import os_acc
from os_acc import journal
from os_acc import loader
from os_acc.cli import app
from os_acc.cli import base
from os_acc.cli import cyborg
from os_acc.cli import demo
from os_acc.cli import doctor
from os_acc.cli import history
from os_acc.cli import progress
from os_acc.cli import support as bundle
from os_acc.cli import tables
from os_acc.journal import health
from os_acc.kernel import sysfs
from os_acc.kinds.fake.driver import driver
from os_acc.operations import orphans
from os_acc.state import instance_names

SCREENS = pathlib.Path(__file__).parent / 'screens'
WIDTHS = (80, 120)

DEVICES = (
    'nic0:pci:4, nic1:pci:4, gpu0:mdev:2, gpu1:mdev:2, fpga0:pci:2:single, '
    'fpga1:pci:2:dynamic, accelerator-3b:pci:8, accelerator-d8:mdev:16'
)

# VANs of instances that are called by a name have the same UUIDs always.
WEB, JOB = 'web-1', 'job/7'
VAN = '9203b64d-2397-55cb-a0ce-01372f210632'
JOB_VAN = '25c02f5c-9e56-5d76-9d7c-b0e3a90b8f2d'

PCI = ('--resource-class', 'CUSTOM_FAKE_PCI')
MDEV = ('--resource-class', 'CUSTOM_FAKE_MDEV')

# In this order: the first ones plug what the others show.
COMMANDS = {
    'metrics': ('metrics',),
    'device-list': ('device', 'list'),
    'device-list-long': ('device', 'list', '--long'),
    'plug-dry-run': ('plug', WEB, *PCI, '--count', '2', '--dry-run'),
    'plug': ('plug', WEB, *PCI, '--count', '2'),
    'plug-mdev': ('plug', JOB, *MDEV),
    'plug-long': ('plug', WEB, *PCI, '--count', '2', '--long'),
    'unplug-dry-run': ('unplug', WEB, '--dry-run'),
    'van-list': ('van', 'list'),
    'van-list-long': ('van', 'list', '--long'),
    'van-show': ('van', 'show', VAN[:8]),
    'device-program': ('device', 'program', 'fpga0', '--function', 'aes'),
    'device-show': ('device', 'show', 'nic0'),
    'device-show-fpga': ('device', 'show', 'fpga0'),
    'host-show': ('host', 'show'),
    'host-show-long': ('host', 'show', '--long'),
    'orphans': ('orphans', '--minimum-age', '0'),
    'migration-check': ('migration', 'check', WEB),
    'migrate': ('migrate', WEB, '--to', 'ssh://two', '--dry-run'),
    'migration-target': ('migration', 'target'),
    'migration-list': ('migration', 'list'),
    'migration-abort': ('migration', 'abort', WEB),
    'device-spec': ('device', 'spec'),
    'cyborg-check': ('cyborg', 'check'),
    'cyborg-check-long': ('cyborg', 'check', '--long'),
    'doctor': ('doctor',),
    'unplug': ('unplug', JOB),
    'unplug-again': ('unplug', JOB),
    'recover': ('recover',),
    'van-list-error': ('van', 'list'),
    'van-forget': ('van', 'forget', VAN, '--yes'),
    'events': ('events',),
    'events-of-one': ('events', '--van', VAN[:8]),
    'migration-finish': ('migration', 'finish', WEB),
    'device-free': ('device', 'free', 'nic1'),
    'device-deny': ('device', 'deny', 'gpu9'),
    'device-allow': ('device', 'allow', 'gpu9'),
    'apply': ('apply', 'host.yaml'),
    'export': ('export',),
    'pools': ('pools',),
    'demand': ('demand',),
    'run': ('run', *MDEV, '--', 'printenv', 'OS_ACC_DEVICES'),
    'cni-like': ('cni-like', 'version'),
    'demo': ('demo',),
    'support': ('support', 'report.tar.gz'),
    'new-driver': ('new-driver', 'acme_card'),
    'complete': ('complete', 'bash'),
    'help': ('help',),
    'help-of-one': ('help', 'van', 'list'),
}


# The exit codes of those that are not done.
CODES = {'recover': 3}


class Command(command.Command):
    def break_one(self):
        """Leave a VAN half unplugged, so that recover has something to do."""
        opened = journal.Journal(str(self.state_path), 5)
        opened.mark(opened.entries()[:1], 'unplugging')
        opened.close()

    def hand_over(self):
        """Leave a migration of WEB whose caller has died."""
        opened = journal.Journal(str(self.state_path), 5)
        vans = opened.vans(instance_names.instance_uuid(WEB))
        for van in vans:
            van.state, van.migration_uuid = 'outgoing', JOB_VAN
        opened.save_all(vans)
        opened.close()

    def make_unhealthy(self):
        opened = journal.Journal(str(self.state_path), 5)
        opened.save_unhealthy(
            health.Health(
                'nic1', health.CLEANING, 'not clean', 'b', '2026', 'x'
            )
        )
        opened.close()

    def lose_driver(self):
        opened = journal.Journal(str(self.state_path), 5)
        (van, *_) = opened.vans()
        van.driver = 'acme'
        opened.save(van)
        opened.close()


@pytest.fixture
def run(clean, tmp_path, capfd, monkeypatch):
    """capfd: the command of os-acc run is another process."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / 'os-acc.conf'
    path.write_text(
        '[os_acc]\nplugin = libvirt\nhost = compute-1\nmax_workers = 1\n'
        f'[os_acc_fake]\ndevices = {DEVICES}\ndiscover = True\n'
    )
    (tmp_path / 'host.yaml').write_text(
        'version: 1\nfunctions:\n  - {device: fpga0, function: sha}\n'
        'pools:\n  - {function: sha, min_free: 2}\n'
    )
    made = Command(tmp_path / 'state', capfd, monkeypatch)
    made.configuration = ('--config-file', path)
    monkeypatch.setenv('NO_COLOR', '1')
    monkeypatch.setattr(sys, 'argv', ['os-acc'])
    monkeypatch.setattr(sysfs, 'boot_id', lambda: VAN)
    time = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    monkeypatch.setattr(timeutils, 'utcnow', lambda *args, **kwargs: time)
    for kind, text in (
        (history.Time, '2026-01-02 03:04:05'),
        (history.Seconds, '0.012'),
    ):
        monkeypatch.setattr(kind, 'human_readable', lambda _, text=text: text)
    monkeypatch.setattr(cyborg.CyborgCheck, 'take_action', differences)
    monkeypatch.setattr(doctor.Doctor, 'take_action', findings)
    monkeypatch.setattr(orphans, 'find', lambda host, *_: host.journal.vans())
    monkeypatch.setattr(bundle, 'collect', lambda _: {'doctor': {}})
    # These ask libvirtd.
    for name, answer in (('runs_guest', False), ('undefine_command', None)):
        monkeypatch.setattr(
            acc_plug_libvirt.LibvirtPlugin,
            name,
            lambda *_, answer=answer: answer,
        )
    # It asks both libvirtd, and os-acc on the other host.
    movable.install(monkeypatch, acc_plug_libvirt.LibvirtPlugin, 'libvirt')
    # The demo has delays, draws a bar, and shows the name of a new directory.
    no_time = types.SimpleNamespace(sleep=lambda seconds: None)
    monkeypatch.setattr(driver, 'time', no_time)
    monkeypatch.setattr(progress, 'Bar', lambda stream: lambda event: None)
    monkeypatch.setattr(
        demo,
        'tempfile',
        types.SimpleNamespace(
            TemporaryDirectory=lambda prefix: directory(
                tmp_path / f'{prefix}1'
            )
        ),
    )
    out = base.Command.out
    for kind, place in ((demo.Demo, '/tmp'), (base.Command, '/etc/os-acc')):
        monkeypatch.setattr(kind, 'out', elsewhere(tmp_path, place, out))
    return made


@contextlib.contextmanager
def directory(path):
    path.mkdir()
    yield str(path)
    shutil.rmtree(path)


def elsewhere(tmp_path, place, out):
    """The name of the directory changes how a line is wrapped."""
    return lambda self, text: out(self, text.replace(str(tmp_path), place))


def the_same_always(text):
    """Replace what differs from run to run, by as many characters."""
    text = re.sub(r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}', VAN, text)
    text = re.sub(r'VAN [0-9a-f]{8}(?![0-9a-f-])', f'VAN {VAN[:8]}', text)
    return re.sub(r'[ \d]\d\.\d{3} s', ' 0.012 s', text)


def differences(self, parsed_args):
    """What cyborg check says: the test has no Cyborg."""
    return self.keys(), [
        (
            'arq-gone',
            VAN,
            VAN,
            JOB_VAN,
            'pci/0000:3b:02.1',
            'The VAN is plugged, but its ARQ no longer exists',
            f'If the instance no longer needs it: os-acc unplug {JOB_VAN} '
            f'--van {VAN}',
            None,
        )
    ]


def findings(self, parsed_args):
    """What doctor says: the test must not depend on this machine."""
    return self.keys(), [
        ('configuration', 'ok', 'every option is valid', ''),
        (
            f'VAN {VAN}',
            'error',
            f'instance {JOB_VAN}: its device 0000:3b:02.1 is gone',
            f'os-acc unplug {JOB_VAN} --van {VAN}',
        ),
    ]


@pytest.mark.parametrize('columns', WIDTHS)
def test_screens(run, columns, monkeypatch, request):
    monkeypatch.setenv('COLUMNS', str(columns))
    monkeypatch.setattr(type(sys.stdout), 'isatty', lambda self: True)
    before = {
        'migration-list': run.hand_over,
        'migration-finish': run.hand_over,
        'recover': run.break_one,
        'van-forget': run.lose_driver,
        'device-free': run.make_unhealthy,
    }
    wrong = []
    for name, arguments in COMMANDS.items():
        if name == 'help-of-one' and sys.version_info >= (3, 13):
            # Python's argparse writes options in another form since then.
            continue
        if name in before:
            before[name]()
        extra = ()
        if name == 'recover':
            os_acc.CONF.set_override('fail', ['unprepareVAN'], 'os_acc_fake')
        result = run(*run.configuration, *extra, *arguments, stdin='{}')
        assert result.code == CODES.get(name, 0), result
        os_acc.CONF.clear_override('fail', 'os_acc_fake')
        shown = ' '.join(arguments)
        out = result.out
        if name in ('demo', 'run'):
            out = the_same_always(out)
        text = f'$ os-acc {shown}\n{out}'
        check_width(name, text, columns)
        file = SCREENS / f'{name}-{columns}.txt'
        if request.config.getoption('--write-screens'):
            file.write_text(text)
        elif not file.exists() or file.read_text() != text:
            wrong.append((name, text))
    assert wrong == []


def check_width(name, text, columns):
    lines = text.splitlines()
    if name in ('device-spec', 'metrics', 'complete', 'migration-target'):
        return  # they print a file, or lines for a program
    assert [line for line in lines if len(line) > columns] == []
    # No part of a UUID stands alone at the edge of a line or a cell.
    assert not re.search(r'[0-9a-f]{4}-(?=[ |]|$)', text, re.MULTILINE)


def test_every_screen_is_of_a_command():
    names = {f'{name}-{width}' for name in COMMANDS for width in WIDTHS}
    assert {path.stem for path in SCREENS.iterdir()} == names


def entry_points():
    return [name.replace('_', ' ') for name in loader.names('os_acc.cli')]


def test_every_command_has_a_screen():
    shown = {
        ' '.join(words[:n]) for words in COMMANDS.values() for n in (1, 2)
    }
    assert set(entry_points()) - shown == set()


@pytest.mark.parametrize('columns', WIDTHS)
def test_every_help_fits_the_screen(run, columns, monkeypatch):
    monkeypatch.setenv('COLUMNS', str(columns))
    for words in ([], *(name.split() for name in entry_points())):
        result = run(*words, '--help')
        assert (result.code, result.err) == (0, '')
        check_width('help', result.out, columns)


@pytest.mark.parametrize(
    'words', [['van'], ['van', 'list', '--state', 'x'], ['plug', 'web']]
)
def test_wrong_arguments_fit_the_screen(run, monkeypatch, words):
    monkeypatch.setenv('COLUMNS', '60')
    monkeypatch.setattr(type(sys.stderr), 'isatty', lambda self: True)
    result = run(*words)
    assert (result.code, result.out) == (2, '')
    check_width('usage', result.err, 60)


def test_the_help_survives_a_command_that_cannot_be_loaded(run, monkeypatch):
    def fail(self, argv):
        raise ImportError('no module acme')

    monkeypatch.setattr(app.Commands, 'find_command', fail)
    result = run('--help')
    assert (result.code, result.err) == (0, '')
    text = 'cannot be loaded: ImportError: no module acme\n'
    assert result.out.count(text) == len(entry_points())


def test_eight_devices_are_eight_lines():
    for width in WIDTHS:
        lines = (SCREENS / f'device-list-{width}.txt').read_text().splitlines()
        assert len(lines) == 1 + 3 + 8 + 1


# --- tables


def test_a_table_for_programs_has_any_width():
    assert tables.draw(['A'], [['x' * 500]], None).count('\n') == 5


def test_a_uuid_is_cut_only_as_far_as_it_stays_unambiguous():
    uuids = [VAN, VAN[:9] + '0' * 4 + VAN[13:]]
    drawn = tables.draw(['VAN', 'B'], [[u, 'b'] for u in uuids], 20, ['VAN'])
    assert VAN[:10] in drawn
    assert VAN not in drawn


def test_nothing_controls_the_terminal():
    assert tables.text('a\33[2Jb\rc') == 'a\\x1b[2Jb\nc'
    assert tables.text('web\u202e1') == 'web\\u202e1'


def test_wide_characters_count_twice():
    lines = tables.draw(['A', 'B'], [['日本語', 1], ['abc', 22]], 80)
    assert lines.splitlines()[3] == '| 日本語 |  1 |'
    assert lines.splitlines()[4] == '| abc    | 22 |'


@pytest.mark.parametrize(
    ('line', 'limit', 'lines'),
    [
        ('one two three', 7, ['one two', 'three']),
        ('  one two', 6, ['  one', '  two']),
        ('x' * 7, 3, ['xxx', 'xxx', 'x']),
        (f'van-{VAN}-end', 36, ['van-', VAN, '-end']),
        (f'{VAN} b', 10, [VAN, 'b']),
    ],
)
def test_wrap(line, limit, lines):
    assert tables.wrap(line, limit) == lines


def test_cut():
    assert tables.cut('one two', 7) == 'one two'
    assert tables.cut('one two three', 7) == 'one ...'


class Stream:
    def __init__(self, terminal):
        self.terminal = terminal

    def isatty(self):
        return self.terminal

    def fileno(self):
        raise OSError('no terminal')


def test_width(monkeypatch):
    monkeypatch.delenv('COLUMNS', raising=False)
    assert tables.width(Stream(False)) is None
    assert tables.width(Stream(True)) == 80
    assert tables.width(Stream(False), fit=True) == 80
    assert tables.width(Stream(True), 50) == 50
    monkeypatch.setenv('COLUMNS', '3')
    assert tables.width(Stream(True)) == 20


@pytest.mark.parametrize(
    ('terminal', 'environment', 'colours'),
    [
        (True, {'TERM': 'xterm'}, True),
        (True, {'TERM': 'xterm', 'NO_COLOR': ''}, True),
        (True, {'TERM': 'xterm', 'NO_COLOR': '1'}, False),
        (True, {'TERM': 'dumb'}, False),
        (False, {'TERM': 'xterm'}, False),
    ],
)
def test_colours(terminal, environment, colours, monkeypatch):
    for name in ('NO_COLOR', 'TERM'):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert tables.has_colours(Stream(terminal)) is colours


def test_colours_do_not_count_as_width():
    plain = tables.draw(['State'], [['error'], ['ok']], 80)
    coloured = tables.draw(['State'], [['error'], ['ok']], 80, colours=True)
    assert '\33[31merror\33[0m' in coloured
    assert re.sub('\33\\[[0-9]+m', '', coloured) == plain


# --- formats for programs


@pytest.mark.parametrize(
    ('form', 'text'),
    [
        ('value', f'{VAN} plugged null null\n'),
        (
            'csv',
            '"uuid","state","live_migratable","error"\n'
            f'"{VAN}","plugged","null","null"\n',
        ),
    ],
)
def test_no_value_is_null(run, form, text):
    run.fine(*run.configuration, 'plug', WEB, *PCI)
    columns = ('-c', 'VAN', '-c', 'state')
    columns += ('-c', 'Live migratable', '-c', 'error')
    assert run.fine('van', 'list', '-f', form, *columns).out == text
    shown = run.fine('van', 'show', VAN, '-f', 'value', '-c', 'error')
    assert shown.out == 'null\n'


def test_lists_are_json(run):
    line = run(
        *(*run.configuration, 'device', 'list', '-f', 'value'),
        *('-c', 'traits', '-c', 'not_free', '--sort-column', 'Address'),
    ).out.splitlines()[0]
    assert line == '["CUSTOM_FAKE_DEVICE"] {}'


def test_the_help_has_no_colors(clean, capsys):
    """argparse counts their characters when it aligns the columns."""
    made = app.OSAccApp()
    command, name, _ = made.command_manager.find_command(['plug'])
    for parser in (made.parser, command(made, None).get_parser(name)):
        # What cliff does on a terminal.
        argparse.use_color_for_parser(parser, True)
        assert '\x1b' not in parser.format_help()

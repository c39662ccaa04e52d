# SPDX-License-Identifier: Apache-2.0


"""A state path that is mistyped: no command makes anything there."""

from __future__ import annotations

import json
import types

import command
import pytest

from os_acc import loader
from os_acc.cli import doctor
from os_acc.cli import exit_codes
from os_acc.cli import support as bundle
from os_acc.kinds.fake.driver import driver

VAN = '061c0c22-0139-4404-af0c-dad4469dc6b7'
PCI = ('--resource-class', 'CUSTOM_FAKE_PCI')
CNI = json.dumps(
    {
        'cniVersion': '1.1.0',
        'name': 'accelerators',
        'type': 'os-acc',
        'resourceClass': 'CUSTOM_FAKE_PCI',
    }
)

USAGE = exit_codes.WRONG_USAGE
NOT_FOUND = exit_codes.NOT_FOUND

#: These need a journal, or would make one. One line names the path.
REFUSED = [
    ['apply', 'host.json'],
    ['pools'],
    ['pools', '--keep'],
    ['plug', 'web', *PCI],
    ['plug', 'web', *PCI, '--json'],
    ['plug', 'web', *PCI, '--dry-run'],
    ['device', 'program', 'fpga0', '--function', 'aes'],
    ['device', 'free', 'nic0'],
    ['orphans', '--release', '--known', 'known', '--owner', 'nova'],
    ['cyborg', 'check', '--fix'],
    ['migration', 'finish', 'web'],
    ['migration', 'abort', 'web'],
    ['migration', 'target'],
    ['migrate', 'web', '--to', 'ssh://two'],
    ['run', *PCI, '--', 'true'],
    ['cni-like', 'add'],
]

#: These only look, or have nothing to do. The second item is the exit code.
OTHERS = [
    (['unplug', 'web'], 0),
    (['unplug', 'web', '--dry-run'], 0),
    (['unplug', 'web', '--json'], 0),
    (['apply', 'host.json', '--check'], 1),
    (['export'], 0),
    (['demand'], 0),
    (['recover'], 0),
    (['recover', '--rebuild'], 1),
    (['orphans'], 0),
    (['migration', 'list'], 0),
    (['migrate', 'web', '--to', 'ssh://two', '--dry-run'], NOT_FOUND),
    (['migration', 'check', 'web'], NOT_FOUND),
    (['van', 'list'], 0),
    (['van', 'list', '--json'], 0),
    (['van', 'show', VAN], NOT_FOUND),
    (['van', 'forget', VAN, '--yes'], NOT_FOUND),
    (['device', 'list'], 0),
    (['device', 'show', 'nic0'], 0),
    (['device', 'spec'], 0),
    (['device', 'allow', 'gpu9'], 0),
    (['device', 'deny', 'gpu9'], 0),
    (['doctor'], 0),
    (['support', 'report.tar.gz'], 0),
    (['complete', 'bash'], 0),
    (['events'], 0),
    (['events', '--van', VAN], 0),
    (['metrics'], 0),
    (['host', 'show'], 0),
    (['cyborg', 'check'], 1),
    (['new-driver', 'acme'], 0),
    (['demo'], 0),
    (['help'], 0),
]


def name(value):
    return ' '.join(value[:3]) if isinstance(value, list) else str(value)


@pytest.fixture
def run(clean, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('CNI_CONTAINERID', 'c1')
    monkeypatch.setenv('CNI_IFNAME', 'acc0')
    (tmp_path / 'known').write_text(VAN)
    (tmp_path / 'host.json').write_text('{"version": 1}')
    path = tmp_path / 'os-acc.conf'
    path.write_text(
        '[os_acc_fake]\ndevices = nic0:pci:1, fpga0:pci:2:dynamic\n'
        'discover = True\n'
    )
    # They look at this machine for a while, and the demo has delays.
    monkeypatch.setattr(doctor, 'examine', lambda extensions: [])
    monkeypatch.setattr(bundle, 'collect', lambda _: {})
    no_time = types.SimpleNamespace(sleep=lambda seconds: None)
    monkeypatch.setattr(driver, 'time', no_time)
    return Command(path, tmp_path / 'mistyped/state', capfd, monkeypatch)


class Command(command.Command):
    """The command with a state path that does not exist."""

    def __init__(self, configuration, *args):
        super().__init__(*args)
        self.configuration = configuration

    @property
    def general(self):
        return [
            *('--config-file', str(self.configuration)),
            *('--state-path', str(self.state_path)),
        ]


@pytest.mark.parametrize('arguments', REFUSED, ids=name)
def test_refused(run, arguments):
    result = run(*arguments, stdin=CNI)
    said = result.out or result.err
    assert str(run.state_path) in said
    if arguments[0] == 'cni-like':
        assert (result.code, result.err) == (1, '')
    elif arguments[0] == 'run':
        assert (result.code, result.out) == (125, '')
    else:
        assert result.code == USAGE, result
    if said is result.err:
        assert said.count('\n') == 1, said
        assert '--state-path' in said
    assert not run.state_path.parent.exists()


@pytest.mark.parametrize(('arguments', 'code'), OTHERS, ids=name)
def test_nothing_is_made(run, arguments, code):
    result = run(*arguments)
    assert result.code == code, result
    assert 'Traceback' not in result.err
    assert not run.state_path.parent.exists()


def test_every_command_is_tried():
    tried = [*REFUSED, *(arguments for arguments, _ in OTHERS)]
    names = {' '.join(words[:n]) for words in tried for n in (1, 2)}
    points = {p.replace('_', ' ') for p in loader.names('os_acc.cli')}
    assert points - names == set()

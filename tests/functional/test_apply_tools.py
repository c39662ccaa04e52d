# SPDX-License-Identifier: Apache-2.0

"""os-acc apply by Ansible's and Ironic's own code, as deployers call it."""

from __future__ import annotations

import configparser
import importlib
import json
import os
import pathlib
import sqlite3
import subprocess
import sys

from oslo_config import cfg
import pytest

from os_acc.kinds.fake.driver import hardware

CONTRIB = pathlib.Path(__file__).parents[2] / 'contrib/os-acc-apply'
BIN = pathlib.Path(sys.executable).parent


def document(function: str, **more: object) -> dict:
    return {
        'version': 1,
        'functions': [{'device': 'card', 'function': function}],
        **more,
    }


class Site:
    """A host with one fake FPGA, and a configuration of its own."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.conf = path / 'os-acc.conf'
        (path / 'hardware').mkdir()
        self.hardware = hardware.Hardware(str(path / 'hardware'))
        self.conf.write_text(
            f'[os_acc]\nstate_path = {path}/state\nplugin = noop\n'
            f'device_spec_dir = {path}/specs\n'
            '[os_acc_fake]\ndevices = card:pci:2:single\ndiscover = True\n'
            f'hardware_path = {path}/hardware\n'
        )

    def inside(self) -> str | None:
        return self.hardware.function_of('card')

    def os_acc(self, *words: str) -> None:
        subprocess.run(
            [str(BIN / 'os-acc'), '--config-file', str(self.conf), *words],
            check=True,
            capture_output=True,
        )

    def play(self, wanted: dict, *words: str) -> tuple[int, str]:
        """Run the playbook of contrib with ansible-playbook.

        :returns: its exit code and its output
        """
        text = self.path / 'host.yaml'
        text.write_text(json.dumps(wanted))
        inventory = self.path / 'inventory'
        inventory.write_text(
            '[compute]\nlocalhost ansible_connection=local '
            f'ansible_python_interpreter={sys.executable}\n'
        )
        variables = {
            'os_acc_become': False,
            'os_acc_document': str(text),
            'os_acc_config_file': str(self.conf),
            'os_acc_command': str(BIN / 'os-acc'),
        }
        done = subprocess.run(
            [
                str(BIN / 'ansible-playbook'),
                '-i',
                str(inventory),
                '-e',
                json.dumps(variables),
                str(CONTRIB / 'playbook.yaml'),
                *words,
            ],
            env={
                **os.environ,
                'ANSIBLE_HOME': str(self.path / 'ansible'),
                'ANSIBLE_NOCOLOR': '1',
                'LC_ALL': 'C.UTF-8',
            },
            check=False,
            capture_output=True,
            text=True,
            timeout=300,
        )
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def site(tmp_path: pathlib.Path) -> Site:
    return Site(tmp_path)


def test_the_playbook(site: Site) -> None:
    code, text = site.play(document('aes'), '--check', '--diff')
    assert code == 0, text
    assert 'changed=1' in text
    assert '+aes' in text
    assert site.inside() is None
    code, text = site.play(document('aes'))
    assert (code, site.inside()) == (0, 'aes'), text
    assert 'changed=1' in text
    code, text = site.play(document('aes'))
    assert code == 0, text
    assert 'changed=0' in text
    assert site.hardware.times('card') == 1


def test_the_playbook_while_an_instance_has_the_device(site: Site) -> None:
    site.os_acc('device', 'program', 'card', '--function', 'aes')
    guest = 'b6d0f3b1-6d3a-4c57-9d63-0d5a6f6f7a10'
    site.os_acc('plug', guest, '--resource-class', 'CUSTOM_FAKE_PCI')
    code, text = site.play(document('sha'))
    assert code == 0, text
    assert guest in text
    assert site.inside() == 'aes'
    site.os_acc('unplug', guest)
    site.os_acc('recover')
    assert site.inside() == 'sha'


def test_a_wrong_document_fails_the_playbook(site: Site) -> None:
    code, text = site.play(document('aes', functoins=[]))
    assert code != 0
    assert "did you mean 'functions'?" in ' '.join(text.split())
    assert site.inside() is None


@pytest.fixture
def agent(site: Site, monkeypatch: pytest.MonkeyPatch):
    """ironic-python-agent's module hardware, with the manager of contrib."""
    monkeypatch.syspath_prepend(str(CONTRIB))
    monkeypatch.setenv('PATH', f'{BIN}:{os.environ["PATH"]}')
    # It registers the options that the other modules of the agent read, which
    # is refused once another test of this process has read a configuration.
    cfg.CONF.reset()
    importlib.import_module('ironic_python_agent.config')
    module = importlib.import_module('ironic_python_agent.hardware')
    manager = importlib.import_module('os_acc_ironic.manager')
    made = manager.OsAccHardwareManager()
    monkeypatch.setattr(module, '_global_managers', None)
    monkeypatch.setattr(module, 'get_managers', lambda: [made], raising=True)
    return module


def test_the_step_of_ironic(site: Site, agent) -> None:
    errors = importlib.import_module('ironic_python_agent.errors')
    for call in ('get_deploy_steps', 'get_service_steps'):
        (found,) = agent.dispatch_to_all_managers(call, {}, []).values()
        assert [each['step'] for each in found] == ['apply_os_acc_document']
    (each,) = found
    rows = agent.dispatch_to_managers(
        each['step'], {}, [], document('aes'), config_file=str(site.conf)
    )
    assert [row['result'] for row in rows] == ['changed']
    assert site.inside() == 'aes'
    with pytest.raises(errors.CommandExecutionError, match='did you mean'):
        agent.dispatch_to_managers(
            each['step'],
            {},
            [],
            document('aes', functoins=[]),
            config_file=str(site.conf),
        )


def test_the_unit_waits_for_the_devices_and_shows_a_failure(
    site: Site,
) -> None:
    """A step that has failed is repeated by the next start of the unit."""
    unit = configparser.RawConfigParser(strict=False)
    unit.read(CONTRIB / 'os-acc-apply.service')
    for key in ('Wants', 'After'):
        assert 'systemd-udev-settle.service' in unit['Unit'][key].split()
    assert 'SuccessExitStatus' not in unit['Service']
    _, *words = unit['Service']['ExecStart'].split()
    assert words == ['--config-file', '/etc/nova/nova.conf', 'recover']

    def run(*arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            [str(BIN / 'os-acc'), '--config-file', str(site.conf), *arguments],
            check=False,
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stderr

    wanted = site.path / 'host.json'
    wanted.write_text(json.dumps(document('aes')))
    usual = site.conf.read_text()
    site.conf.write_text(usual.replace('devices = card', 'devices = other'))
    assert run('apply', str(wanted))[0] == 3
    # As after a reboot.
    with sqlite3.connect(site.path / 'state' / 'journal.db') as db:
        db.execute('UPDATE desired SET settled = NULL')
    for _ in range(2):
        code, said = run(words[-1])
        assert (code, 'functions card: failed (' in said) == (3, True)
    site.conf.write_text(usual)
    assert run(words[-1])[0] == 0
    assert site.inside() == 'aes'

# SPDX-License-Identifier: Apache-2.0

"""A privileged context of another distribution."""

from __future__ import annotations

from oslo_config import cfg
from oslo_privsep import capabilities
import pytest

import os_acc
from os_acc import exception
from os_acc.privileged import context
from os_acc.privileged import privsep

CONTEXT = privsep.Context(f'{__name__}.CONTEXT', 'os_acc_tests_privileged')
OPTS = (cfg.StrOpt('path', default='/sys/class/x'), cfg.IntOpt('count'))
GROUP = 'os_acc_tests'


@CONTEXT.entry
def add(first: int, second: int = 2) -> int:
    """Add two numbers."""
    return first + second


@CONTEXT.entry
def read(path: str) -> str:
    """Read a file."""
    with open(path, encoding='utf-8') as file:
        return file.read()


@pytest.fixture
def here(clean):
    privsep.run_here(True)
    yield
    privsep.run_here(False)


def test_its_options(clean):
    # CONF.reset() of another test takes the defaults of CONTEXT away.
    group = privsep.Context(
        'tests.new', 'os_acc_tests_new', [capabilities.CAP_NET_ADMIN]
    ).conf
    assert group.capabilities == [capabilities.CAP_NET_ADMIN]
    assert group.thread_pool_size > 1
    assert CONTEXT.helper_command('/s')[-4:] == [
        '--privsep_context',
        f'{__name__}.CONTEXT',
        '--privsep_sock_path',
        '/s',
    ]


def test_the_daemon_gets_absolute_paths(clean, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'x.conf').touch()
    (tmp_path / 'x.d').mkdir()
    os_acc.CONF(
        ['--config-file', 'x.conf', '--config-dir', 'x.d'], project='os-acc'
    )
    command = CONTEXT.helper_command('/s')
    place = command.index('--config-file')
    assert command[place : place + 4] == [
        '--config-file',
        str(tmp_path / 'x.conf'),
        '--config-dir',
        str(tmp_path / 'x.d'),
    ]


def test_a_call_without_a_daemon(here, tmp_path):
    assert add(1) == 3
    assert add(1, second=3) == 4
    assert add.__doc__ == 'Add two numbers.'
    missing = str(tmp_path / 'missing')
    with pytest.raises(exception.DeviceError, match='No such file'):
        read(missing)


def test_all_contexts_run_here_or_none(clean):
    assert CONTEXT.client_mode
    privsep.run_here(True)
    try:
        assert privsep.runs_here()
        assert not CONTEXT.client_mode
        assert not context.pctxt.client_mode
        later = privsep.Context('tests.later', 'os_acc_tests_later')
        assert not later.client_mode
    finally:
        privsep.run_here(False)
    assert not privsep.runs_here()
    assert CONTEXT.client_mode
    assert later.client_mode


def test_a_command_that_fails(clean):
    os_acc.CONF.set_override('helper_command', 'false', CONTEXT.cfg_section)
    with pytest.raises(exception.PrivilegeError) as caught:
        add(1)
    assert '[os_acc_tests_privileged] helper_command' in str(caught.value)


def test_options_of_the_service(clean):
    values = CONTEXT.options(GROUP, OPTS)
    assert values.path == '/sys/class/x'
    os_acc.CONF.set_override('path', '/x', GROUP)
    assert CONTEXT.options(GROUP, OPTS).path == '/x'


@pytest.fixture
def daemon(clean, tmp_path, monkeypatch):
    """This process as the daemon, and its configuration file."""
    monkeypatch.setattr(privsep, 'in_helper', lambda: True)
    path = tmp_path / 'root.conf'
    path.write_text(f'[{GROUP}]\npath = /a\ncount = 3\n')
    path.chmod(0o644)
    os_acc.CONF(['--config-file', str(path)], project='os-acc')
    return path


def test_options_of_the_daemon(daemon, monkeypatch):
    """They are read anew, and neither code nor environment counts."""
    os_acc.CONF.register_opts(OPTS, group=GROUP)
    os_acc.CONF.set_override('path', '/of-the-caller', GROUP)
    monkeypatch.setenv('OS_OS_ACC_TESTS__PATH', '/of-the-environment')
    assert CONTEXT.options(GROUP, OPTS).path == '/a'
    daemon.write_text(f'[{GROUP}]\npath = /b\n')
    values = CONTEXT.options(GROUP, OPTS)
    assert (values.path, values.count) == ('/b', None)


def test_a_file_that_others_can_write(daemon):
    daemon.chmod(0o666)
    with pytest.raises(exception.InvalidRequest, match=r'root\.conf'):
        CONTEXT.options(GROUP, OPTS)


def test_a_wrong_value(daemon):
    daemon.write_text(f'[{GROUP}]\ncount = many\n')
    with pytest.raises(exception.InvalidRequest, match='many'):
        CONTEXT.options(GROUP, OPTS)

# SPDX-License-Identifier: Apache-2.0

"""Options that refer to others, and options whose value is a secret."""

from __future__ import annotations

import io
import json
import logging
import socket
import tarfile
import time

import command
from oslo_config import cfg
import pytest

from os_acc import exception
from os_acc import opts
from os_acc.cli import logs
from os_acc.options import nova as nova_options
from os_acc.privileged import context
from os_acc.privileged import offers
from os_acc.texts import masking

PART = 'Tr0ub4dorPart'


@pytest.fixture
def run(clean, tmp_path, capsys, monkeypatch):
    """Run the command with a nova.conf of the given text."""
    monkeypatch.setattr(context, 'whoami', lambda: (0, []))
    monkeypatch.setattr(context, 'check_users', lambda: None)
    monkeypatch.setattr(context, 'check_directory', lambda: None)
    monkeypatch.setattr(offers, 'count', lambda: 0)
    path = tmp_path / 'nova.conf'

    def call(text, *arguments):
        # What a test sets for all files would hide what this file sets.
        state_path = None if '\nstate_path' in text else tmp_path / 'none'
        started = command.Command(state_path, capsys, monkeypatch)
        path.write_text(text, encoding='utf-8')
        return started('--config-file', path, *arguments)

    return call


def read(tmp_path, text, nova=True):
    """Read a file as the command does."""
    path = tmp_path / 'nova.conf'
    path.write_text(text, encoding='utf-8')
    conf = cfg.ConfigOpts()
    opts.register(conf)
    if nova:
        nova_options.register(conf)
    conf([], default_config_files=[str(path)])
    if nova:
        nova_options.set_defaults(conf)
    return conf


@pytest.mark.parametrize(
    ('text', 'host'),
    [
        ('my_ip = 192.0.2.5\nhost = $my_ip', '192.0.2.5'),
        (
            'my_ip = 192.0.2.5\nhost = c-${my_ip}.example',
            'c-192.0.2.5.example',
        ),
        ('host = $my_ip', '198.51.100.7'),
        ('host = c1\n[os_acc]\nhost =', 'c1'),
        ('host = c1\n[os_acc]\nhost = c2', 'c2'),
        ('my_ip = 192.0.2.5\n[os_acc]\nhost = $my_ip', '192.0.2.5'),
        ('state_path = /srv', None),
        ('host = cost$$my_ip', 'cost$my_ip'),
    ],
)
def test_the_host_of_a_nova_conf(tmp_path, monkeypatch, text, host):
    monkeypatch.setattr(
        'oslo_utils.netutils.get_my_ipv4', lambda: '198.51.100.7'
    )
    conf = read(tmp_path, f'[DEFAULT]\n{text}\n')
    assert opts.host(conf) == host or (host is None and socket.gethostname())


@pytest.mark.parametrize('nova', [True, False])
def test_a_reference_to_the_state_path_of_nova(tmp_path, nova):
    conf = read(
        tmp_path,
        '[DEFAULT]\nstate_path = /srv/nova\n'
        '[os_acc]\nlock_path = $state_path/l\nxrt_path = ${my_ip}\n',
        nova,
    )
    # The option of the same group is found first.
    assert opts.value(conf, 'lock_path') == '/var/lib/os-acc/l'


def test_options_that_nova_has_registered_stay(tmp_path):
    conf = cfg.ConfigOpts()
    conf.register_opt(cfg.HostnameOpt('host', default='of-nova', help='x'))
    conf.register_opt(cfg.StrOpt('connection_uri', default=''), 'libvirt')
    nova_options.register(conf)
    nova_options.register(conf)
    opts.register(conf)
    conf([], default_config_files=[])
    nova_options.set_defaults(conf)
    assert opts.host(conf) == 'of-nova'
    assert nova_options.connection_uri(conf) is None


def test_the_uri_of_libvirt_in_a_nova_conf(tmp_path):
    text = '[libvirt]\nconnection_uri = qemu+unix:///x\n'
    assert nova_options.connection_uri(read(tmp_path, text)) == (
        'qemu+unix:///x'
    )
    assert nova_options.connection_uri(read(tmp_path, '')) is None
    assert nova_options.connection_uri(read(tmp_path, text, False)) is None


@pytest.mark.parametrize(
    ('text', 'option'),
    [
        ('[os_acc]\nstate_path = $state_path/os-acc', '[os_acc] state_path'),
        ('[os_acc]\nhost = ${host}', '[os_acc] host'),
        (
            '[os_acc]\nlock_path = $xrt_path\nxrt_path = $lock_path',
            '[os_acc] lock_path',
        ),
        ('[DEFAULT]\nhost = $my_ip\nmy_ip = $host', '[DEFAULT] host'),
        ('[DEFAULT]\nhost = $no_such_name', '[DEFAULT] host'),
        ('[os_acc]\nhost = $keystone.host', '[os_acc] host'),
        ('[os_acc]\nstate_path = /srv/$HOME', '[os_acc] state_path'),
        (
            '[os_acc]\ncleaning_command = sh -c "echo $1x $PATHS"',
            '[os_acc] cleaning_command',
        ),
        (
            '[os_acc]\ndevice_spec = {"address": "*", "env": ["A=$LIB"]}',
            '[os_acc] device_spec',
        ),
    ],
)
def test_what_cannot_be_resolved(run, tmp_path, text, option):
    conf = read(tmp_path, text)
    with pytest.raises(exception.InvalidRequest) as found:
        opts.check(conf)
    said = str(found.value)
    assert f'{option} in {tmp_path}/nova.conf:' in said
    assert '"$$"' in said
    shown = run(text, 'doctor')
    assert shown.code == 1
    # A table breaks the lines.
    assert option in ' '.join(shown.out.split())
    assert 'RecursionError' not in shown.out + shown.err


@pytest.mark.parametrize('name', ['no_such_name', 'my_ipp'])
def test_a_reference_is_named_if_it_is_no_secret(tmp_path, name):
    conf = read(tmp_path, f'[os_acc]\nhost = ${name}\n')
    with pytest.raises(exception.InvalidRequest, match=rf'\(\${name}\)'):
        opts.check(conf)


def test_an_option_that_stops_all_drivers_is_told_once(run):
    text = '[os_acc]\nplugin = noop\ndevice_spec = {"address": "$THERE"}\n'
    shown = run(text, 'device', 'list')
    assert shown.err.count('device_spec in ') == 1


@pytest.mark.parametrize(
    'value',
    [
        f's3cret${PART}',
        f's3cret${{{PART}}}',
        f'${PART}.{PART}',
        f'{PART}$password',
    ],
)
@pytest.mark.parametrize('group', ['os_acc_powervm', 'os_acc_placement'])
def test_the_value_of_a_secret_option(run, tmp_path, group, value):
    text = f'[os_acc]\nplugin = noop\n[{group}]\npassword = {value}\n'
    plug = ('plug', 'job', '--resource-class', 'FPGA')
    log = tmp_path / 'log'
    for arguments in (('doctor',), plug, ('device', 'list'), ('-vv', *plug)):
        shown = run(text, '--log-file', log, *arguments)
        assert PART not in shown.out + shown.err
    run(text, '--log-file', log, 'support', tmp_path / 'r.tgz')
    assert PART not in log.read_text()
    with tarfile.open(tmp_path / 'r.tgz') as archive:
        for member in archive:
            assert PART.encode() not in archive.extractfile(member).read()


@pytest.mark.parametrize(
    'err',
    [
        cfg.NoSuchOptError(PART),
        cfg.TemplateSubstitutionError(f'substituting group {PART}'),
        cfg.ConfigFileValueError(
            'Value for option password from LocationInfo(location=x, '
            f"detail='/etc/x') is not valid: {PART}"
        ),
        cfg.ConfigFileParseError('/etc/x', f"at /etc/x:3, no '=': '{PART}'"),
    ],
)
def test_errors_of_oslo_config_quote_no_secret(err):
    assert PART not in exception.describe(err)


# --- text that is no JSON

HEADS = ('', 'the entry {"a": ', 'driver said: ', '  ', "b'", 'x\n')
FORMS = (
    '"password": "{}"',
    '"password" : "{}',
    "'api_key': '{}'",
    '\\"auth_token\\": \\"{}\\"',
    '\\\\\\"secret\\\\\\":\\\\\\"{}\\\\\\"',
    '"password": {}, "x": 1',
    '"password": ["{}", "b"]',
    '"secrets": {{"a": "{}"',
    '"--password", "{}"',
    "['login', '--dhchap-secret', '{}'",
    '--password={}',
    '--password "{}"',
    '--token={}',
    'admin_password = {}',
    'password: {}',
    'db_secret: "{}"',
    'password="{}"',
    '"env": ["ACME_LICENSE={}"',
    '"env": ["A=1", "B={}"], "x"',
    '"env": {{"A": "{}"}}',
    'nova:{}@db.example/nova',
    'mysql://nova:{}@db',
    'Authorization: Bearer {}',
    '"Authorization": "Basic {}"',
)
SECRETS = ('s3cretS3cret', 'S3cret$T"ail'.replace('"', ''), 's3c/ret+S3cret==')


@pytest.mark.parametrize('form', FORMS)
@pytest.mark.parametrize('secret', SECRETS)
def test_text_that_is_no_json(form, secret):
    for head in HEADS:
        for tail in ('', '}', ' and more', '\n', '"}]}', ','):
            text = head + form.format(secret) + tail
            for value in (text, [text], {'e': text}, json.dumps({'e': text})):
                assert secret not in str(masking.masked(value)), text


@pytest.mark.parametrize(
    'form', ['"password": "{}"', '"password": "{}', 'password = {}']
)
@pytest.mark.parametrize('secret', ['one two three', "it's s3cret", 'a,b;c'])
def test_secrets_of_several_words(form, secret):
    shown = masking.masked('{"x": 1,\n' + form.format(secret) + '\nmore')
    assert not [each for each in secret.split() if each in shown.split('x')[1]]


@pytest.mark.parametrize(
    'value',
    [
        {'env': ['ACME_LICENSE=s3cret', 'B=s3cret']},
        {'hooks': [{'path': '/bin/x', 'env': ['A=s3cret']}]},
        {'env': {'A': 's3cret'}},
        '[{"address": "*", "env": ["A=s3cret"]}]',
        '{"address": "*", "env": ["A=s3cret"], "broken',
        '{"hooks": [{"env": ["A=s3cret", "B=s3cret"',
    ],
)
def test_all_values_of_an_environment(value):
    shown = str(masking.masked(value))
    assert 's3cret' not in shown


@pytest.mark.parametrize(
    'text',
    [
        'device_spec: address is "0000:3b:00.0", expected a PCI address',
        "unknown key: 'adress'",
        'the password of host x is wrong',
        '"key", "value"',
        '{"password": null, "broken',
        'no token was given',
        '/dev/vfio/12: Permission denied',
        'VF 3 of 0000:3b:00.0 at 10:20@x'.replace('@x', ''),
    ],
)
def test_text_that_stays_readable(text):
    assert masking.masked(text) == text


@pytest.mark.parametrize(
    'part', ['"password', '"env": [', '\\"', '"a":', 'a=']
)
def test_broken_text_is_masked_in_time(part):
    """A search that takes quadratic time would take minutes."""
    began = time.process_time()
    masking.masked(part * 20_000)
    assert time.process_time() - began < 20


@pytest.mark.parametrize(
    ('field', 'value'),
    [
        ('env', ['ACME_LICENSE=s3cret\n']),
        ('hooks.env', ['A=s3cret', 'A=s3cret']),
        ('device_spec', '{"password": "s3cret", "address"'),
        ('entry', {'deep': [{'api_key': 's3cret'}]}),
    ],
)
def test_the_value_that_a_refusal_quotes(field, value):
    err = exception.InvalidRequest(
        subject='device_spec', field=field, value=value, expected='x'
    )
    assert 's3cret' not in str(err)
    assert field in str(err)
    assert err.kwargs['value'] == value


def test_a_traceback_that_is_logged(tmp_path):
    record = logging.LogRecord('x', logging.ERROR, '', 1, 'failed', (), None)
    try:
        raise ValueError(f'GET https://me:{PART}@images: password = {PART}')
    except ValueError as err:
        record.exc_info = (ValueError, err, err.__traceback__)
    path = tmp_path / 'log'
    root = logging.getLogger()
    level = root.level
    handlers = logs.configure(io.StringIO(), 1, False, str(path))
    try:
        for handler in handlers:
            handler.handle(record)
    finally:
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()
        root.setLevel(level)
    assert 'Traceback' in path.read_text()
    assert PART not in path.read_text()

# SPDX-License-Identifier: Apache-2.0
"""os-acc support: what it packs, and that no secret is in it."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import stat
import subprocess
import tarfile
import time

import command
import pytest

from os_acc import journal
from os_acc import loader
from os_acc.cli import support as bundle
from os_acc.doctor import privileges
from os_acc.texts import masking

SECRETS = ('s3cret-1', 's3cret-2', 's3cret-3', 's3cret-4')


@pytest.fixture
def run(clean, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(privileges, 'findings', lambda: [])
    path = tmp_path / 'nova.conf'
    path.write_text(
        '[DEFAULT]\ntransport_url = rabbit://nova:s3cret-1@host\n'
        '[os_acc]\nplugin = noop\nunknown = s3cret-2\n'
        '[os_acc_fake]\ndevices = nic0:pci:4\ndiscover = True\n'
    )
    made = command.Command(tmp_path / 'state', capsys, monkeypatch)
    return lambda *arguments: made('--config-file', path, *arguments)


def unpacked(path):
    """Read the parts of a report, by name."""
    parts = {}
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            assert stat.S_IMODE(member.mode) == 0o600
            file = archive.extractfile(member)
            assert file is not None
            name = os.path.basename(member.name).removesuffix('.json')
            parts[name] = json.loads(file.read())
    return parts


def test_what_is_packed(run, tmp_path):
    van = run(
        'plug',
        'web-1',
        *('--resource-class', 'CUSTOM_FAKE_PCI', '-f', 'json'),
    )
    assert van.code == 0
    path = tmp_path / 'report.tar.gz'
    result = run('support', path)
    assert (result.code, result.err) == (0, '')
    assert result.out.startswith(
        f'{path}: configuration, devices, doctor, events, journal, versions. '
    )
    # The command that it names shows the report.
    shown = re.search(r'with (tar .*) \| less', result.out)[1]
    said = subprocess.run(
        shlex.split(shown), capture_output=True, check=True, text=True
    )
    assert '"packages"' in said.stdout
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    parts = unpacked(path)
    text = json.dumps(parts)
    assert not [secret for secret in SECRETS if secret in text]
    (file,) = parts['configuration']['files'].values()
    assert file['DEFAULT'] == {'transport_url': '***'}
    assert file['os_acc'] == {'plugin': ['noop'], 'unknown': '***'}
    assert parts['configuration']['values']['os_acc_fake']['discover'] is True
    (entry,) = parts['journal']['vans']
    assert entry['van']['versioned_object.data']['state'] == 'plugged'
    assert 'nic0' in json.dumps(parts['devices'])
    assert 'os-acc' in parts['versions']['packages']
    assert {each['verdict'] for each in parts['doctor']} >= {'ok'}


@pytest.mark.parametrize(
    ('text', 'expected'),
    [
        ('Invalid signature hash method: MD5', None),
        ('signature=abc of it', 'signature=*** of it'),
        ('img_signature: abc', 'img_signature: ***'),
        ('tool --signature abc -f x', 'tool --signature *** -f x'),
        ('its credentials are for no project', None),
        ('the signature 3Qx9aB was refused', 'the signature *** was refused'),
        ('a credential ' + 'x' * 20, 'a credential ***'),
    ],
)
def test_words_that_are_also_names_of_secrets(text, expected):
    assert masking.masked(text) == (expected or text)


def test_secrets_are_masked_wherever_they_are():
    masked = masking.masked(
        {
            'driver_data': {'auth_token': 's3cret-1', 'vf': '3'},
            'url': ['https://me:s3cret-2@images/x?token=s3cret-3&y=1', 7],
            'error': "failed: password = 's3cret-4'",
        }
    )
    text = json.dumps(masked)
    assert not [secret for secret in SECRETS if secret in text]
    assert masked['driver_data']['vf'] == '3'
    assert masked['url'] == ['https://***@images/x?***', 7]


# Texts with a secret, as they may stand in an option, an error or a row.
TEXTS = (
    'rabbit://nova:{}@mq-1:5672,nova:{}@mq-2:5672/',
    'mysql+pymysql://nova:a/{}@db/nova',
    'https://me:a@{}@images/x',
    'https://images/x?temp_url_sig={}',
    'https://images/x#access_token={}',
    'curl -H "X-Auth-Token: {}" https://images',
    'Authorization: Bearer {}',
    'Authorization: Basic {}',
    'Authorization: AWS4 {}',
    'eyJhbGciOiJIUzI1NiJ9.{}.c2ln',
    'ghp_{0}{1}',
    'curl -u me:{} https://images',
    'curl --user=me:{} https://images',
    'login --client-secret {}',
    'login --key {}',
    'dhchap-secret={}',
    'access-key: {}',
    'DHHC-1:00:{}:',
    'NVMeTLSkey-1:01:{}:',
    '-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----',
    '-----BEGIN PRIVATE KEY-----\n{}',
    'gAAAAA{}',
    'login --password {}',
    'api_key={}',
    'passwd: {}',
    '{{"password": "{}"}}',
    '{{"deep": [{{"api_key": "{}"}}]}}',
    "{{'auth_token': '{}'}}",
    'DB_PASS={}',
    'SSLKEY={}',
    'password: {}',
    '{{"env": ["DB_PASS={}"]}}',
)
KEYS = (
    *('password', 'PASSWD', 'admin_pass', 'secret', 'token', 'api_key'),
    *('img_signature', 'tls_psk', 'dhchap_ctrl', 'Cookie', 'credentials'),
    *('key', 'auth', 'authorization', 'sslkey'),
)


@pytest.mark.parametrize('text', TEXTS)
def test_texts_with_secrets(text):
    secret = 's3cretS3cret'
    value = text.format(secret, secret)
    assert secret not in json.dumps(
        masking.masked({'error': f'it said: {value}', 'data': [value]})
    )


@pytest.mark.parametrize('key', KEYS)
def test_keys_of_secrets(key):
    assert masking.masked({'a': [{key: 's3cret'}]}) == {'a': [{key: '***'}]}


def test_items_after_the_option_of_a_secret():
    call = ['login', '--dhchap-secret', 's3cret', '-p', '7', '--key', '--all']
    assert masking.masked(call) == [
        *('login', '--dhchap-secret', '***', '-p', '7', '--key', '--all')
    ]


@pytest.mark.parametrize(
    'part',
    [
        'a_',
        'A_',
        'password: ',
        'eyJa',
        'a://',
        'https://',
        '--user=',
        'a@',
        '?a=b&',
        ' -u',
    ],
)
def test_long_texts_are_masked_in_time(part):
    """The time must not grow with the square of the length."""
    text = '--' + part * 20_000
    began = time.process_time()
    masking.masked({'data': [text, text]})
    assert time.process_time() - began < 20


def test_what_is_no_secret():
    value = {
        'verify_signatures': 'required',
        'passthrough': 'pci',
        'no_token': None,
        'needs_key': False,
        'device': '0000:3b:00.0',
        'nqn': 'nqn.2024-01.org.example:fast',
        'text': 'https://images.example.org/x is unreachable',
        'list': '[broken',
    }
    assert masking.masked(value) == value


def test_no_planted_secret_is_packed(run, tmp_path):
    """In each secret option, in URLs of others, in a VAN, and in the log."""
    path = tmp_path / 'nova.conf'
    secret = 's3cretS3cret'
    lines = []
    for group, options in loader.list_opts():
        lines.append(f'[{group}]')
        lines += [f'{each.dest} = {secret}' for each in options if each.secret]
    lines += [
        '[os_acc_bitstreams]',
        f'no_such_option = {secret}',
        '[os_acc_privileged]',
        f'helper_command = helper --password {secret}',
        '[keystone_authtoken]',
        f'password = {secret}',
        f'auth_url = http://{secret}:5000',
    ]
    assert lines.count(f'password = {secret}') == 2
    with open(path, 'a') as file:
        file.write('\n'.join(lines) + '\n')
    plug = ('plug', 'web-1', '--resource-class', 'CUSTOM_FAKE_PCI')
    assert run(*plug, '--project-id', 'tenant-7').code == 0
    opened = journal.Journal(str(tmp_path / 'state'), 5)
    (van,) = opened.vans()
    van.driver_data = {
        'session_token': secret,
        'connection': json.dumps({'key': secret, 'nqn': 'nqn.2024-01.x'}),
        'url': f'https://images/x?{secret}',
    }
    van.error = f'GET https://u:{secret}@images: password = {secret}'
    opened.save(van)
    opened.close()
    report, log = tmp_path / 'report.tar.gz', tmp_path / 'log'
    assert run('--log-file', log, '-vv', 'support', report).code == 0
    parts = unpacked(report)
    for name, part in parts.items():
        assert secret not in json.dumps(part), name
    text = json.dumps(parts['journal'])
    assert 'nqn.2024-01.x' in text
    assert not [each for each in ('tenant-7', 'web-1') if each in text]
    assert secret not in log.read_text()


def test_a_line_that_cannot_be_read_is_not_packed(run, tmp_path):
    with open(tmp_path / 'nova.conf', 'a') as file:
        file.write('[database]\ns3cret-1 my line\n')
    report = tmp_path / 'report.tar.gz'
    assert run('support', report).code == 0
    text = json.dumps(unpacked(report))
    assert 's3cret-1' not in text
    assert 'nova.conf:' in text


def test_a_part_that_fails_does_not_stop_the_others(run, tmp_path):
    state = tmp_path / 'state'
    state.mkdir()
    (state / 'journal.db').write_bytes(b'no database' * 100)
    path = tmp_path / 'report.tar.gz'
    result = run('support', path)
    assert result.code == 0
    for part in ('journal', 'devices', 'events'):
        assert f'{part}: Journal {state}/journal.db: it is ' in result.err
    # Not once for each driver.
    assert result.err.count('it is damaged') == 3
    parts = unpacked(path)
    assert 'damaged' in parts['journal']['error']
    assert parts['versions']['packages']


def test_a_system_without_a_name(run, tmp_path, monkeypatch):
    def fail():
        raise FileNotFoundError

    monkeypatch.setattr(platform, 'freedesktop_os_release', fail)
    assert run('support', tmp_path / 'report.tar.gz').code == 0
    versions = unpacked(tmp_path / 'report.tar.gz')['versions']
    assert versions['system'] is None
    assert versions['packages']


def test_a_configuration_that_cannot_be_read(run, tmp_path):
    path = tmp_path / 'report.tar.gz'
    config = tmp_path / 'wrong.conf'
    config.write_text('[os_acc]\nno option\n')
    result = run('--config-file', config, 'support', path)
    assert result.code == 0
    assert 'configuration: ' in result.err
    assert 'the journal, its events, the devices' in result.err
    parts = unpacked(path)
    assert sorted(parts) == ['configuration', 'versions']
    assert 'wrong.conf' in parts['configuration']['error']


def test_a_configuration_that_is_missing(run, tmp_path):
    path = tmp_path / 'report.tar.gz'
    result = run('--config-file', tmp_path / 'x', 'support', path)
    assert (result.code, f'{tmp_path}/x' in result.err) == (2, True)
    assert not path.exists()


def test_without_a_journal_it_says_so(run, tmp_path):
    result = run('support', tmp_path / 'report.tar.gz')
    assert result.code == 0
    assert 'There is no journal' in result.err


def test_a_file_that_exists_or_cannot_be_written(run, tmp_path, monkeypatch):
    path = tmp_path / 'report.tar.gz'
    path.write_text('mine')
    monkeypatch.setattr(bundle, 'collect', lambda _: {'one': object()})
    for name, why in (
        (path, 'it exists already'),
        (tmp_path / 'no' / 'x', 'No such file or directory'),
    ):
        result = run('support', name)
        assert result.code == 2
        assert result.err == (
            f"InvalidRequest: support: FILE is '{name}', expected a new file "
            f'that can be written ({why})\n'
        )
    assert path.read_text() == 'mine'
    result = run('support', '-')
    assert (result.code, 'not for a terminal' in result.err) == (2, True)


def test_no_half_written_file_is_left(run, tmp_path, monkeypatch):
    monkeypatch.setattr(bundle, 'collect', lambda _: {'one': 1})

    def fail(*_args, **_kwargs):
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(tarfile.TarFile, 'addfile', fail)
    path = tmp_path / 'report.tar.gz'
    result = run('support', path)
    # Not the code for wrong arguments: the next attempt may succeed.
    assert result.code == 1
    assert f"No space left on device: '{path}'" in result.err
    assert not path.exists()

# SPDX-License-Identifier: Apache-2.0

"""Wrong configurations: the file, the line, the key, and what to write.

The commands that look for devices say each mistake once, in one line, and end
with exit code 2. The doctor has one finding for it.
"""

from __future__ import annotations

import json
import re

import command
from oslo_config import cfg
import pytest

import os_acc
from os_acc import loader
from os_acc import opts
from os_acc.cli import exit_codes
from os_acc.privileged import context

PLUG = ('plug', 'web-1', '--resource-class', 'CUSTOM_X')
# A line before the wrong one, so that its number is 3.
BEFORE = '# of this test\n[os_acc]\n'
ADDRESS = '"address": "0000:3b:00.0"'


def spec(text):
    return f'{BEFORE}device_spec = {text}\n'


def key(text):
    return spec(f'{{{ADDRESS}, {text}}}')


# The name of a case: the text, the line, the key or value that is wrong, and
# what the operator is told to do. Of a name that is mistyped, only "did you
# mean" is told.
WRONG = {
    # Entries: their keys.
    'adress': (
        spec('{"adress": "0000:3b:00.0"}'),
        3,
        "key is 'adress'",
        "did you mean 'address'?",
    ),
    'second entry': (
        spec(f'{{{ADDRESS}}}\ndevice_spec = {{"vendorid": "10de"}}'),
        4,
        "entry 2: key is 'vendorid'",
        "did you mean 'vendor_id'?",
    ),
    'entry of many lines': (
        spec(f'{{{ADDRESS},\n  "traits": "CUSTOM_A",\n  "numvfs": 4}}'),
        5,
        "key is 'numvfs'",
        "did you mean 'num_vfs'?",
    ),
    'resourceclass': (
        key('"resourceclass": "PGPU"'),
        3,
        "key is 'resourceclass'",
        "did you mean 'resource_class'?",
    ),
    'mdev_type': (
        key('"mdev_type": "nvidia-63"'),
        3,
        "key is 'mdev_type'",
        "did you mean 'mdev_types'?",
    ),
    'no key at all alike': (
        key('"elephant": 1'),
        3,
        "key is 'elephant'",
        'expected one of activation, address',
    ),
    'of a queue': (
        spec('{"idxd": "0000:6a:01.0", "wq_mod": "shared"}'),
        3,
        "key is 'wq_mod'",
        "did you mean 'wq_mode'?",
    ),
    # Entries: their values.
    'colons only': (
        spec('{"address": "3b:00:0"}'),
        3,
        "address is '3b:00:0'",
        "did you mean '0000:3b:00.0'?",
    ),
    'colons only, with domain': (
        spec('{"address": "0000:3b:00:1"}'),
        3,
        "address is '0000:3b:00:1'",
        "did you mean '0000:3b:00.1'?",
    ),
    'function 9': (
        spec('{"address": "0000:3b:00.9"}'),
        3,
        "address is '0000:3b:00.9'",
        'a function that is a hex number of at most 7',
    ),
    'vendor by name': (
        key('"vendor_id": "NVIDIA"'),
        3,
        "vendor_id is 'NVIDIA'",
        'a string with a hex number of at most ffff',
    ),
    'vendor as a number': (
        key('"vendor_id": 4318'),
        3,
        'vendor_id is 4318',
        'a string with a hex number',
    ),
    'vendor too large': (
        key('"vendor_id": "0x110de"'),
        3,
        "vendor_id is '0x110de'",
        'at most ffff',
    ),
    'num_vfs in words': (
        key('"num_vfs": "sixteen"'),
        3,
        "num_vfs is 'sixteen'",
        'a number of VFs, 1 to 65535',
    ),
    'num_vfs 0': (
        key('"num_vfs": 0'),
        3,
        'num_vfs is 0',
        'a number of VFs, 1 to 65535',
    ),
    'trusted perhaps': (
        key('"trusted": "perhaps"'),
        3,
        "trusted is 'perhaps'",
        'true or false',
    ),
    'bind': (
        key('"bind": "vfio"'),
        3,
        "bind is 'vfio'",
        'one of os-acc, libvirt, none',
    ),
    'traits as a number': (
        key('"traits": 5'),
        3,
        'traits is 5',
        'a list, or a string with commas',
    ),
    'address and devname': (
        key('"devname": "eth0"'),
        3,
        "devname is 'eth0'",
        'no devname if there is an address',
    ),
    'program alone': (
        key('"activation": "reenumerate"'),
        3,
        "activation is 'reenumerate'",
        'without program or programmer',
    ),
    # Entries: JSON.
    'no brace': (
        spec(f'{{{ADDRESS}'),
        3,
        'JSON is',
        "Expecting ',' delimiter at line 1, column 27",
    ),
    'single quotes': (
        spec("{'address': '0000:3b:00.0'}"),
        3,
        'JSON is',
        'in double quotes',
    ),
    'True': (key('"trusted": True'), 3, 'JSON is', 'Expecting value'),
    'no object': (
        spec('"0000:3b:00.0"'),
        3,
        "JSON is '0000:3b:00.0'",
        'expected a JSON object',
    ),
    'no comma in the second line': (
        spec('{"traits": "CUSTOM_A"\n  "bind": "none"}'),
        4,
        'JSON is',
        "Expecting ',' delimiter at line 2",
    ),
    # Names of options and groups, which oslo.config ignores.
    'device_specs': (
        f'{BEFORE}device_specs = {{{ADDRESS}}}\n',
        3,
        '[os_acc] has no option device_specs',
        "did you mean 'device_spec'?",
    ),
    'plugn': (
        f'{BEFORE}plugn = libvirt\n',
        3,
        '[os_acc] has no option plugn',
        "did you mean 'plugin'?",
    ),
    'statepath': (
        f'{BEFORE}statepath = /tmp\n',
        3,
        '[os_acc] has no option statepath',
        "did you mean 'state_path'?",
    ),
    'uri of libvirt': (
        '# of this test\n[os_acc_libvirt]\nlive_timout = 3\n',
        3,
        '[os_acc_libvirt] has no option live_timout',
        "did you mean '",
    ),
    'osacc': (
        '# of this test\n[osacc]\nplugin = noop\n',
        3,
        'there is no group osacc',
        "did you mean 'os_acc'?",
    ),
    'os-acc': (
        '# of this test\n[os-acc]\nplugin = noop\n',
        3,
        'there is no group os-acc',
        "did you mean 'os_acc'?",
    ),
    'os_acc_bitstream': (
        '# of this test\n[os_acc_bitstream]\ncache_size = 1\n',
        3,
        'there is no group os_acc_bitstream',
        "did you mean 'os_acc_bitstreams'?",
    ),
    'os-acc-dra': (
        '# of this test\n[os-acc-dra]\nnode_name = node-1\n',
        3,
        'there is no group os-acc-dra',
        "did you mean 'os_acc_dra'?",
    ),
    # Names of plugins and drivers.
    'libvrt': (
        f'{BEFORE}plugin = libvrt\n',
        3,
        'libvrt',
        "did you mean 'libvirt'?",
    ),
    'plugin nothing like it': (
        f'{BEFORE}plugin = elephant\n',
        3,
        'elephant',
        'cdi, libvirt, noop, powervm',
    ),
    'driver': (
        f'{BEFORE}drivers = pci, fpgaa\n',
        3,
        'fpgaa',
        "did you mean 'fpga'?",
    ),
    # Values of options.
    '30s': (
        f'{BEFORE}lock_timeout = 30s\n',
        3,
        '[os_acc] lock_timeout',
        'Write a number and nothing else, such as 300',
    ),
    'soon': (
        f'{BEFORE}device_timeout = soon\n',
        3,
        '[os_acc] device_timeout',
        'Write a number and nothing else, such as 60',
    ),
    'workers': (
        f'{BEFORE}max_workers = -1\n',
        3,
        '[os_acc] max_workers',
        'greater than or equal to 1',
    ),
    'workers in words': (
        f'{BEFORE}max_workers = many\n',
        3,
        '[os_acc] max_workers',
        'Write a number and nothing else, such as 16',
    ),
    'state': (
        f'{BEFORE}state_path = state\n',
        3,
        '[os_acc] state_path',
        'the absolute path of a directory',
    ),
    'locks': (
        f'{BEFORE}lock_path = locks\n',
        3,
        '[os_acc] lock_path',
        'the absolute path of a directory',
    ),
    'a reference': (
        f'{BEFORE}lock_path = $no_such/locks\n',
        3,
        '[os_acc] lock_path',
        'Write "$$"',
    ),
}

# Those that are no file of oslo.config at all stop every command.
NO_FILE = {
    'no assignment': (f'{BEFORE}plugin\n', 3),
    'no bracket': ('# of this test\n\n[os_acc\n', 3),
}


@pytest.fixture
def run(kernel, clean, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(context, 'whoami', lambda: (0, []))
    monkeypatch.setattr(context, 'check_users', lambda: None)
    for name in ('plugin', 'lock_timeout', 'device_timeout'):
        os_acc.CONF.clear_override(name, 'os_acc')
    (tmp_path / 'state').mkdir()
    return command.Command(None, capsys, monkeypatch)


@pytest.fixture
def write(tmp_path):
    """Write a configuration file whose other options are right."""

    def write(text):
        path = tmp_path / 'os-acc.conf'
        text += '[os_acc]\n'
        if not re.search('^state_path', text, re.MULTILINE):
            text += f'state_path = {tmp_path}/state\n'
        path.write_text(text)
        return path

    return write


def test_there_are_forty():
    assert len(WRONG) >= 40


@pytest.mark.parametrize('case', WRONG)
def test_a_command_says_it_once(run, write, case):
    text, line, what, remedy = WRONG[case]
    path = write(text)
    for arguments in (['device', 'list'], PLUG, [*PLUG, '--dry-run']):
        said = run.fails(
            exit_codes.WRONG_USAGE, '--config-file', path, *arguments
        )
        assert said.count(f'{path}:{line}: ') == 1, said
        assert said.count(str(path)) == 1
        assert what in said
        assert remedy in said
        if 'did you mean' in remedy:
            # Not all keys that there are.
            assert len(said.replace(str(path), '')) < 200


@pytest.mark.parametrize('case', WRONG)
def test_the_doctor_says_it_once(run, write, case):
    text, line, what, remedy = WRONG[case]
    path = write(text)
    result = run('--config-file', path, 'doctor', '-f', 'json')
    found = [x for x in json.loads(result.out) if f'{path}:{line}' in str(x)]
    assert len(found) == 1, found
    said = ' '.join(found[0].values())
    assert what in said
    assert remedy in said
    if found[0]['verdict'] == 'error':
        assert result.code == exit_codes.FAILED


@pytest.mark.parametrize('case', NO_FILE)
def test_what_is_no_file_of_options(run, write, case):
    text, line = NO_FILE[case]
    path = write(text)
    for arguments in (['device', 'list'], PLUG, ['doctor'], ['van', 'list']):
        said = run.fails(
            exit_codes.WRONG_USAGE, '--config-file', path, *arguments
        )
        assert f'at {path}:{line}' in said
        assert 'Write [group], option = value' in said


def test_a_file_of_the_directory(run, write, tmp_path):
    """The line is that of the key; without one, the file is told."""
    directory = tmp_path / 'specs'
    directory.mkdir()
    path = write(f'[os_acc]\ndevice_spec_dir = {directory}\n')
    file = directory / 'cards.json'
    os_acc.CONF.clear_override('device_spec_dir', 'os_acc')
    for text, place in (
        (f'[{{{ADDRESS}}},\n {{\n "adress": "x"}}]', f'{file}:3: '),
        (f'[{{{ADDRESS}}}\n {{{ADDRESS}}}]', f'{file}:2: '),
        ('[{"bind": "x"},\n {"bind": "y"}]', f'{file}: '),
    ):
        file.write_text(text)
        said = run.fails(
            exit_codes.WRONG_USAGE, '--config-file', path, 'device', 'list'
        )
        assert said.count(place) == 1, said


def test_an_option_that_is_like_no_other(run, write):
    """It may be of another version: the doctor alone remarks on it."""
    path = write(f'{BEFORE}elephant = big\n')
    result = run('--config-file', path, 'device', 'list')
    assert result.code == 0
    assert 'elephant' not in result.err
    result = run('--config-file', path, 'doctor', '-f', 'json')
    (found,) = (x for x in result.json if f'{path}:3: ' in x['finding'])
    assert found['verdict'] == 'warning'
    assert '[os_acc] has no option elephant; it has ' in found['finding']
    assert 'big' not in str(result.json)


@pytest.mark.parametrize('group', ['os_acc_dra', 'os_acc_nova'])
def test_a_group_of_another_distribution(run, write, group):
    """All programs of a host may read one file."""
    path = write(f'# of this test\n[{group}]\nnode_name = node-1\n')
    assert run('--config-file', path, 'device', 'list').code == 0
    result = run('--config-file', path, 'doctor', '-f', 'json')
    assert group not in str(result.json)


def test_a_file_that_is_read_twice(run, write):
    path = write(f'{BEFORE}plugn = libvirt\n')
    said = run.fails(
        exit_codes.WRONG_USAGE,
        *('--config-file', path, '--config-file', path),
        *('device', 'list'),
    )
    assert said.count(f'{path}:3: ') == 1


def test_several_mistakes(run, write):
    path = write('[os_acc]\nplugn = noop\nmax_workers = 0\n[osacc]\nx = y\n')
    said = run.fails(
        exit_codes.WRONG_USAGE, '--config-file', path, 'device', 'list'
    )
    for line in (2, 3, 5):
        assert said.count(f'{path}:{line}: ') == 1


def test_with_json_it_is_an_object(run, write):
    path = write(key('"adress": 1'))
    result = run('--config-file', path, *PLUG, '--json')
    assert (result.code, result.err) == (exit_codes.WRONG_USAGE, '')
    assert f'{path}:3: ' in str(result.json)


@pytest.mark.parametrize(
    ('option', 'typed', 'meant'),
    [('--plugin', 'libvrt', 'libvirt'), ('--driver', 'fakke', 'fake')],
)
def test_a_name_in_the_command(run, write, option, typed, meant):
    path = write('')
    said = run.fails(
        exit_codes.WRONG_USAGE,
        *('--config-file', path, 'plug', 'web-1', '--resource-class'),
        *('CUSTOM_FAKE_PCI', '--driver', 'fake', option, typed),
    )
    assert f"did you mean '{meant}'?" in said


def test_unplug_does_not_need_device_spec(run, write):
    """What is plugged can be released whatever device_spec says."""
    path = write(key('"adress": 1') + 'plugn = noop\n')
    result = run('--config-file', path, 'unplug', 'web-1')
    assert result.code == 0
    assert result.out == 'released 0: instance web-1 has none\n'


def test_groups_of_others_and_all_options_are_right(tmp_path):
    """No option of os-acc, and no group of another service, is a mistake."""
    loaded = loader.load_all()
    lines = ['[DEFAULT]', 'debug = true', '[os_brick]', 'lock_path = /x']
    lines += ['[os_vif_ovs]', 'x = y', '[os_acc_nova]', 'from_cyborg = true']
    lines += ['[os_acc_privileged]', 'user = root', '[os_acc_acme]', 'x = y']
    for group, options in loader.list_opts():
        lines.append(f'[{group}]')
        lines += [f'{x.name} = x' for x in options]
        lines += [f'{x.dest} = x' for x in options]
    path = tmp_path / 'nova.conf'
    path.write_text('\n'.join(lines))
    conf = cfg.ConfigOpts()
    opts.register(conf)
    conf([], default_config_files=[str(path)])
    assert opts.unknown(conf, loaded.options()) == []

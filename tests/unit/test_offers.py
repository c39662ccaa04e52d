# SPDX-License-Identifier: Apache-2.0

"""How the privileged daemon reads device_spec: anew, and only from root."""

from __future__ import annotations

import os

import devices
from oslo_config import cfg
import pytest

import os_acc
from os_acc import exception
from os_acc import opts
from os_acc.kernel import pci
from os_acc.privileged import cleaning
from os_acc.privileged import offers
from os_acc.privileged import storage
from os_acc.privileged.fpga import root_copy
from os_acc.spec import device_spec


@pytest.fixture
def files(tmp_path):
    """A configuration file, a directory of such files, and device_spec_dir."""
    for name in ('conf', 'specs'):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o755)
    put(tmp_path / 'os-acc.conf', f'device_spec_dir = {tmp_path}/specs', 'm')
    put(tmp_path / 'conf/extra.conf', '')
    return tmp_path


def put(path, line, *addresses) -> None:
    lines = ['[os_acc]', line]
    lines += [f'device_spec = {{"address": "{each}"}}' for each in addresses]
    path.write_text('\n'.join(lines) + '\n')
    path.chmod(0o644)


@pytest.fixture
def daemon(files):
    """The configuration that the daemon was started with."""
    conf = cfg.ConfigOpts()
    opts.register(conf)
    conf(
        [
            f'--config-file={files}/os-acc.conf',
            f'--config-dir={files}/conf',
        ],
        project='privsep',
    )
    return conf


def offered(daemon) -> list[str]:
    specs = device_spec.load(offers.reread(daemon))
    return [spec.address.name for spec in specs.entries]


def test_a_change_takes_effect_at_the_next_call(files, daemon):
    assert offered(daemon) == ['m']
    put(files / 'os-acc.conf', f'device_spec_dir = {files}/specs', 'n', 'o')
    assert offered(daemon) == ['n', 'o']
    (files / 'specs/d.json').write_text('{"address": "p"}')
    (files / 'specs/d.json').chmod(0o644)
    assert offered(daemon) == ['p', 'n', 'o']
    put(files / 'os-acc.conf', 'device_spec_dir = /nowhere')
    assert offered(daemon) == []


def test_a_directory_of_configuration_files(files, daemon):
    put(files / 'conf/extra.conf', '', 'x')
    assert offered(daemon) == ['m', 'x']


def test_the_environment_does_not_count(daemon, monkeypatch):
    monkeypatch.setenv('OS_OS_ACC__DEVICE_SPEC', '{"address": "*"}')
    assert offered(daemon) == ['m']


def test_overrides_of_the_caller_do_not_count(daemon):
    daemon.set_override('device_spec', ['{"address": "*"}'], 'os_acc')
    assert offered(daemon) == ['m']


@pytest.mark.parametrize(
    ('name', 'mode'),
    [
        ('os-acc.conf', 0o666),
        ('os-acc.conf', 0o664),
        ('conf/extra.conf', 0o662),
        ('conf', 0o777),
        ('specs', 0o775),
        ('.', 0o777),
    ],
)
def test_files_and_directories_that_others_can_write(
    files, daemon, name, mode
):
    path = files / name
    path.chmod(mode)
    with pytest.raises(exception.InvalidRequest, match='mode is') as caught:
        offered(daemon)
    assert str(caught.value).startswith(f'{path}: ')


def test_a_file_of_another_user(files, daemon, monkeypatch):
    stat = os.stat

    def other(path, **kwargs):
        found = list(stat(path, **kwargs))
        if str(path).endswith('os-acc.conf'):
            found[4] = 4711
        return os.stat_result(found)

    monkeypatch.setattr(os, 'stat', other)
    with pytest.raises(exception.InvalidRequest, match='user id 4711'):
        offered(daemon)


def test_a_file_that_is_gone(files, daemon):
    (files / 'os-acc.conf').unlink()
    with pytest.raises(exception.InvalidRequest, match='access is'):
        offered(daemon)


def test_a_file_that_is_malformed(files, daemon):
    (files / 'os-acc.conf').write_text('no option\n')
    with pytest.raises(exception.InvalidRequest, match='configuration'):
        offered(daemon)


def test_a_default_directory_that_does_not_exist(clean):
    conf = cfg.ConfigOpts()
    opts.register(conf)
    conf(
        [],
        project='privsep',
        default_config_files=[],
        default_config_dirs=['/nowhere'],
    )
    conf.set_default('device_spec_dir', '', 'os_acc')
    assert offers.reread(conf).os_acc.device_spec == []


def test_a_service_that_runs_as_root_itself(kernel):
    """There is no daemon: the configuration is the service's own."""
    cfg.CONF.set_override('device_spec', ['{"address": "m"}'], 'os_acc')
    assert [spec.address.name for spec in offers.specs().entries] == ['m']
    assert offers.count() == 1


class TestCleaningCommand:
    """The daemon takes it from files of root, as it takes device_spec."""

    @pytest.fixture
    def said(self, tmp_path):
        return tmp_path / 'said'

    @pytest.fixture
    def here(self, kernel, files, said):
        """The daemon's own process: privsep-helper defines that option."""
        devices.furnish(kernel)
        conf = os_acc.CONF
        option = cfg.StrOpt('privsep_context')
        conf([f'--config-file={files}/os-acc.conf'], project='privsep')
        conf.register_opt(option)
        lines = (
            f'device_spec_dir = {files}/specs',
            f"cleaning_command = sh -c 'echo $0 >> {said}' {{address}}",
        )
        put(files / 'os-acc.conf', '\n'.join(lines), '*')
        yield kernel
        conf.clear()
        conf.unregister_opt(option)

    def test_from_the_file(self, here, said):
        cleaning.run_command('x')
        assert said.read_text() == 'x\n'

    def test_the_environment_and_overrides_do_not_count(
        self, here, said, monkeypatch, tmp_path
    ):
        bad = f'touch {tmp_path}/bad'
        monkeypatch.setenv('OS_OS_ACC__CLEANING_COMMAND', bad)
        os_acc.CONF.set_override('cleaning_command', bad, 'os_acc')
        cleaning.run_command('x')
        assert said.read_text() == 'x\n'
        assert not (tmp_path / 'bad').exists()

    def test_a_file_that_others_can_write(self, here, files, said):
        (files / 'os-acc.conf').chmod(0o666)
        with pytest.raises(exception.InvalidRequest, match='mode is'):
            cleaning.run_command('x')
        assert not said.exists()

    def test_what_it_empties_is_in_the_file_too(self, here, files):
        raid = '0000:07:00.0'
        here.add_function(raid, '1000:0016', 0x010400, 'megaraid_sas')
        devices.spec({'address': '*', 'command_empties': True})
        instance = devices.instance().uuid
        with pytest.raises(exception.DeviceError, match='class 0104'):
            storage.check(pci.get(raid), instance)
        text = (files / 'os-acc.conf').read_text()
        text = text.replace('"*"', '"*", "command_empties": true')
        (files / 'os-acc.conf').write_text(text)
        storage.check(pci.get(raid), instance)

    def test_where_images_are(self, here, files, monkeypatch, tmp_path):
        """Neither the environment nor an override names a directory."""
        images = tmp_path / 'images'
        images.mkdir()
        image = images / 'aes'
        image.write_bytes(b'aes')
        group = 'os_acc_bitstreams'
        monkeypatch.setenv(
            'OS_OS_ACC_BITSTREAMS__ALLOWED_FOLDERS', str(images)
        )
        os_acc.CONF.set_override('allowed_folders', [str(images)], group)
        with pytest.raises(exception.BitstreamError, match='allowed_folders'):
            root_copy.opened(str(image)).__enter__()
        path = files / 'os-acc.conf'
        lines = f'[os_acc_bitstreams]\nallowed_folders = {images}\n'
        path.write_text(path.read_text() + lines)
        with root_copy.opened(str(image)) as (_, file):
            assert file.read() == b'aes'

# SPDX-License-Identifier: Apache-2.0

"""The doctor reads the configuration of container runtimes."""

import pytest

from acc_plug_cdi import runtimes
from os_acc import finding
from os_acc.kernel import sysfs

SPECS = '/var/run/cdi'
NEW = '[plugins."io.containerd.cri.v1.runtime"]\n'
OLD = '[plugins."io.containerd.grpc.v1.cri"]\n'


@pytest.fixture
def etc(tmp_path, monkeypatch):
    monkeypatch.setattr(sysfs, 'ETC', str(tmp_path))
    for name in ('containerd/conf.d', 'crio/crio.conf.d'):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def said(directory=SPECS):
    return [(each.verdict, each.text) for each in runtimes.findings(directory)]


@pytest.mark.parametrize(
    ('text', 'verdicts'),
    [
        ('version = 3', [finding.OK]),
        (f'version = 3\n{NEW}enable_cdi = true', [finding.OK]),
        (f'version = 3\n{NEW}enable_cdi = false', [finding.ERROR]),
        (f'version = 3\n{NEW}cdi_spec_dirs = ["/etc/cdi"]', [finding.ERROR]),
        (f'version = 3\n{NEW}cdi_spec_dirs = []', [finding.ERROR]),
        (f'version = 3\n{NEW}cdi_spec_dirs = ["{SPECS}/"]', [finding.OK]),
        ('', [finding.WARNING, finding.OK]),
        (f'version = 2\n{OLD}enable_cdi = true', [finding.OK]),
        (f'version = 2\n{OLD}enable_cdi = false', [finding.ERROR]),
        (
            f'version = 2\n{OLD}cdi_spec_dirs = ["/a"]',
            [finding.WARNING, finding.ERROR],
        ),
        # The table of version 3 in a file of version 2 is another plugin's.
        (
            f'version = 2\n{NEW}enable_cdi = true',
            [finding.WARNING, finding.OK],
        ),
        ('version = [', [finding.WARNING]),
        ('version = "three"', [finding.WARNING]),
        (f'version = 3\n{NEW}cdi_spec_dirs = [1]', [finding.WARNING]),
    ],
)
def test_containerd(etc, text, verdicts):
    (etc / 'containerd/config.toml').write_text(text)
    assert [verdict for verdict, _ in said()] == verdicts


def test_a_file_that_containerd_imports(etc):
    main = f'version = 3\nimports = ["conf.d/*.toml"]\n{NEW}enable_cdi = true'
    (etc / 'containerd/config.toml').write_text(main)
    (etc / 'containerd/conf.d/a.toml').write_text(
        f'version = 3\n{NEW}cdi_spec_dirs = ["/opt/cdi"]'
    )
    ((verdict, text),) = said()
    assert verdict == finding.ERROR
    assert f'in /opt/cdi, but os-acc writes them into {SPECS}' in text
    assert said('/opt/cdi')[0][0] == finding.OK


def test_crio(etc):
    (etc / 'crio/crio.conf').write_text('[crio.runtime]\ncgroup_manager = "a"')
    assert said()[0][0] == finding.OK
    (etc / 'crio/crio.conf.d/10-cdi').write_text(
        '[crio.runtime]\ncdi_spec_dirs = ["/etc/cdi"]'
    )
    (found,) = runtimes.findings(SPECS)
    assert found.verdict == finding.ERROR
    assert 'crio.conf.d/10-cdi' in found.advice


def test_no_runtime_is_configured(etc):
    assert said() == []


def test_a_link_to_the_directory(etc):
    (etc / 'cdi').symlink_to(etc / 'real')
    (etc / 'crio/crio.conf').write_text(
        f'[crio.runtime]\ncdi_spec_dirs = ["{etc}/real"]'
    )
    assert said(f'{etc}/cdi')[0][0] == finding.OK

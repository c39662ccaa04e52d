# SPDX-License-Identifier: Apache-2.0

"""The driver with the capabilities of the manifests, and no others.

It runs as root in tests/dra/isolated.sh, in the host's PID namespace.
"""

from __future__ import annotations

import json
import os
import shutil
import stat

import charts
from programs import Program
import pytest
import stand_in_kubelet

from os_acc_dra import offers


@pytest.fixture
def device():
    """A device file of the user nobody: see test_pods."""
    directory = f'/dev/os-acc-dra-{os.getpid()}'
    os.mkdir(directory, 0o755)
    os.mknod(f'{directory}/acc', stat.S_IFCHR | 0o600, os.makedev(1, 252))
    os.chown(f'{directory}/acc', 65534, 65534)
    yield f'{directory}/acc'
    shutil.rmtree(directory)


def setpriv(names):
    """The command that leaves only some capabilities to a program."""
    text = ','.join(['-all', *(f'+{each.lower()}' for each in names)])
    return ['setpriv', '--bounding-set', text, '--inh-caps', '-all']


@pytest.mark.timeout(600)
def test_prepare_with_these_capabilities(tmp_path, directory, server, device):
    (container,) = charts.of_kind(
        charts.objects(charts.PLAIN.read_text()), 'DaemonSet'
    )['spec']['template']['spec']['containers']
    names = container['securityContext']['capabilities']['add']
    entry = json.dumps(
        {
            'devices': device,
            'resource_class': 'CUSTOM_A',
            'mode': '0660',
            'owner': 'root',
        }
    )
    program = Program(
        tmp_path,
        directory,
        server.kubeconfig(tmp_path / 'kubeconfig'),
        f'device_spec = {entry}\n',
        setpriv(names),
    )
    try:
        program.wait_until_it_serves()
        kubelet = stand_in_kubelet.Kubelet(directory, server)
        kubelet.register()
        claim = server.claim(
            'one', [offers.name_of('file/char-1-252')], 'node-1'
        )
        assert len(kubelet.prepare(claim)) == 1, program.log()
        found = os.stat(device)
        assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (0, 0o660)
        kubelet.unprepare(claim)
        assert os.stat(device).st_uid == 65534
    finally:
        assert program.end() == 0

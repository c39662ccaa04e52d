# SPDX-License-Identifier: Apache-2.0

"""Runs the commands of host-services.rst on a generated host."""

from __future__ import annotations

import command
import devices
import pages
import pytest

import os_acc

PAGE = 'host-services.rst'
NIC, QAT, OTHER = '0000:3b:00.0', '0000:6b:00.0', '0000:70:00.0'


@pytest.fixture
def run(kernel, capsys, monkeypatch):
    kernel.add_driver('c6xxvf')
    kernel.add_function(NIC, '8086:1572', 0x020000, 'i40e', totalvfs=4)
    for qat in (QAT, OTHER):
        kernel.add_function(qat, '8086:4940', 0x0B4000, 'qat', totalvfs=4)
    (text,) = pages.blocks(PAGE, 'ini', 'host_driver')
    devices.spec(*pages.device_specs(text))
    # In the order of the page.
    os_acc.CONF.set_override('max_workers', 1, 'os_acc')
    os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
    state = os_acc.CONF.os_acc.state_path
    return command.Command(state, capsys, monkeypatch)


def test_the_page(run, kernel):
    for marker in (
        'plug host:ovs',
        'plug host:ipsec',
        'plug host:envoy',
        'van list',
    ):
        (text,) = pages.blocks(PAGE, 'console', marker)
        for arguments, said in pages.steps(text):
            result = run(*arguments)
            pages.check_sample(PAGE, said, result.out + result.err)
    vfs = [f'{pf[:-1]}{n}' for pf, n in ((NIC, 1), (NIC, 2), (QAT, 1))]
    bound = [kernel.driver_of(each) for each in vfs]
    assert bound == ['vfio-pci', 'vfio-pci', 'c6xxvf']
    kernel.reboot()
    assert run('recover').code == 0
    assert [kernel.driver_of(each) for each in vfs] == bound

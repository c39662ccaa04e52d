# SPDX-License-Identifier: Apache-2.0

"""The driver is loaded by a real Nova. See operations for its operations."""

from __future__ import annotations

import nova.conf
from nova.virt.libvirt import driver as libvirt_driver

from os_acc_nova import compatibility

CONF = nova.conf.CONF


def test_this_nova_is_supported():
    # The fixtures of the other tests replace some of the methods.
    compatibility.check(libvirt_driver.LibvirtDriver)


def test_the_journal_is_where_nova_may_write(site):
    assert CONF.os_acc.state_path == f'{CONF.state_path}/os-acc'
    assert CONF.os_acc.host == 'node-1'

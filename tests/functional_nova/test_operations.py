# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

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

# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Two users, each with a privileged daemon of its own, and one FPGA.

The daemons are processes of oslo.privsep with its three capabilities, made by
fork instead of sudo. The kernel is a tree of files.
"""

from __future__ import annotations

from collections.abc import Iterator
import pathlib
import shutil
import tempfile
import uuid

import kernel as kernel_module
from oslo_privsep import priv_context
import processes
import pytest
import two_users
from two_users import CYBORG
from two_users import NOVA
from two_users import Host
import vendor as vendor_module

import os_acc
from os_acc import objects
from os_acc.privileged import context

INSTANCE = str(uuid.uuid4())
CARD, VF = vendor_module.FPGA, vendor_module.VFS[0]


class CardHost(Host):
    """A host with an FPGA that takes one function, and its vendor's tool."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(folder)
        self.tool = vendor_module.Vendor(folder / 'vendor')
        self.kernel = kernel_module.Kernel(folder / 'host')
        vendor_module.furnish(self.kernel)
        self.files = {
            name: self.tool.bitstream(name) for name in ('aes', 'sha')
        }

    def before(self) -> None:
        # Not undone: the child ends with it.
        self.kernel.install(pytest.MonkeyPatch())
        self.configure()
        context.pctxt.set_client_mode(True)
        context.pctxt.start(priv_context.Method.FORK)

    def configure(self) -> None:
        processes.configure(str(self.state))
        os_acc.CONF.set_override('plugin', 'noop', 'os_acc')
        self.tool.configure('single')

    def plug(self, function: str) -> str:
        made = objects.InstanceInfo(uuid=INSTANCE, name='i', project_id='p')
        request = objects.AcceleratorRequest(
            uuid=str(uuid.uuid4()),
            driver='fpga',
            resource_class='FPGA',
            function_id=function,
            bitstream=self.files[function],
        )
        (van,) = os_acc.plug(made, [request])
        return van.handle.identity

    def program(self, function: str) -> bool:
        return os_acc.program_device(CARD, self.files[function], function)


@pytest.fixture(scope='module', autouse=True)
def imported() -> None:
    two_users.import_all()


@pytest.fixture
def host() -> Iterator[CardHost]:
    made = pathlib.Path(tempfile.mkdtemp(prefix='os-acc-daemons-'))
    made.chmod(0o755)
    host = CardHost(made)
    host.share()
    yield host
    shutil.rmtree(made)


def test_a_daemon_of_its_own_is_root(host):
    for user in (NOVA, CYBORG):
        assert host.run(user, context.whoami) == [0, []]


def test_the_agent_programs_what_nobody_uses(host):
    assert host.run(CYBORG, lambda: host.program('aes')) is True
    assert host.tool.function() == 'aes'
    host.run(NOVA, lambda: host.plug('aes'))
    assert len(host.tool.calls()) == 1

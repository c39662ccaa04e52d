# SPDX-License-Identifier: Apache-2.0

"""Two users, each with a privileged daemon of its own, and one FPGA.

The daemons are processes of oslo.privsep with its capabilities, made by
fork instead of sudo. The kernel is a tree of files.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import hashlib
import pathlib
import shutil
import tempfile
import uuid

from oslo_privsep import priv_context
import processes
import pytest
import two_users
from two_users import CYBORG
from two_users import NOVA
from two_users import Host
import vendor as vendor_module

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc.privileged import context
from os_acc.privileged.fpga import command as privileged
from os_acc.privileged.pci import functions as pci
from os_acc.testing import kernel as kernel_module

INSTANCE, OTHER = str(uuid.uuid4()), str(uuid.uuid4())
CARD = vendor_module.FPGA


class CardHost(Host):
    """A host with an FPGA that takes one function, and its vendor's tool."""

    def __init__(self, directory: pathlib.Path) -> None:
        super().__init__(directory)
        self.tool = vendor_module.Vendor(directory / 'vendor')
        self.kernel = kernel_module.Kernel(directory / 'host')
        vendor_module.furnish(self.kernel)
        self.files = {
            name: self.tool.bitstream(name) for name in ('aes', 'sha')
        }

    def before(self) -> None:
        # Not undone: the child ends with it.
        self.kernel.install(pytest.MonkeyPatch())
        self.configure()
        context.pctxt.set_client_mode(True)
        # Another test may have called CONF.reset(), which drops this default.
        os_acc.CONF.set_default(
            'capabilities', list(context.CAPABILITIES), context.SECTION
        )
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
        return van.handle.address

    def release(self, instance: objects.InstanceInfo) -> int:
        os_acc.CONF.set_override('release_timeout', 0.2, 'os_acc')
        return os_acc.unplug(instance)

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


def refused(act: Callable[[], object], of_journal: bool = True) -> str:
    """Call a privileged function, as a caller that asks nobody.

    :param of_journal: whether the caller has the journal that both share
    """
    os_acc.initialize()
    mine = (
        os_acc._host.acting_for() if of_journal else contextlib.nullcontext()
    )
    try:
        with mine:
            act()
    except exception.ExceptionBase as err:
        return f'{type(err).__name__}: {err}'
    return 'done'


def test_the_journal_keeps_the_agent_from_a_guests_device(host):
    host.run(NOVA, lambda: host.plug('aes'))
    error = host.error(CYBORG, lambda: host.program('sha'))
    assert error.startswith('DeviceBusy: ')
    assert f'instance {INSTANCE}' in error
    assert host.tool.function() == 'aes'
    assert len(host.tool.calls()) == 1


def test_open_files_keep_the_agents_daemon_from_a_guests_device(host, report):
    """Also when its caller does not look into the journal."""
    address = host.run(NOVA, lambda: host.plug('aes'))
    guest = host.kernel.hold(host.kernel.node(address))
    path = pathlib.Path(host.files['sha'])
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    for act in (
        lambda: privileged.program(CARD, '', str(path), digest, 'sha', 10.0),
        lambda: privileged.clear(CARD, '', 10.0),
        lambda: pci.take(address, 'vfio_pci', [], OTHER, 5.0),
    ):
        error = host.run(CYBORG, lambda act=act: refused(act))
        assert error.startswith('DeviceBusy: '), error
        assert f'process {guest}' in error
    # A caller without the journal is refused by the note of the VAN.
    error = host.run(
        CYBORG,
        lambda: refused(
            lambda: pci.take(address, 'vfio_pci', [], OTHER, 5.0),
            of_journal=False,
        ),
    )
    assert error.startswith('DeviceBusy: '), error
    assert f'instance {INSTANCE} has it' in error
    assert host.tool.function() == 'aes'
    assert host.tool.calls('cleared') == []
    host.kernel.end(guest)
    assert host.run(NOVA, lambda: len(os_acc.get_vans())) == 1
    report('two daemons: neither takes what the guest of the other has open')


def test_what_one_daemon_took_the_other_gives_back(host):
    """But not while the guest has it open."""
    address = host.run(NOVA, lambda: host.plug('aes'))
    instance = objects.InstanceInfo(uuid=INSTANCE, name='i', project_id='p')
    guest = host.kernel.hold(host.kernel.node(address))
    error = host.error(CYBORG, lambda: host.release(instance))
    assert f'process {guest}' in error
    host.kernel.end(guest)
    # initialize() finishes what the unplug could not.
    assert host.run(CYBORG, lambda: len(os_acc.get_vans())) == 0
    assert host.run(NOVA, lambda: len(os_acc.get_vans())) == 0
    assert host.run(CYBORG, lambda: host.program('sha')) is True

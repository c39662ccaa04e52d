# SPDX-License-Identifier: Apache-2.0
"""os-acc's driver for the agent, with Cyborg's real conductor."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import json
import pathlib
import subprocess
import sys
import time
from typing import Any
import uuid

from cloud import HOST
from cloud import Cyborg
from cyborg.accelerator.drivers import fake
from cyborg.accelerator.drivers.fpga import base
from cyborg.agent import resource_tracker
from cyborg.common import exception as cyborg_exception
from cyborg.common import rpc
from cyborg.conf import CONF
from cyborg.objects import ext_arq
from cyborg.objects.extarq import fpga_ext_arq
import oslo_messaging
from oslo_messaging._drivers import common as messaging
import pytest

import os_acc
from os_acc import exception
from os_acc import journal
from os_acc import loader
from os_acc import objects
from os_acc.cyborg import connections
from os_acc.cyborg import names
from os_acc.cyborg.agent import driver as agent_driver
from os_acc.privileged import privsep
from os_acc.state import selection
from os_acc.testing.kernel import Kernel

PF = '0000:41:00.0'
VFS = [f'0000:41:00.{number}' for number in (1, 2, 3, 4)]
GPU = '0000:81:00.0'
PARENT = '0000:af:00.0'
NVIDIA, SMALL, LARGE = '10de:1eb8', 'nvidia-222', 'nvidia-223'
PF_NAME, GPU_NAME = '0000_41_00.0', '0000_81_00.0'
FAKE_NAME = 'node-1_example_org_FakeDevice'
SMALL_NAME = f'0000_af_00.0_{SMALL}'
LARGE_NAME = f'0000_af_00.0_{LARGE}'
SPEC = (
    {'address': PF, 'num_vfs': 4, 'resource_class': 'CUSTOM_QAT'},
    {'address': GPU},
    {'address': PARENT, 'mdev_types': [SMALL, LARGE]},
)


class Agent:
    """A host with an agent, nova-compute, and the conductor.

    :ivar cyborg: the conductor
    :ivar kernel: the host's devices
    """

    def __init__(self, cyborg: Cyborg, kernel: Kernel) -> None:
        self.cyborg, self.kernel = cyborg, kernel
        self.compute = selection.Selected(os_acc.CONF)
        kernel.add_function(PF, '8086:4940', 0x0B4000, 'qat', totalvfs=4)
        kernel.add_function(GPU, NVIDIA, 0x030200, 'nvidia', numa=1)
        path = kernel.add_function(PARENT, NVIDIA, 0x030200, 'nvidia')
        kernel.add_mdev_parent(path, {SMALL: 1, LARGE: 2}, 4)
        cyborg.make_mdev = self.make_mdev
        cyborg.remove_mdev = self.remove_mdev
        self.offer(*SPEC)
        self.start()

    @staticmethod
    def offer(*entries: dict[str, Any], **fake: Any) -> None:
        specs = [json.dumps(entry) for entry in entries]
        os_acc.CONF.set_override('device_spec', specs, 'os_acc')
        for name, value in fake.items():
            os_acc.CONF.set_override(name, value, 'os_acc_fake')

    def start(self) -> None:
        """Start the agent, anew."""
        os_acc._host = None
        tracker = resource_tracker.ResourceTracker(HOST, self)
        self.update = tracker.update_usage

    def report_data(self, context: Any, host: str, devices: Any) -> None:
        assert host == HOST
        self.reported = devices
        self.cyborg.report(devices)

    def period(self, refused: bool = False) -> dict[str, dict[str, int]]:
        """One period. Returns the inventories, by names of deployables.

        Nothing that is bound may be gone from Cyborg, and Placement may
        refuse nothing.
        """
        self.update(self.cyborg.context)
        assert bool(self.cyborg.placement.refused) == refused
        down, self.cyborg.down = self.cyborg.down, False
        assert self.cyborg.get('/accelerator_requests').status_code == 200
        self.cyborg.down = down
        self.cyborg.calls.clear()
        return self.cyborg.placement.totals()

    def make_mdev(self, parent: str, kind: str, handle: str) -> None:
        directory = self.kernel.sys / 'class/mdev_bus' / parent
        self.kernel.write(
            f'{directory}/mdev_supported_types/{kind}/create', handle
        )

    def remove_mdev(self, parent: str, kind: str, handle: str) -> None:
        # As Cyborg's remove_mdev_privileged(): an error if it is gone.
        assert (self.kernel.mdev / handle / 'remove').exists()
        self.kernel.write(str(self.kernel.mdev / handle / 'remove'), '1')

    @contextlib.contextmanager
    def nova(self) -> Iterator[None]:
        """Within it, os_acc is that of nova-compute."""
        selection.Process.selected = self.compute
        try:
            os_acc.initialize(owner='nova')
            yield
        finally:
            selection.Process.selected = None

    def plug(self, arq: dict[str, Any], **values: Any) -> objects.VAN:
        request = objects.AcceleratorRequest.from_arq(arq)
        for name, value in values.items():
            setattr(request, name, value)
        return self.plug_request(request, arq['instance_uuid'])

    def plug_request(
        self, request: objects.AcceleratorRequest, instance: str
    ) -> objects.VAN:
        info = objects.InstanceInfo(uuid=instance, name='', project_id='')
        with self.nova():
            (van,) = os_acc.plug(info, [request])
        return van

    def select(self, resource_class: str, **values: Any) -> objects.VAN:
        """Plug a request that Cyborg knows nothing of."""
        request = objects.AcceleratorRequest(
            uuid=str(uuid.uuid4()), resource_class=resource_class, **values
        )
        return self.plug_request(request, str(uuid.uuid4()))

    def unplug(self, van: objects.VAN) -> None:
        info = objects.InstanceInfo(
            uuid=van.instance_uuid, name='', project_id=''
        )
        with self.nova():
            assert os_acc.unplug(info) == 1

    def traits(self, deployable: str) -> set[str]:
        found = self.cyborg.placement.named(f'{HOST}_{deployable}')
        assert found is not None
        return set(found['traits'])

    def addresses(self, deployable: str) -> list[str]:
        """The functions that Cyborg has of a deployable."""
        return sorted(
            '{domain}:{bus}:{device}.{function}'.format(**each)
            for each in self.cyborg.handles(deployable)
        )


@pytest.fixture
def agent(tmp_path: pathlib.Path, monkeypatch: Any) -> Iterator[Agent]:
    kernel = Kernel(tmp_path / 'host')
    kernel.install(monkeypatch)
    monkeypatch.setattr(os_acc, '_host', None)
    CONF([], project='cyborg', default_config_files=[])
    loader.load_all()  # registers the options of os-acc's drivers
    for name, value in {
        'state_path': str(tmp_path / 'state'),
        'plugin': 'noop',
        'release_timeout': 0.2,
    }.items():
        CONF.set_override(name, value, 'os_acc')
    CONF.set_override('enabled_drivers', ['os_acc'], 'agent')
    CONF.set_override('owner', 'cyborg', 'os_acc_mdev')
    cyborg = Cyborg(tmp_path, monkeypatch)
    monkeypatch.setattr(connections, 'by_group', lambda *_: cyborg)
    yield Agent(cyborg, kernel)
    cyborg.close()
    privsep.run_here(False)
    CONF.clear()
    for group in list(CONF._groups):
        for option in CONF._groups[group]._opts:
            CONF.clear_override(option, group)


def test_it_reports_what_can_be_given_out(agent: Agent) -> None:
    assert agent.period() == {
        PF_NAME: {'CUSTOM_QAT': 4},
        GPU_NAME: {'PGPU': 1},
        SMALL_NAME: {'VGPU': 4},
        LARGE_NAME: {'VGPU': 2},
    }
    assert agent.addresses(PF_NAME) == VFS
    assert agent.traits(GPU_NAME) == {
        'CUSTOM_PCI_VENDOR_10DE',
        'CUSTOM_PCI_PRODUCT_1EB8',
        'CUSTOM_PCI_CLASS_0302',
    }
    assert agent.traits(LARGE_NAME) == {
        'CUSTOM_MDEV_NVIDIA_223',
        'OWNER_CYBORG',
    }
    shown = {
        json.loads(each.vendor_board_info)['address']: each
        for each in agent.reported
    }
    assert {address: each.type for address, each in shown.items()} == {
        PF: 'QAT',
        GPU: 'GPU',
        PARENT: 'GPU',
    }
    assert json.loads(shown[GPU].std_board_info)['numa_node'] == 1


def test_nothing_changes_from_period_to_period(agent: Agent) -> None:
    agent.period()
    provider = agent.cyborg.placement.named(f'{HOST}_{PF_NAME}')
    assert provider is not None
    assert provider['uuid'] == names.provider_uuid(f'{HOST}_{PF_NAME}')
    before = agent.cyborg.get('/deployables').text
    for _ in range(2):
        agent.period()
        agent.start()
        agent.period()
    assert agent.cyborg.get('/deployables').text == before


def test_a_vf_that_is_made_at_plug(agent: Agent) -> None:
    agent.period()
    arq = agent.cyborg.bind(PF_NAME)
    assert arq['state'] == 'Bound'
    agent.period()
    van = agent.plug(arq)
    assert agent.kernel.driver_of(van.handle.address) == 'vfio-pci'
    agent.period()
    agent.update(agent.cyborg.context)
    # The journal says that the VAN is an ARQ's: Cyborg is not asked.
    assert agent.cyborg.calls == []
    assert agent.addresses(PF_NAME) == VFS
    agent.unplug(van)
    agent.cyborg.delete(arq)
    assert agent.period()[PF_NAME] == {'CUSTOM_QAT': 4}


def test_what_a_selector_has_is_not_reported(agent: Agent) -> None:
    agent.period()
    gpu = agent.select('PGPU')
    small = agent.select(
        'VGPU', driver='mdev', traits=['CUSTOM_MDEV_NVIDIA_222']
    )
    assert agent.period() == {
        PF_NAME: {'CUSTOM_QAT': 4},
        SMALL_NAME: {'VGPU': 3},
        LARGE_NAME: {'VGPU': 1},
    }
    agent.unplug(gpu)
    agent.unplug(small)
    assert agent.period()[GPU_NAME] == {'PGPU': 1}


def test_what_the_host_uses_is_not_reported(agent: Agent) -> None:
    (agent.kernel.pci / 'devices' / GPU / 'boot_vga').write_text('1')
    assert GPU_NAME not in agent.period()


def test_a_gpu_that_is_pulled_stays_while_it_is_bound(
    agent: Agent, caplog: Any
) -> None:
    agent.period()
    arq = agent.cyborg.bind(GPU_NAME)
    agent.period()
    agent.period()
    agent.kernel.remove_function(GPU)
    everything = {
        PF_NAME: {'CUSTOM_QAT': 4},
        GPU_NAME: {'PGPU': 1},
        SMALL_NAME: {'VGPU': 4},
        LARGE_NAME: {'VGPU': 2},
    }
    assert agent.period() == everything
    assert f'ARQ {arq["uuid"]} of instance {arq["instance_uuid"]}' in (
        caplog.text
    )
    # Now a look at this one ARQ is enough.
    agent.update(agent.cyborg.context)
    assert agent.cyborg.calls == [f'/accelerator_requests/{arq["uuid"]}']
    agent.start()
    before = agent.cyborg.get('/devices').text
    assert agent.period() == everything
    assert agent.cyborg.get('/devices').text == before
    assert agent.addresses(GPU_NAME) == [GPU]
    agent.cyborg.delete(arq)
    del everything[GPU_NAME]
    assert agent.period() == everything


def test_vfs_from_4_to_2(agent: Agent) -> None:
    agent.period()
    arqs = [agent.cyborg.bind(PF_NAME) for _ in VFS]
    bound = {
        '{domain}:{bus}:{device}.{function}'.format(
            **arq['attach_handle_info']
        ): arq
        for arq in arqs
    }
    for address in (VFS[0], VFS[3]):
        agent.cyborg.delete(bound[address])
    agent.offer({**SPEC[0], 'num_vfs': 2}, *SPEC[1:])
    # Of those that are gone, the bound VF counts. The other one stays too.
    assert agent.period()[PF_NAME] == {'CUSTOM_QAT': 3}
    assert agent.addresses(PF_NAME) == VFS
    agent.start()
    assert agent.period()[PF_NAME] == {'CUSTOM_QAT': 3}
    agent.cyborg.delete(bound[VFS[2]])
    assert agent.period()[PF_NAME] == {'CUSTOM_QAT': 2}
    agent.cyborg.delete(bound[VFS[1]])
    # Cyborg would delete the wrong handles, so it makes all of them again.
    assert PF_NAME not in agent.period()
    assert agent.period()[PF_NAME] == {'CUSTOM_QAT': 2}
    assert agent.addresses(PF_NAME) == VFS[:2]


@pytest.mark.parametrize('restarted', [False, True])
@pytest.mark.parametrize('left', [(0, 1), (2, 3), (0, 3)])
def test_the_right_vfs_are_left(
    agent: Agent, left: tuple[int, int], restarted: bool
) -> None:
    for _ in range(3):
        agent.period()
    functions = [
        {'address': VFS[number], 'resource_class': 'CUSTOM_QAT'}
        for number in left
    ]
    agent.kernel.write(
        str(agent.kernel.pci / 'devices' / PF / 'sriov_numvfs'), '4'
    )
    agent.offer(*functions, *SPEC[1:])
    if restarted:
        agent.start()
    for _ in range(4):
        totals = agent.period()
    assert totals[PF_NAME] == {'CUSTOM_QAT': 2}
    assert agent.addresses(PF_NAME) == [VFS[number] for number in left]


def test_without_cyborg_s_api_nothing_is_dropped(agent: Agent) -> None:
    before = agent.period()
    agent.cyborg.bind(GPU_NAME)
    agent.kernel.remove_function(GPU)
    agent.cyborg.down = True
    with pytest.raises(exception.RemoteServiceError, match='nobody answers'):
        agent.update(agent.cyborg.context)
    agent.start()
    with pytest.raises(exception.RemoteServiceError, match='nobody answers'):
        agent.update(agent.cyborg.context)
    agent.cyborg.down = False
    assert agent.period() == before


def test_without_an_administrator_nothing_is_reported(agent: Agent) -> None:
    class Auth:
        def get_access(self, session: Any) -> Any:
            return type('Access', (), {'role_names': ['service']})

    agent.cyborg.session.auth = Auth()
    with pytest.raises(exception.RemoteServiceError, match='administrator'):
        agent.update(agent.cyborg.context)
    assert agent.cyborg.placement.totals() == {}


def test_a_device_of_a_driver_that_was_taken_out(agent: Agent) -> None:
    """Cyborg would delete the device, with its bound handle."""
    agent.cyborg.report(fake.FakeDriver().discover())
    arq = agent.cyborg.bind(FAKE_NAME)
    with pytest.raises(exception.RemoteServiceError, match=arq['uuid']):
        agent.update(agent.cyborg.context)
    CONF.set_override('enabled_drivers', ['fake_driver', 'os_acc'], 'agent')
    agent.start()
    assert FAKE_NAME in agent.period()
    agent.cyborg.delete(arq)
    CONF.set_override('enabled_drivers', ['os_acc'], 'agent')
    agent.start()
    assert FAKE_NAME not in agent.period()


def test_a_driver_that_fails_reports_nothing(
    agent: Agent, monkeypatch: Any
) -> None:
    before = agent.period()
    agent.offer(devices=['a:test:no'], discover=True)
    with pytest.raises(exception.DiscoveryFailed):
        agent.update(agent.cyborg.context)
    assert agent.cyborg.placement.totals() == before


@pytest.mark.parametrize('made_first', [True, False])
def test_a_vgpu(agent: Agent, made_first: bool, monkeypatch: Any) -> None:
    if not made_first:
        agent.cyborg.make_mdev = lambda *_: None
    agent.period()
    arq = agent.cyborg.bind(LARGE_NAME)
    handle = arq['attach_handle_uuid']
    assert (agent.kernel.mdev / handle).exists() == made_first
    van = agent.plug(arq)
    assert (van.handle.uuid, van.handle.type) == (handle, LARGE)
    agent.period()
    agent.period()
    # The small ones have less room now; the number of handles is the same.
    agent.update(agent.cyborg.context)
    assert agent.cyborg.calls == []
    assert agent.period()[SMALL_NAME] == {'VGPU': 2}
    assert agent.period()[LARGE_NAME] == {'VGPU': 2}
    assert len(agent.cyborg.handles(SMALL_NAME)) == 4
    agent.unplug(van)
    agent.cyborg.delete(arq)
    assert not (agent.kernel.mdev / handle).exists()
    assert agent.period()[SMALL_NAME] == {'VGPU': 4}


def test_types_of_one_parent_share_its_capacity(agent: Agent) -> None:
    agent.period()
    arqs = [agent.cyborg.bind(SMALL_NAME) for _ in range(3)]
    made = agent.period()
    assert made[SMALL_NAME] == {'VGPU': 4}
    assert LARGE_NAME not in made
    # Another agent process knows the handles that are bound, whatever their
    # numbers are.
    agent.start()
    assert agent.period() == made
    for arq in arqs:
        agent.cyborg.delete(arq)
    assert agent.period()[LARGE_NAME] == {'VGPU': 2}


def test_a_reboot_with_a_bound_vgpu(agent: Agent) -> None:
    agent.period()
    arq = agent.cyborg.bind(LARGE_NAME)
    before = agent.period()
    van = agent.plug(arq)
    agent.kernel.reboot()
    agent.start()
    assert agent.period()[LARGE_NAME] == before[LARGE_NAME]
    with agent.nova():
        os_acc.recover()
    assert (agent.kernel.mdev / arq['attach_handle_uuid']).exists()
    assert agent.period() == before
    agent.unplug(van)
    agent.cyborg.delete(arq)
    assert agent.period()[SMALL_NAME] == {'VGPU': 4}


def test_a_bound_gpu_keeps_its_resource_class(agent: Agent) -> None:
    agent.period()
    arq = agent.cyborg.bind(GPU_NAME)
    changed = {'address': GPU, 'resource_class': 'CUSTOM_BIG'}
    agent.offer(SPEC[0], changed, SPEC[2])
    assert agent.period()[GPU_NAME] == {'PGPU': 1}
    agent.start()
    assert agent.period()[GPU_NAME] == {'PGPU': 1}
    agent.cyborg.delete(arq)
    assert agent.period()[GPU_NAME] == {'CUSTOM_BIG': 1}


def test_traits_follow(agent: Agent) -> None:
    for traits in (['CUSTOM_A', 'CUSTOM_B'], ['CUSTOM_B', 'CUSTOM_C']):
        agent.offer({'address': GPU, 'traits': traits})
        agent.period()
        found = agent.traits(GPU_NAME)
        assert {t for t in found if 'PCI' not in t} == set(traits)


def test_one_pf_that_two_entries_name(agent: Agent) -> None:
    agent.kernel.write(
        str(agent.kernel.pci / f'devices/{PF}/sriov_numvfs'), '4'
    )
    agent.offer(
        {'address': VFS[0], 'resource_class': 'CUSTOM_A'},
        {'address': PF, 'resource_class': 'CUSTOM_B'},
    )
    assert agent.period() == {
        f'{PF_NAME}_CUSTOM_A': {'CUSTOM_A': 1},
        f'{PF_NAME}_CUSTOM_B': {'CUSTOM_B': 3},
    }
    arq = agent.cyborg.bind(f'{PF_NAME}_CUSTOM_A')
    # Its VF is in one deployable only.
    agent.offer({'address': PF, 'resource_class': 'CUSTOM_B'})
    made = {
        f'{PF_NAME}_CUSTOM_A': {'CUSTOM_A': 1},
        PF_NAME: {'CUSTOM_B': 3},
    }
    assert agent.period() == made
    agent.start()
    assert agent.period() == made
    agent.cyborg.delete(arq)
    assert agent.period() == {PF_NAME: {'CUSTOM_B': 4}}


def test_a_failed_bind_keeps_its_handle(agent: Agent) -> None:
    def fail(*_: Any) -> None:
        raise OSError('no room')

    agent.period()
    agent.cyborg.make_mdev = fail
    with pytest.raises(OSError, match='no room'):
        agent.cyborg.bind(LARGE_NAME)
    (arq,) = agent.cyborg.get('/accelerator_requests').json()['arqs']
    assert arq['state'] == 'BindFailed'
    agent.offer(*SPEC[:2])
    assert LARGE_NAME in agent.period()
    agent.cyborg.remove_mdev = lambda *_: None
    agent.cyborg.delete(arq)
    assert LARGE_NAME not in agent.period()


def test_fake_devices_go_the_whole_way(agent: Agent) -> None:
    agent.offer(devices=['card:test:2', 'gpu:pci:1', 'p:drc:1'], discover=True)
    assert agent.period() == {
        'card': {'CUSTOM_FAKE_TEST': 2},
        'gpu': {'CUSTOM_FAKE_PCI': 1},
    }
    for name in ('card', 'gpu'):
        arq = agent.cyborg.bind(name)
        van = agent.plug(arq)
        assert (van.driver, van.device) == ('fake', name)
        before = agent.period()
        agent.unplug(van)
        agent.cyborg.delete(arq)
        assert agent.period() == before


# --- reports that Cyborg did not get


@pytest.mark.parametrize('restarted', [False, True])
def test_a_report_that_is_lost(
    agent: Agent, monkeypatch: Any, restarted: bool
) -> None:
    """Cyborg still has what the report left out, and may bind it."""
    agent.period()
    agent.offer({**SPEC[0], 'num_vfs': 2}, *SPEC[1:])
    if restarted:
        agent.start()

    def lost(*_: Any) -> None:
        raise oslo_messaging.MessagingTimeout('no conductor')

    with monkeypatch.context() as patch:
        patch.setattr(agent.cyborg, 'report', lost)
        with pytest.raises(oslo_messaging.MessagingTimeout):
            agent.update(agent.cyborg.context)
    arqs = [agent.cyborg.bind(PF_NAME) for _ in VFS]
    assert agent.period()[PF_NAME] == {'CUSTOM_QAT': 4}
    assert agent.addresses(PF_NAME) == VFS
    for arq in arqs:
        agent.cyborg.delete(arq)
    # All handles are made again.
    assert PF_NAME not in agent.period()
    assert agent.period()[PF_NAME] == {'CUSTOM_QAT': 2}
    assert agent.addresses(PF_NAME) == VFS[:2]
    agent.period()
    agent.period()
    # Cyborg has what was reported: it is not asked any more.
    agent.update(agent.cyborg.context)
    assert agent.cyborg.calls == []


def test_a_bind_that_goes_on_while_the_agent_is_restarted(
    agent: Agent, monkeypatch: Any
) -> None:
    agent.period()
    states = []
    update = ext_arq.ExtARQ.update_check_state

    def slow(self: Any, context: Any, state: str, *more: Any) -> Any:
        if state == 'Bound':
            agent.kernel.remove_function(GPU)
            for _ in range(2):
                agent.start()
                with pytest.raises(
                    exception.RemoteServiceError, match='BindStarted'
                ):
                    agent.update(agent.cyborg.context)
                states.append(self.arq.state)
        return update(self, context, state, *more)

    monkeypatch.setattr(ext_arq.ExtARQ, 'update_check_state', slow)
    arq = agent.cyborg.bind(GPU_NAME)
    assert (states, arq['state']) == (['BindStarted'] * 2, 'Bound')
    assert agent.period()[GPU_NAME] == {'PGPU': 1}
    agent.cyborg.delete(arq)
    assert GPU_NAME not in agent.period()


# --- program()


@pytest.fixture
def fpga(agent: Agent, tmp_path: pathlib.Path) -> Agent:
    agent.offer(devices=['card:test:1:single'], discover=True)
    CONF.set_override('allowed_folders', [str(tmp_path)], 'os_acc_bitstreams')
    agent.period()
    return agent


def cpid(agent: Agent) -> dict[str, Any]:
    """As the conductor hands it to the agent."""
    (device,) = agent.reported
    path = device.controlpath_id
    return {
        'cpid_type': path.cpid_type,
        'cpid_info': json.loads(path.cpid_info),
    }


def image(directory: pathlib.Path) -> str:
    """A file as the agent names it."""
    path = directory / f'{uuid.uuid4()}x_4f2.gbs'
    path.write_bytes(b'bits')
    return str(path)


def test_it_programs(fpga: Agent, tmp_path: pathlib.Path) -> None:
    made = base.FPGADriver.create('os_acc')
    assert isinstance(made, agent_driver.OSAccDriver)
    path = image(tmp_path)
    assert made.program(cpid(fpga), path) is True
    # Cyborg's API takes False for a failure.
    assert made.program(cpid(fpga), path) is True
    fpga.period()
    function = [t for t in fpga.traits('card') if 'FUNCTION' in t]
    assert function[0].startswith('CUSTOM_FPGA_FUNCTION_ID_OS_ACC_SHA256')


def test_the_history_names_the_agent(
    fpga: Agent, tmp_path: pathlib.Path
) -> None:
    """Not the program in which the tests run."""
    base.FPGADriver.create('os_acc').program(cpid(fpga), image(tmp_path))
    conf = os_acc.CONF.os_acc
    read = journal.Journal(conf.state_path, conf.journal_timeout, True)
    found = {each.program for each in read.events()}
    read.close()
    assert found == {'cyborg-agent'}


def test_an_error_of_programming_gets_to_the_conductor(
    fpga: Agent, tmp_path: pathlib.Path
) -> None:
    CONF.set_override('fail', ['program'], 'os_acc_fake')
    made = base.FPGADriver.create('os_acc')
    with pytest.raises(cyborg_exception.FPGAProgramError) as caught:
        made.program(cpid(fpga), image(tmp_path))
    assert 'told to fail' in str(caught.value)
    failure = (type(caught.value), caught.value, None)
    sent = messaging.serialize_remote_exception(failure)
    received = messaging.deserialize_remote_exception(
        sent, rpc.get_allowed_exmods()
    )
    assert isinstance(received, cyborg_exception.FPGAProgramError)
    assert 'told to fail' in str(received)


def test_a_file_of_another_directory_is_got_from_glance(
    fpga: Agent, tmp_path: pathlib.Path, monkeypatch: Any
) -> None:
    CONF.set_override('allowed_folders', [], 'os_acc_bitstreams')
    asked = []
    monkeypatch.setattr(
        os_acc, 'program_device', lambda *args: asked.append(args)
    )
    path = image(tmp_path)
    base.FPGADriver.create('os_acc').program(cpid(fpga), path)
    assert asked == [('card', pathlib.Path(path).name[:36])]


def test_a_bind_that_cannot_program_fails(
    fpga: Agent, tmp_path: pathlib.Path, monkeypatch: Any
) -> None:
    """The ARQ is BindFailed, although Cyborg reads e.message, which is not."""
    programmed = []

    def fpga_program(
        context: Any, hostname: str, cpid: Any, image_id: str, driver: str
    ) -> None:
        made = base.FPGADriver.create(driver)
        try:
            made.program(cpid, image(tmp_path))
        except Exception as err:
            failure = (type(err), err, None)
            programmed.append(str(err))
            sent = messaging.serialize_remote_exception(failure)
            raise messaging.deserialize_remote_exception(
                sent, rpc.get_allowed_exmods()
            ) from None

    kind = fpga_ext_arq.FPGAExtARQ
    monkeypatch.setattr(fpga.cyborg, 'fpga_program', fpga_program, False)
    monkeypatch.setattr(
        ext_arq.ExtARQ, 'factory', classmethod(lambda *_: kind)
    )
    monkeypatch.setattr(
        kind, '_get_bitstream_md_from_bitstream_id', lambda _, i: {'id': i}
    )
    CONF.set_override('fail', ['program'], 'os_acc_fake')
    arq = fpga.cyborg.bind('card', {'accel:bitstream_id': str(uuid.uuid4())})
    deadline = time.monotonic() + 30
    while arq['state'] == 'BindStarted' and time.monotonic() < deadline:
        time.sleep(0.05)
        arq = fpga.cyborg.arq(arq['uuid'])
    assert arq['state'] == 'BindFailed'
    assert 'told to fail' in programmed[0]


def test_the_agent_s_configuration_gives_the_credentials(
    tmp_path: pathlib.Path,
) -> None:
    """Cyborg has registered options of its own in the group [placement]."""
    path = tmp_path / 'cyborg.conf'
    path.write_text(
        '[placement]\nauth_type = password\nauth_url = http://keystone/v3\n'
        'username = cyborg\npassword = secret\nregion_name = RegionOne\n'
    )
    program = (
        'import sys\n'
        'from cyborg.conf import CONF\n'
        'from os_acc.cyborg import connections\n'
        "CONF(['--config-file', sys.argv[1]], project='cyborg')\n"
        "made = connections.by_group('accelerator', CONF, 'placement')\n"
        'assert made.session.auth is not None\n'
        'print(made.service_type, made.region_name)\n'
    )
    # In another process: the options would stay registered in this one.
    done = subprocess.run(
        [sys.executable, '-c', program, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert done.stdout == 'accelerator RegionOne\n'

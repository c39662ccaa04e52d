# SPDX-License-Identifier: Apache-2.0

"""The kernel's own DFL drivers on a simulated card: see dfl/dfl_card.c."""

from __future__ import annotations

import os
import pathlib
import signal
import uuid
import zlib

import dfl_card
import lab_devices
import processes
import pytest
import test_unprivileged
import use

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc.deadlines import waiting
from os_acc.kernel import dfl
from os_acc.kernel import sriov
from os_acc.kernel import sysfs

# Loaded here once, for the forked children: in the lab that takes its time.
from os_acc.privileged.fpga import dfl as _dfl  # noqa: F401
from os_acc.privileged.fpga import dfl_ioctl

service = test_unprivileged.service
sudoers = test_unprivileged.sudoers

PF = lab_devices.DFL_PF
VFS = ('0000:07:00.1', '0000:07:00.2')
SPEC = {
    'address': PF,
    'programmer': 'dfl',
    'programming': 'dynamic',
    'num_vfs': 2,
}
AES = 'aaaaaaaa-1111-4222-8333-444455556666'
FFT = 'ffffffff-1111-4222-8333-444455556666'
OTHER_INTERFACE = '99999999-1111-4222-8333-444455556666'
INSTANCE = '4b0a6bb0-1111-4222-8333-444455556666'


@pytest.fixture(scope='module', autouse=True)
def card(_modules):
    """The card, with two ports that have not been programmed."""
    dfl_card.up()
    yield
    dfl_card.down()


@pytest.fixture
def images(tmp_path):
    """Images of the functions, in a directory that bitstreams may be in."""
    return make_images(tmp_path / 'images')


def make_images(directory: pathlib.Path) -> dict[str, str]:
    directory.mkdir(exist_ok=True)
    made = {}
    for name, content in {
        AES: dfl_card.image(AES, 50001),
        FFT: dfl_card.image(FFT),
        OTHER_INTERFACE: dfl_card.image(FFT, interface=OTHER_INTERFACE),
    }.items():
        path = directory / f'{name}.gbs'
        path.write_bytes(content)
        made[name] = str(path)
    return made


@pytest.fixture
def here(tmp_path, images):
    """This process uses os-acc, and the card is as after power-on."""
    configure(tmp_path)
    yield os_acc.CONF
    use.close()
    dfl_card.put(
        error=0,
        no_completion=0,
        no_engine_reset=0,
        no_port_reset=0,
        delay_ms=0,
    )


def configure(directory: pathlib.Path, initialize: bool = True) -> None:
    use.configure(directory / 'state', [SPEC], initialize=False)
    os_acc.CONF.set_override(
        'allowed_folders', [str(directory / 'images')], 'os_acc_bitstreams'
    )
    if initialize:
        os_acc.initialize(reset=True)


def request(
    vf: int, function_id: str | None = None, image: str | None = None
) -> objects.AcceleratorRequest:
    return objects.AcceleratorRequest(
        uuid=str(uuid.uuid5(uuid.NAMESPACE_OID, f'{vf} {function_id}')),
        handle=objects.PCIHandle(address=VFS[vf]),
        function_id=function_id,
        bitstream=image,
    )


def plug(vf: int, function_id: str, images: dict[str, str]) -> str:
    """Plug a VF with a function into an instance of its own."""
    instance = str(uuid.uuid4())
    os_acc.plug(
        use.instance(instance),
        [request(vf, function_id, images[function_id])],
    )
    return instance


def refused(act) -> str:
    """The text of the error that caused the failure of a plug."""
    with pytest.raises(exception.PlugException) as caught:
        act()
    return str(caught.value.__cause__)


def program(function_id: str, images: dict[str, str], port: int = 0) -> bool:
    return os_acc.program_device(PF, images[function_id], None, str(port))


def afu_ids() -> list[str | None]:
    """The functions of the ports that the PF has."""
    found = dfl.find(PF)
    return [each.afu_id for each in found.ports] if found else []


def plain(function_id: str) -> str:
    return function_id.replace('-', '')


def unhealthy() -> str | None:
    """Why the card is given to nobody; None: it is healthy."""
    (device,) = [d for d in os_acc.get_devices() if d.address == PF]
    return device.health_reason if device.health != 'ok' else None


def test_the_kernel_shows_the_card(here):
    found = dfl.find(PF)
    assert found.number_of_ports == 2
    assert found.interface_id == plain(dfl_card.INTERFACE)
    assert [each.number for each in found.ports] == [0, 1]
    assert found.released == ()
    assert dfl.find(lab_devices.NVME_PF) is None


def test_programmed_and_shared(here, images):
    """Ports are released, VFs made, programmed, and all is undone."""
    before = dfl_card.value('programmed')
    first = plug(0, AES, images)
    assert dfl_card.value('programmed') == before + 1
    sent = dfl_card.payload(AES, 50001, dfl_card.INTERFACE)
    padded = sent + bytes(-len(sent) % 4)
    assert dfl_card.value('crc') == zlib.crc32(padded)
    assert dfl.find(PF).released == (0, 1)
    assert sriov.count(PF) == 2
    assert use.driver_of(VFS[0]) == 'vfio-pci'
    second = plug(1, FFT, images)
    assert dfl_card.value('programmed') == before + 2
    (device,) = [d for d in os_acc.get_devices() if d.address == PF]
    assert device.functions == {'0': AES, '1': FFT}
    # The next guest shares what is there.
    assert os_acc.unplug(use.instance(first)) == 1
    third = plug(0, AES, images)
    assert dfl_card.value('programmed') == before + 2
    for instance in (second, third):
        assert os_acc.unplug(use.instance(instance)) == 1
    assert sriov.count(PF) == 0
    assert dfl.find(PF).released == ()
    # Linux 6.1 gives the ports back without a driver: they have one again.
    assert afu_ids() == [plain(AES), plain(FFT)]


def test_the_gate_over_two_ports(here, images):
    instance = plug(0, AES, images)
    before = dfl_card.value('programmed')
    busy = refused(lambda: plug(0, FFT, images))
    assert 'instance' in busy
    with pytest.raises(exception.DeviceBusy, match=instance):
        program(FFT, images, 0)
    # A guest that os-acc does not know has the other VF.
    sysfs.write(f'/sys/bus/pci/devices/{VFS[1]}/driver_override', 'vfio-pci')
    sysfs.write('/sys/bus/pci/drivers_probe', VFS[1])
    guest = use.Holder(use.group_file(VFS[1]))
    with pytest.raises(exception.DeviceBusy, match=f'process {guest.pid} '):
        program(FFT, images, 1)
    assert dfl_card.value('programmed') == before
    guest.end()
    assert program(FFT, images, 1)
    assert dfl_card.value('programmed') == before + 1
    sysfs.write('/sys/bus/pci/drivers/vfio-pci/unbind', VFS[1])
    sysfs.write(f'/sys/bus/pci/devices/{VFS[1]}/driver_override', '\n')
    # A program of the host uses a port.
    os_acc.unplug(use.instance(instance))
    port = dfl.find(PF).ports[0].path.rpartition('/')[2]
    program_of_host = use.Holder(f'/dev/{port}')
    with pytest.raises(
        exception.DeviceBusy, match=f'process {program_of_host.pid} '
    ):
        program(FFT, images, 0)
    assert 'has it open' in refused(lambda: plug(0, FFT, images))
    program_of_host.end()
    assert dfl.find(PF).released == ()
    assert unhealthy() is None


def test_another_interface(here, images):
    before = dfl_card.value('programmed'), afu_ids()
    with pytest.raises(exception.BitstreamError, match='interface'):
        os_acc.program_device(PF, images[OTHER_INTERFACE], None, '0')
    with pytest.raises(exception.BitstreamError, match='function'):
        os_acc.program_device(PF, images[FFT], AES, '0')
    assert (dfl_card.value('programmed'), afu_ids()) == before
    assert unhealthy() is None


ALL_ERRORS = (
    'reconfig operation error, reconfig CRC error, reconfig incompatible '
    'image, reconfig IP protocol error, reconfig fifo overflow error'
)


@pytest.mark.parametrize(
    ('fault', 'text'),
    [
        ({'error': 31}, ALL_ERRORS),
        ({'no_completion': 1}, 'did not answer in time'),
    ],
)
def test_errors_of_the_card_are_healed(here, images, fault, text):
    """The PF is bound again at once, because nobody uses the card."""
    program(AES, images)
    dfl_card.put(**fault)
    with pytest.raises(exception.DeviceError, match=text):
        program(FFT, images)
    dfl_card.put(**dict.fromkeys(fault, 0))
    assert all(afu_ids())
    assert unhealthy() is None
    assert program(FFT, images)
    assert afu_ids()[0] == plain(FFT)


def test_ports_that_do_not_end_their_reset(here, images):
    """Binding the PF again does not help either, as long as they do not."""
    dfl_card.put(no_port_reset=1)
    with pytest.raises(exception.DeviceError, match='answer in time'):
        program(FFT, images)
    assert 'answer in time' in unhealthy()
    dfl_card.put(no_port_reset=0)
    assert program(FFT, images)
    assert unhealthy() is None


def test_stuck_while_another_port_is_used(here, images):
    """The device is unhealthy until its VFs are gone."""
    instance = plug(1, AES, images)
    dfl_card.put(error=2)
    assert 'CRC' in refused(lambda: plug(0, FFT, images))
    assert 'CRC' in unhealthy()
    # In Linux 6.1, the kernel would say that the programming succeeded.
    before = dfl_card.value('programmed')
    with pytest.raises(exception.DeviceError, match='has stayed in reset'):
        program(FFT, images, 0)
    assert dfl_card.value('programmed') == before
    assert 'unhealthy' in refused(lambda: plug(0, FFT, images))
    os_acc.unplug(use.instance(instance))
    assert all(afu_ids())
    assert program(FFT, images, 0)
    assert unhealthy() is None


def test_a_service_without_privileges(service, sudoers):
    """The daemon needs no capability more than for other devices."""
    directory = service.path / 'images'
    images = make_images(directory)
    service.write_config(specs=[SPEC])
    with open(service.path / 'os-acc.conf', 'a') as file:
        file.write(f'[os_acc_bitstreams]\nallowed_folders = {directory}\n')

    def work() -> list[bool]:
        instance = plug(0, AES, images)
        os_acc.unplug(use.instance(instance))
        return [program(FFT, images), program(FFT, images)]

    assert service.answer(work) == [True, False]
    assert afu_ids()[0] == plain(FFT)


class Runs:
    """Processes that plug and unplug a VF, one after the other."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = directory
        self.images = make_images(directory / 'images')

    def process(
        self, work: bool, kill_at: int | None = None
    ) -> tuple[int, list[str]]:
        """Recover, then plug and unplug in a new process.

        :param work: False: recover only
        :param kill_at: the boundary at which the process is killed
        :returns: how it ended, and the boundaries that it passed
        """
        names = self.directory / 'names'
        # The one that the port does not have, so that it is programmed.
        other = FFT if plain(AES) in afu_ids()[:1] else AES

        def child() -> None:
            configure(self.directory, initialize=False)
            boundaries = processes.Boundaries(kill_at)
            os_acc.initialize()
            boundaries.watch(
                dfl_ioctl, 'ioctl', ['release', 'program', 'assign']
            )
            write = sysfs.write

            def watched(path: str, text: str) -> None:
                write(path, text)
                name = path.rpartition('/')[2]
                if name == 'sriov_numvfs' or '/dfl-pci/' in path:
                    boundaries.cut(f'after {name} {text}')

            sysfs.write = watched
            if work:
                os_acc.plug(
                    use.instance(INSTANCE),
                    [request(0, other, self.images[other])],
                )
                os_acc.unplug(use.instance(INSTANCE))
            names.write_text('\n'.join(boundaries.names))

        names.unlink(missing_ok=True)
        code = processes.run(child)
        there = names.exists()
        return code, names.read_text().splitlines() if there else []


def test_killed_at_each_ioctl(tmp_path, report):
    """Nothing stays: no VF, no released port, no port in reset."""
    runs = Runs(tmp_path)
    code, names = runs.process(True)
    assert code == 0
    report(f'lab: DFL boundaries {names}')
    assert [name.split()[1] for name in names if 'before' in name] == [
        'ioctl.release',
        'ioctl.release',
        'ioctl.program',
        'ioctl.assign',
        'ioctl.assign',
    ]
    for kill_at, name in enumerate(names):
        if name.startswith('before') and kill_at:
            continue  # the boundary before it is as good
        assert runs.process(True, kill_at)[0] == -signal.SIGKILL, name
        assert runs.process(False)[0] == 0, name
        assert sriov.count(PF) == 0, name
        assert dfl.find(PF).released == (), name
        assert all(afu_ids()), name


def test_killed_in_the_ioctl(tmp_path):
    """The kernel goes on. The next request programs the port again."""
    images = make_images(tmp_path / 'images')
    other = FFT if afu_ids()[0] == plain(AES) else AES
    before = dfl_card.value('programmed')

    def child() -> None:
        configure(tmp_path)
        program(other, images)

    dfl_card.put(delay_ms=1500)
    pid = processes.start(child)
    (state,) = pathlib.Path('/sys/class/fpga_manager').glob('*/state')
    waiting.until(
        lambda: state.read_text() == 'write complete\n', 60, 'the ioctl'
    )
    os.kill(pid, signal.SIGKILL)
    assert processes.wait(pid) == -signal.SIGKILL
    dfl_card.put(delay_ms=0)
    assert dfl_card.value('programmed') == before + 1
    configure(tmp_path)
    try:
        assert unhealthy() is None
        assert program(other, images)
    finally:
        use.close()
    assert dfl_card.value('programmed') == before + 2
    assert afu_ids()[0] == plain(other)


@pytest.mark.boot1
def test_before_the_reboot(lab_state, leave_all):
    directory = lab_state / 'dfl'
    directory.mkdir()
    images = make_images(directory / 'images')
    configure(directory)
    os_acc.plug(
        use.instance(INSTANCE),
        [request(0, AES, images[AES]), request(1, FFT, images[FFT])],
    )
    use.close()


@pytest.mark.boot2
def test_after_the_reboot(lab_state):
    """The VFs are made again, and both ports are programmed again."""
    assert afu_ids() == [plain(dfl_card.BLANK)] * 2
    before = dfl_card.value('programmed')
    configure(lab_state / 'dfl')
    assert {van.state for van in os_acc.get_vans()} == {'plugged'}
    assert dfl_card.value('programmed') == before + 2
    assert [use.driver_of(vf) for vf in VFS] == ['vfio-pci'] * 2
    assert os_acc.unplug(use.instance(INSTANCE)) == 2
    use.close()
    assert afu_ids() == [plain(AES), plain(FFT)]

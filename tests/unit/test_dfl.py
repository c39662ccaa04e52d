# SPDX-License-Identifier: Apache-2.0

"""DFL cards: what is read of them, programming, ports around SR-IOV."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import uuid

import command
import devices
import dfl_model
import pages
import pytest

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc.kernel import dfl
from os_acc.kernel import pci
from os_acc.kernel import sriov
from os_acc.privileged.fpga import dfl as privileged
from os_acc.privileged.fpga import dfl_ports
from os_acc.privileged.pci import vfs as privileged_vfs
from os_acc.testing import kernel as kernel_module
from os_acc.testing import mortal

PF, VFS = dfl_model.PF, dfl_model.VFS
AES = 'aaaaaaaa-1111-4222-8333-444455556666'
FFT = 'ffffffff-1111-4222-8333-444455556666'
ENTRY = {
    'address': PF,
    'programmer': 'dfl',
    'programming': 'dynamic',
    'num_vfs': 2,
}


def plain(function_id):
    return function_id.replace('-', '')


class Images:
    def __init__(self, directory):
        self.directory = directory
        directory.mkdir()

    def add(self, function_id, interface=dfl_model.INTERFACE):
        path = self.directory / f'{function_id}-{interface[:4]}.gbs'
        path.write_bytes(dfl_model.image(function_id, interface))
        return str(path)


@pytest.fixture
def images(tmp_path):
    return Images(tmp_path / 'images')


@pytest.fixture
def card(kernel, monkeypatch, images):
    made = dfl_model.Card(kernel)
    made.install(monkeypatch)
    configure(images, ENTRY)
    return made


def configure(images, *entries):
    devices.spec(*entries)
    conf = os_acc.CONF
    conf.set_override(
        'allowed_folders', [str(images.directory)], 'os_acc_bitstreams'
    )
    os_acc.initialize(reset=True)


def request(vf, function_id=None, bitstream=None):
    return objects.AcceleratorRequest(
        uuid=str(uuid.uuid4()),
        handle=objects.PCIHandle(address=VFS[vf]),
        function_id=function_id,
        bitstream=bitstream,
    )


def program(image, region='0', function_id=None):
    return os_acc.program_device(PF, image, function_id, region)


def cause(act):
    with pytest.raises(exception.PlugException) as caught:
        act()
    return caught.value.__cause__


# --- what is read


def test_read(card):
    found = dfl.find(PF)
    assert found.number_of_ports == 2
    assert found.interface_id == dfl_model.INTERFACE
    assert [(p.number, p.afu_id) for p in found.ports] == [
        (0, dfl_model.BLANK),
        (1, dfl_model.BLANK),
    ]
    assert found.released == ()
    card.release(found, 0)
    assert dfl.find(PF).released == (0,)
    assert dfl.find(PF).port(0) is None
    card.stuck.add(1)
    port = dfl.find(PF).port(1)
    assert (port.in_reset, port.afu_id) == (True, None)
    card.assign(found, 0)
    assert [p.number for p in dfl.find(PF).ports] == [None, 1]
    assert dfl.find(PF).released == ()


def test_read_of_other_functions(kernel, card):
    devices.furnish(kernel)
    assert dfl.find(devices.NIC) is None
    kernel.write(str(kernel.pci / 'drivers/dfl-pci/unbind'), PF)
    assert dfl.find(PF) is None


# --- programming


def test_program(card, images):
    assert program(images.add(AES))
    assert card.functions == [plain(AES), dfl_model.BLANK]
    (device,) = os_acc.get_devices()
    assert device.functions['0'] == plain(AES)
    assert not program(images.add(AES))
    assert program(images.add(FFT), '1')
    assert card.functions == [plain(AES), plain(FFT)]
    assert card.calls == [('program', 0), ('program', 1)]


@pytest.mark.parametrize('spelling', [str.upper, plain])
def test_the_function_of_an_image(card, images, spelling):
    assert program(images.add(AES), function_id=spelling(AES))
    for other in (FFT, 'aes'):
        with pytest.raises(exception.BitstreamError, match='has the function'):
            program(images.add(AES), function_id=other)
    assert card.calls == [('program', 0)]
    assert health() == 'ok'


@pytest.mark.parametrize('content', [b'', b'no image', None])
def test_images_that_do_not_fit(card, images, content):
    if content is None:
        path = images.add(AES, interface='b' * 32)
    else:
        path = str(images.directory / 'x.gbs')
        with open(path, 'wb') as file:
            file.write(content)
    with pytest.raises(exception.BitstreamError):
        program(path)
    with pytest.raises(exception.BitstreamError):
        privileged.check(PF, '0', path, 5.0)
    assert card.calls == []
    assert health() == 'ok'


def test_an_image_changed_after_its_check(card, images):
    path = images.add(AES)
    with pytest.raises(exception.BitstreamError, match='was changed'):
        privileged.program(PF, '0', path, '0' * 64, None, 5.0)
    assert card.calls == []


def test_not_bound_to_its_driver(kernel, card, images):
    kernel.write(str(kernel.pci / 'drivers/dfl-pci/unbind'), PF)
    with pytest.raises(exception.DeviceError, match='not bound to dfl-pci'):
        program(images.add(AES))


def test_one_port_as_a_whole(kernel, monkeypatch, images):
    card = dfl_model.Card(kernel, ports=1)
    card.install(monkeypatch)
    configure(images, {'address': PF, 'programmer': 'dfl'})
    assert program(images.add(AES), region=None)
    assert card.functions == [plain(AES)]


def test_two_ports_are_no_whole(card, images):
    configure(images, {'address': PF, 'programmer': 'dfl'})
    with pytest.raises(exception.DeviceError, match='"dynamic"'):
        program(images.add(AES), region=None)
    assert card.calls == []


def test_a_port_that_stays_in_reset(card, images):
    """Linux 6.1 says that the programming has succeeded."""
    program_of_kernel = card.program

    def stays(found, port, data, offset):
        program_of_kernel(found, port, data, offset)
        card.stuck.add(port)

    path = images.add(AES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('os_acc.privileged.fpga.dfl_ioctl.program', stays)
        with pytest.raises(exception.DeviceError, match='stays in reset'):
            program(path)
    assert program(images.add(AES))
    assert card.stuck == set()


# --- ports around SR-IOV


def test_ports_are_released_and_given_back(kernel, card, images):
    instance = devices.instance()
    before = kernel.snapshot()
    os_acc.plug(instance, [request(1, AES, images.add(AES))])
    assert card.calls == [('release', 0), ('release', 1), ('program', 1)]
    assert sriov.count(PF) == 2
    os_acc.unplug(instance)
    assert card.calls[3:] == [('assign', 0), ('assign', 1)]
    assert kernel.snapshot() == before
    # The ports had no driver: the PF was bound again.
    assert [p.afu_id for p in dfl.find(PF).ports] == [
        dfl_model.BLANK,
        plain(AES),
    ]


def test_more_vfs_than_ports(kernel, card, images):
    (card.path / 'sriov_totalvfs').write_text('4\n')
    configure(images, {**ENTRY, 'num_vfs': 3})
    error = cause(lambda: os_acc.plug(devices.instance(), [request(0)]))
    assert 'has 2 ports' in str(error)
    assert card.calls == []


def test_ports_that_somebody_else_has_released(card, images):
    configure(images, {**ENTRY, 'num_vfs': 1})
    card.release(dfl.find(PF), 1)
    error = cause(lambda: os_acc.plug(devices.instance(), [request(0)]))
    assert 'ports [1] are already released' in str(error)
    assert card.calls == [('release', 1)]


@pytest.mark.parametrize('after', [False, True])
def test_killed_at_each_step(kernel, card, images, after):
    instance, path = devices.instance(), images.add(AES)
    wanted = request(0, AES, path)
    before = kernel.snapshot()
    number = 0
    while True:
        kernel.crash_at(number, after)
        with contextlib.suppress(exception.ExceptionBase, mortal.Crash):
            os_acc.plug(instance, [wanted])
            os_acc.unplug(instance)
        if not kernel.dead:
            break
        kernel.revive()
        os_acc.initialize(reset=True)
        os_acc.unplug(instance)
        assert kernel.snapshot() == before, number
        found = dfl.find(PF)
        assert [p.number for p in found.ports] == [0, 1], number
        number += 1
    assert number >= 12


# --- failures


@pytest.fixture
def failed(card, images):
    """Port 0 was being programmed, and the card has refused."""
    card.fault = exception.DeviceError(device='port 0', reason='CRC error')
    return card


def health():
    (device,) = os_acc.get_devices()
    return device.health


def test_healed_at_once(kernel, failed, images):
    before = kernel.snapshot()
    with pytest.raises(exception.DeviceError, match='CRC error'):
        program(images.add(AES))
    assert failed.stuck == set()
    assert health() == 'ok'
    assert kernel.snapshot() == before
    assert program(images.add(AES))


def test_healed_with_vfs_that_nobody_has(kernel, failed, images):
    """They are made again: a VAN may be about to take one of them."""
    privileged_vfs.create_vfs(PF, 2, 30.0)
    with pytest.raises(exception.DeviceError, match='CRC error'):
        program(images.add(AES))
    assert failed.stuck == set()
    assert health() == 'ok'
    assert sriov.count(PF) == 2
    assert dfl.find(PF).released == (0, 1)
    assert privileged_vfs.remove_vfs(PF, 30.0) == []
    assert dfl.find(PF).released == ()


def test_not_healed_with_vfs_of_somebody_else(kernel, failed, images):
    for number in (0, 1):
        failed.release(dfl.find(PF), number)
    kernel.write(f'{failed.path}/sriov_numvfs', '2')
    assert not privileged.heal(PF, '0', 30.0)
    assert sriov.count(PF) == 2


def test_not_healed_while_a_van_has_a_vf(kernel, failed, images):
    instance = devices.instance()
    os_acc.plug(instance, [request(1)])
    with pytest.raises(exception.DeviceError, match='CRC error'):
        program(images.add(AES))
    assert not privileged.heal(PF, '0', 5.0)
    assert health() == 'unhealthy'
    calls = list(failed.calls)
    with pytest.raises(
        exception.DeviceError, match='has stayed in reset since'
    ):
        program(images.add(AES))
    assert failed.calls == calls
    error = cause(
        lambda: os_acc.plug(
            devices.instance(), [request(0, AES, images.add(AES))]
        )
    )
    assert isinstance(error, exception.DeviceUnhealthy)
    # With its VFs, the reset of the port ends.
    os_acc.unplug(instance)
    assert failed.stuck == set()
    assert program(images.add(AES))
    assert health() == 'ok'


def test_not_healed_while_it_is_open(kernel, failed, images):
    with pytest.raises(exception.DeviceError, match='CRC error'):
        program(images.add(AES))
    failed.stuck.add(0)
    node = kernel.sys / 'dev/char/236:0'
    node.parent.mkdir(parents=True)
    node.symlink_to(failed.region / 'dfl-fme.0')
    (failed.region / 'dfl-fme.0/uevent').write_text('DEVNAME=dfl-fme.0\n')
    pid = kernel.hold('/dev/dfl-fme.0', 'fpgad', 'c 236:0')
    assert not privileged.heal(PF, '0', 5.0)
    with pytest.raises(exception.DeviceBusy, match=f'process {pid} '):
        program(images.add(FFT))


def test_a_driver_that_does_not_come_back(kernel, failed, images):
    with pytest.raises(exception.DeviceError, match='CRC error'):
        program(images.add(AES))
    failed.stuck.add(0)
    kernel.fail('*/dfl-pci/bind', 5)
    with pytest.raises(exception.DeviceError, match='bind of dfl-pci'):
        privileged.heal(PF, '0', 5.0)
    # The next call binds it.
    assert program(images.add(AES))
    assert kernel.driver_of(PF) == 'dfl-pci'


@pytest.mark.parametrize('fails', [False, True])
def test_killed_in_the_ioctl_of_a_port_that_a_vf_has(
    kernel, card, images, monkeypatch, fails
):
    """The kernel goes on, and shows how that has ended until the next one."""
    privileged_vfs.create_vfs(PF, 2, 30.0)
    digest = {}
    for function in (AES, FFT):
        path = images.add(function)
        with open(path, 'rb') as file:
            digest[path] = hashlib.file_digest(file, 'sha256').hexdigest()
    first, second = digest
    if fails:
        card.fault = exception.DeviceError(device='port 0', reason='CRC error')

    def killed(found, port, data, offset):
        with contextlib.suppress(exception.DeviceError):
            card.program(found, port, data, offset)
        raise mortal.Crash

    with monkeypatch.context() as patch:
        patch.setattr('os_acc.privileged.fpga.dfl_ioctl.program', killed)
        with pytest.raises(mortal.Crash):
            privileged.program(PF, '0', first, digest[first], None, 30.0)
    privileged.program(PF, '1', second, digest[second], None, 30.0)
    again = functools.partial(
        privileged.program, PF, '0', first, digest[first], None, 30.0
    )
    if fails:
        with pytest.raises(exception.DeviceError, match='has stayed in reset'):
            again()
    else:
        again()


def test_killed_while_it_is_bound_again(kernel, failed, images, caplog):
    """Without VFs no VAN leads recover() to the card."""
    kernel.handlers['bind'] = lambda path, text: kernel_module.fail(5)
    with pytest.raises(exception.DeviceError):
        program(images.add(AES))
    assert kernel.driver_of(PF) is None
    os_acc.recover()
    assert 'were not cleaned up: PF 0000:3b:00.0' in caplog.text
    kernel.handlers['bind'] = failed.bind
    os_acc.recover()
    assert kernel.driver_of(PF) == 'dfl-pci'
    assert failed.stuck == set()


def test_killed_while_the_ports_of_vfs_are_given_back(kernel, card):
    """No record of programming leads recover() to the card."""
    privileged_vfs.create_vfs(PF, 2, 30.0)
    kernel.handlers['bind'] = lambda path, text: kernel_module.fail(5)
    with pytest.raises(exception.DeviceError):
        privileged_vfs.remove_vfs(PF, 30.0)
    assert kernel.driver_of(PF) is None
    kernel.handlers['bind'] = card.bind
    os_acc.recover()
    privileged_vfs.create_vfs(PF, 2, 30.0)
    assert kernel.driver_of(PF) == 'dfl-pci'
    assert sriov.count(PF) == 2


def test_recovery_of_several_cards(kernel, failed, images):
    """One that cannot be bound does not keep the others from it."""
    kernel.handlers['bind'] = lambda path, text: kernel_module.fail(5)
    with pytest.raises(exception.DeviceError):
        program(images.add(AES))
    kernel.handlers['bind'] = failed.bind
    kernel.add_function('0000:0a:00.0', '8086:bcce')
    dfl_ports.cards.write('0000:0a:00.0', dfl_ports.DflCard([], True))
    kernel.fail('*/dfl-pci/bind', 5)
    with pytest.raises(exception.DeviceError, match='0a:00'):
        privileged.recover(5.0)
    assert kernel.driver_of(PF) == 'dfl-pci'


def test_a_port_cannot_be_cleared(card, images, caplog):
    """It keeps its function; the device is healthy, and the VAN is gone."""
    os_acc.CONF.set_override('at_unplug', 'clear', 'os_acc_fpga')
    instance = devices.instance()
    os_acc.plug(instance, [request(0, AES, images.add(AES))])
    assert os_acc.unplug(instance) == 1
    assert len(os_acc.get_vans()) == 0
    assert health() == 'ok'
    assert 'keeps its function' in caplog.text


# --- privileged calls


@pytest.mark.parametrize(
    ('field', 'value'),
    [
        ('address', VFS[0]),
        ('address', f'../devices/{PF}'),
        ('region', '2'),
        ('region', '00'),
        ('region', '../0'),
        ('region', 0),
        ('region', ''),
        ('path', '/etc/shadow'),
        ('path', 'x.gbs'),
        ('path', 7),
        ('digest', '0' * 63),
        ('digest', None),
        ('function_id', 'aes; reboot'),
        ('function_id', 7),
        ('seconds', -1),
        ('seconds', 'x'),
    ],
)
def test_arguments(kernel, card, images, field, value):
    arguments = {
        'address': PF,
        'region': '0',
        'path': images.add(AES),
        'digest': '0' * 64,
        'function_id': None,
        'seconds': 5.0,
        field: value,
    }
    writes = list(kernel.writes)
    with pytest.raises(
        (
            exception.InvalidRequest,
            exception.BitstreamError,
            exception.DeviceNotFound,
        )
    ):
        privileged.program(**arguments)
    assert (card.calls, kernel.writes) == ([], writes)


def test_ports_are_not_given_back_under_a_vf(kernel, card):
    privileged_vfs.create_vfs(PF, 2, 30.0)
    with pytest.raises(exception.DeviceBusy, match='it has 2 VFs'):
        dfl_ports.after_vfs(pci.get(PF), 5.0)
    assert card.calls == [('release', 0), ('release', 1)]


def test_vfs_with_ports_of_an_interrupted_call(kernel, card):
    kernel.crash_at(1, False)
    with pytest.raises(mortal.Crash):
        privileged_vfs.create_vfs(PF, 2, 30.0)
    kernel.revive()
    assert privileged_vfs.remove_vfs(PF, 30.0) == []
    assert dfl.find(PF).released == ()


@pytest.mark.shown('programming.rst', 'ini', '"programmer": "dfl"')
@pytest.mark.parametrize(
    ('ids', 'ports', 'region'), [('8086:0b2b', 1, None), ('8086:bcce', 2, '1')]
)
def test_the_documented_entries(
    kernel, monkeypatch, images, ids, ports, region
):
    (text,) = pages.blocks('programming.rst', 'ini', '"programmer": "dfl"')
    configure(images, *pages.device_specs(text))
    card = dfl_model.Card(kernel, ports, ids=ids)
    card.install(monkeypatch)
    assert program(images.add(AES), region)
    assert card.functions[-1] == plain(AES)
    (device,) = os_acc.get_devices()
    assert device.resource_class == 'FPGA'
    assert device.handles_total == ports


@pytest.mark.shown('programming.rst', 'console', '--region 0')
def test_the_commands_of_the_documentation(
    card, images, tmp_path, capsys, monkeypatch
):
    (text,) = pages.blocks('programming.rst', 'console', '--region 0')
    os.rename(images.add(AES), images.directory / 'aes.gbs')
    run = command.Command(tmp_path / 'state', capsys, monkeypatch)
    text = text.replace('/srv/fpga', str(images.directory))
    shown = [(run.fine(*words).out, said) for words, said in pages.steps(text)]
    assert [out for out, _ in shown] == [f'{said}\n' for _, said in shown]
    assert len(shown) == 2
    assert card.functions[0] == plain(AES)

# SPDX-License-Identifier: Apache-2.0

"""The driver cyborg: programming."""

from __future__ import annotations

import os
import signal
import threading

import cyborg_host
from cyborg_stand_in import BESIDE
from cyborg_stand_in import F1
from cyborg_stand_in import F2
from cyborg_stand_in import FPGA
from cyborg_stand_in import OTHER
from cyborg_stand_in import VFS
from cyborg_stand_in import cause
from cyborg_stand_in import device
from cyborg_stand_in import found
from cyborg_stand_in import option
from cyborg_stand_in import pids
from cyborg_stand_in import plug
from cyborg_stand_in import request
from cyborg_stand_in import slot
from cyborg_stand_in import stand_in_host  # noqa: F401, fixture "here"
from cyborg_stand_in import vf
import devices
import pytest

import os_acc
from os_acc import exception
from os_acc import health
from os_acc import objects
from os_acc.privileged import device_users


def test_programmed_once_for_all_of_its_users(here):
    image = here.image()
    one, (van,) = plug(vf(0, bitstream=image, function_id=F1))
    assert (van.function_id, van.handle.managed) == (F1, True)
    controlpath = {'cpid_type': 'PCI', 'cpid_info': slot(FPGA)}
    assert here.calls() == [['program', controlpath, image]]
    plug(vf(1, bitstream=image, function_id=F1))
    assert len(here.calls()) == 1
    assert os_acc.unplug(one) == 1
    err = cause(vf(0, bitstream=image, function_id=F2))
    assert isinstance(err, exception.DeviceBusy)
    assert F1 in str(err)
    assert len(here.calls()) == 1


def test_another_function_when_nobody_uses_it(here):
    image = here.image()
    one, _ = plug(vf(0, bitstream=image, function_id=F1))
    os_acc.unplug(one)
    _, (van,) = plug(vf(0, bitstream=image, function_id=F2))
    assert van.function_id == F2
    assert len(here.calls()) == 2


def test_busy_names_the_holders(here):
    plain, _ = plug(vf(0))
    err = cause(vf(1, bitstream=here.image(), function_id=F1))
    assert isinstance(err, exception.DeviceBusy)
    assert plain.uuid in str(err)
    assert here.calls() == []


def test_a_function_that_is_in(here):
    here.tell('function', F1.upper())
    assert found()[FPGA].function_id == F1
    plug(vf(0))
    _, (van,) = plug(vf(1, function_id=F1))
    assert van.function_id == F1
    assert here.calls() == []


def test_a_function_that_is_not_in_takes_a_bitstream(here):
    """os-acc looks for it in Glance, which is unavailable here."""
    err = cause(vf(0, function_id=F1))
    assert isinstance(err, exception.BitstreamError)
    assert F1 in str(err)


@pytest.mark.parametrize('path', ['/nowhere/image.gbs', '/tmp'])
def test_no_file(here, path):
    err = cause(vf(0, bitstream=path))
    assert isinstance(err, exception.BitstreamError)
    assert path in str(err)
    assert here.calls() == []


def test_a_name_that_is_no_reference(here):
    """It is refused before anything is touched."""
    with pytest.raises(exception.InvalidRequest, match=r'image\.gbs'):
        os_acc.plug(devices.instance(), [vf(0, bitstream='image.gbs')])
    assert here.calls() == []


def test_a_link_out_of_the_allowed_directories(here, tmp_path):
    (tmp_path / 'image.gbs').symlink_to('/etc/passwd')
    err = cause(vf(0, bitstream=str(tmp_path / 'image.gbs')))
    assert isinstance(err, exception.BitstreamError)
    assert here.calls() == []


def test_no_secret_in_an_error(here):
    os_acc.CONF.set_override('retry_interval', 0, 'os_acc_bitstreams')
    url = 'https://user:s3cret@127.0.0.1:9/x.gbs?token=t0ken'
    err = cause(vf(0, bitstream=url))
    assert 's3cret' not in str(err)
    assert 't0ken' not in str(err)


def free():
    """What os-acc device free does, after the operator's check."""
    assert health.free(os_acc._get().journal, FPGA)


@pytest.mark.parametrize('told', ['false', 'die'])
@pytest.mark.parametrize('by', ['cyborg', 'pci'])
def test_what_failed_to_program_is_kept(here, told, by):
    """No driver gives it out until an operator has freed it."""
    here.tell('program', told)
    cause(vf(0, bitstream=here.image(), function_id=F1))
    here.tell('program', '')
    nothing = vf(0)
    nothing.driver = by
    for wanted in (nothing, vf(0, bitstream=here.image(), function_id=F1)):
        err = cause(wanted)
        assert isinstance(err, exception.DeviceUnhealthy)
        assert 'its programming failed' in str(err)
    free()
    assert 'programming failed' in str(cause(nothing))
    _, (van,) = plug(vf(0, bitstream=here.image(), function_id=F1))
    assert van.function_id == F1


def test_what_cannot_be_programmed(here):
    handle = objects.TestHandle(name='0000:0c:01.0')
    err = cause(request(handle, bitstream=here.image()))
    assert isinstance(err, exception.DeviceError)
    assert 'cannot program' in str(err)


@pytest.mark.parametrize(
    ('told', 'text'),
    [
        ('false', 'returned False'),
        ('raise', 'RuntimeError: the device is broken'),
        ('exit', 'SystemExit: 3'),
        ('die', 'was killed by signal 9'),
        ('leave', 'ended with exit code 4'),
    ],
)
def test_programming_fails(here, told, text):
    wanted = vf(0, bitstream=here.image(), function_id=F1)
    here.tell('program', told)
    err = cause(wanted)
    assert isinstance(err, exception.DeviceError)
    assert text in str(err)
    assert FPGA in str(err)
    here.tell('program', '')
    assert isinstance(cause(wanted), exception.DeviceUnhealthy)
    assert len(here.calls()) == 1
    free()
    _, (van,) = plug(wanted)
    assert van.function_id == F1
    assert len(here.calls()) == 2


def test_programming_that_lies(here):
    here.tell('reports', F2)
    err = cause(vf(0, bitstream=here.image(), function_id=F1))
    assert isinstance(err, exception.DeviceError)
    assert F2 in str(err)


def test_programming_that_loses_the_device(here):
    here.tell('program', 'lose')
    with pytest.raises(exception.DeviceError, match='any more'):
        program(here.image(), F1)


def test_programming_that_hangs(here):
    wanted = vf(0, bitstream=here.image(), function_id=F1)
    option('program_timeout', 1.5)
    here.tell('program', 'hang')
    err = cause(wanted)
    assert isinstance(err, exception.Timeout)
    assert FPGA in str(err)
    assert all(cyborg_host.gone(pid) for pid in here.hanging())
    here.tell('program', '')
    option('program_timeout', 60.0)
    free()
    plug(wanted)


def test_others_go_on_while_one_hangs(here):
    here.tell('program', 'hang')
    errors = []
    wanted = vf(0, bitstream=here.image(), function_id=F1)
    thread = threading.Thread(target=lambda: errors.append(cause(wanted)))
    thread.start()
    hanging = here.hanging()
    assert FPGA in found()
    assert thread.is_alive()
    os.kill(hanging[0], signal.SIGKILL)
    thread.join()
    assert 'was killed by signal 9' in str(errors[0])
    assert all(cyborg_host.gone(pid) for pid in hanging)
    # One helper is kept.
    assert len(pids(here)) == 1


def test_programmed_again_after_a_reboot(here):
    image = here.image()
    plug(
        vf(0, bitstream=image, function_id=F1),
        vf(1, bitstream=image, function_id=F1),
    )
    assert len(here.calls()) == 1
    here.kernel.reboot()
    path = here.kernel.pci / 'devices' / FPGA / 'sriov_numvfs'
    here.kernel.write(str(path), '2')
    os_acc.initialize(reset=True)
    vans = os_acc.get_vans()
    assert [(van.state, van.error) for van in vans] == [('plugged', None)] * 2
    assert len(here.calls()) == 2


def test_a_sharer_has_the_function_again_after_a_reboot(here):
    """It did not request one, and must not keep the device without it."""
    program(here.image(), F1)
    _, (van,) = plug(vf(0))
    assert van.function_id == F1
    plug(vf(1, bitstream=here.image(), function_id=F1))
    assert len(here.calls()) == 1
    here.kernel.reboot()
    path = here.kernel.pci / 'devices' / FPGA / 'sriov_numvfs'
    here.kernel.write(str(path), '2')
    os_acc.initialize(reset=True)
    assert [
        (van.state, van.error, van.function_id) for van in os_acc.get_vans()
    ] == [('plugged', None, F1)] * 2
    assert len(here.calls()) == 2


def test_two_at_once_with_one_function(here):
    image = here.image()
    _, vans = plug(*(vf(n, bitstream=image, function_id=F1) for n in (0, 1)))
    assert [van.function_id for van in vans] == [F1, F1]
    assert len(here.calls()) == 1


def test_selectors(here):
    image = here.image()
    wanted = [
        request(None, bitstream=image, function_id=name)
        for name in (F1, F2, 'cccc', F1, F1)
    ]
    _, (one,) = plug(wanted[0])
    _, (two,) = plug(wanted[1])
    assert {one.device, two.device} == {FPGA, OTHER}
    err = cause(wanted[2])
    assert isinstance(err, exception.DeviceNotFound)
    assert 'is busy' in str(err)
    _, (three,) = plug(wanted[3])
    assert (three.device, three.function_id) == (one.device, F1)
    err = cause(wanted[4])
    assert isinstance(err, exception.DeviceNotFound)
    assert 'taken' in str(err)
    assert len(here.calls()) == 2


# --- program_device()


def program(bitstream, function_id=None, **values):
    return os_acc.program_device(FPGA, bitstream, function_id, **values)


def test_the_administrator_programs(here):
    image, events = here.image(), []
    assert program(image, F1, progress=events.append) is True
    controlpath = {'cpid_type': 'PCI', 'cpid_info': slot(FPGA)}
    assert here.calls() == [['program', controlpath, image]]
    assert found()[FPGA].programming == 'single'
    texts = [each.message for each in events if each.status == 'running']
    assert f'programming {FPGA}' in texts
    # The device holds this bitstream: nothing is done.
    assert program(image, F1) is False
    _, (van,) = plug(vf(0, function_id=F1))
    assert van.function_id == F1
    assert len(here.calls()) == 1


def test_the_administrator_does_not_program_what_is_in_use(here):
    image = here.image()
    user, (van,) = plug(vf(1, bitstream=image, function_id=F1))
    with pytest.raises(exception.DeviceBusy) as caught:
        program(image, F2)
    assert user.uuid in str(caught.value)
    assert van.uuid in str(caught.value)
    assert len(here.calls()) == 1
    os_acc.unplug(user)
    assert program(image, F2) is True


@pytest.fixture
def guests(monkeypatch):
    """A guest that os-acc does not know, such as one of Nova alone.

    Yields the functions that were asked about.
    """
    asked = []

    def users(functions):
        asked.append(functions)
        return ['process 4711 (qemu) has /dev/vfio/12 open']

    monkeypatch.setattr(device_users, 'of_functions', users)
    return asked


@pytest.mark.parametrize('by', ['administrator', 'request'])
def test_a_guest_that_os_acc_does_not_know_has_it_open(here, guests, by):
    if by == 'request':
        err = cause(vf(0, bitstream=here.image(), function_id=F1))
    else:
        with pytest.raises(exception.DeviceBusy) as caught:
            program(here.image(), F1)
        err = caught.value
    assert isinstance(err, exception.DeviceBusy)
    assert 'process 4711 (qemu)' in str(err)
    assert guests == [[FPGA, *VFS]]
    assert here.calls() == []


def test_a_guest_has_the_other_function_of_the_card_open(here, guests):
    """A card of Xilinx: the journal knows nothing of the user function."""
    handles = [['PCI', slot(each)] for each in (OTHER, BESIDE)]
    here.find(device('fpga', OTHER, *handles, accelerators=1))
    with pytest.raises(exception.DeviceBusy, match='4711'):
        os_acc.program_device(OTHER, here.image(), F1)
    assert guests == [[OTHER, BESIDE]]
    assert here.calls() == []


def test_the_host_uses_the_card(here):
    flags = here.kernel.sys / 'class/net/eth0/flags'
    flags.write_text('0x1003\n')
    here.find(device('fpga', devices.NIC, ['PCI', slot(devices.NIC)]))
    with pytest.raises(exception.DeviceInUseByHost, match='eth0'):
        os_acc.program_device(devices.NIC, here.image(), F1)
    assert here.calls() == []


def test_the_administrator_programs_what_failed(here):
    here.tell('program', 'false')
    with pytest.raises(exception.DeviceError, match='returned False'):
        program(here.image(), F1)
    assert 'programming failed' in str(cause(vf(0)))
    here.tell('program', '')
    assert program(here.image(), F1) is True
    plug(vf(0))


def test_the_administrator_names_a_region(here):
    with pytest.raises(exception.InvalidRequest, match='region'):
        program(here.image(), F1, region='0')
    assert here.calls() == []


def test_the_administrator_programs_what_cannot_be(here):
    with pytest.raises(exception.DeviceError, match='cannot program'):
        os_acc.program_device('0000:0c:00.0', here.image(), F1)


def test_the_administrator_programs_outside_of_device_spec(here):
    devices.spec({'address': OTHER})
    with pytest.raises(exception.DeviceNotFound, match=FPGA):
        program(here.image(), F1)
    assert here.calls() == []
    devices.spec({'address': '*'})


def test_two_drivers_of_cyborg_find_a_device(here):
    """One can program it, and counts; the other comes first."""
    handles = [['PCI', slot(each)] for each in VFS]
    here.find(device('plain', FPGA, *handles), device('fpga', FPGA, *handles))
    listed = [each for each in os_acc.get_devices() if each.address == FPGA]
    assert [(d.driver, d.programming) for d in listed] == [
        ('cyborg', 'single')
    ]
    assert (listed[0].handles_total, listed[0].handles_free) == (2, 2)
    assert program(here.image(), F1) is True
    _, (van,) = plug(vf(0, bitstream=here.image(), function_id=F1))
    assert (van.driver, van.function_id) == ('cyborg', F1)

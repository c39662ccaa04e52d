# SPDX-License-Identifier: Apache-2.0

"""FPGA managers of the kernel: shown, and programmed where the kernel can."""

from __future__ import annotations

import errno
import hashlib
import os
import threading

import command as os_acc_command
import devices
import fpga_manager_model
import pages
from pages import blocks
import pytest

import os_acc
from os_acc import exception
from os_acc.kernel import fpga_manager
from os_acc.kernel import overlay
from os_acc.kernel import pci
from os_acc.kernel import sysfs
from os_acc.privileged import fpga_manager as privileged
from os_acc.privileged import programming
from os_acc.programming import bitstreams
from os_acc.programming import programmers
from os_acc.spec import device_spec

CARD = fpga_manager_model.CARD
OTHER = '0000:5e:00.0'


@pytest.fixture
def card(kernel, tmp_path):
    made = fpga_manager_model.Card(kernel)
    (tmp_path / 'images').mkdir()
    os_acc.CONF.set_override(
        'allowed_folders', [str(tmp_path / 'images')], 'os_acc_bitstreams'
    )
    configure()
    return made


def configure(**values) -> None:
    (text,) = blocks('programming.rst', 'ini', '"fpga_manager"')
    (value,) = pages.device_specs(text)
    devices.spec({**value, **values})
    os_acc.initialize(reset=True)


@pytest.fixture
def image(tmp_path, card):
    path = tmp_path / 'images/aes.bit.bin'
    path.write_bytes(b'aes')
    return str(path)


DIGEST = hashlib.sha256(b'aes').hexdigest()


def failure(image, cause=exception.DeviceError) -> str:
    with pytest.raises(cause) as caught:
        os_acc.program_device(CARD, image, 'aes')
    return str(caught.value)


def records() -> list[str]:
    return [each.state for each in os_acc._get().journal.programs()]


# --- shown


@pytest.mark.shown('programming.rst', 'console', 'fpga managers')
def test_device_show(card, capsys, monkeypatch):
    card.set('state', 'write error')
    card.set('status', 'reconfig CRC error')
    fpga_manager_model.Card(card.kernel, OTHER, 'fpga1')
    (text,) = blocks('programming.rst', 'console', 'fpga managers')
    ((words, said),) = pages.steps(text)
    state = os_acc.CONF.os_acc.state_path
    run = os_acc_command.Command(state, capsys, monkeypatch)
    assert run.fine(*words).out.strip() == said


def test_the_managers_of_a_card(card):
    fpga_manager_model.Card(card.kernel, OTHER, 'fpga1')
    (found,) = fpga_manager.managers(pci.get(CARD))
    assert found.line == 'fpga0 (Fake FPGA Manager): power off'
    card.set('status', 'reconfig CRC error\nreconfig IP protocol error')
    (found,) = fpga_manager.managers(pci.get(CARD))
    assert found.status == 'reconfig CRC error, reconfig IP protocol error'
    assert fpga_manager.managers(pci.get(OTHER))[0].name == 'fpga1'


def test_a_manager_without_files(card):
    for file in ('name', 'state', 'status'):
        (card.folder / file).unlink()
    (found,) = fpga_manager.managers(pci.get(CARD))
    assert found.line == 'fpga0 (unnamed): unknown'


# --- by a firmware file


@pytest.mark.shown('programming.rst', 'ini', '"fpga_manager"')
@pytest.mark.parametrize(
    ('activation', 'flags'),
    [(None, '1'), ('partial', '1'), ('reenumerate', '0')],
)
def test_a_firmware_file(card, image, activation, flags):
    if activation is not None:
        configure(activation=activation)
    card.with_firmware()
    programmer = make_programmer()
    with bitstreams.fetched(image) as file:
        done = programmer.program(file, 'aes', ignore)
    assert done == (activation or 'partial')
    assert (card.images, card.flags) == ([b'aes'], [flags])
    (name,) = card.names
    folder, own, file_name = name.split('/')
    assert (folder, file_name) == ('os-acc', 'image.bin')
    assert len(own) == 32
    # The copy is gone.
    assert list((card.kernel.root / 'firmware/os-acc').iterdir()) == []


def ignore(fraction, message):
    pass


def make_programmer():
    return programmers.make(
        CARD, '', device_spec.load(os_acc.CONF).check(pci.get(CARD))
    )


def test_a_kernel_without_flags(card, image):
    card.set('firmware', '')
    assert os_acc.program_device(CARD, image, 'aes')
    assert (card.images, card.flags) == ([b'aes'], [])
    assert records() == ['programmed']
    assert os_acc.program_device(CARD, image, 'aes') is False


def test_another_firmware_folder(card, image, tmp_path):
    """The parameter of the module firmware_class comes first."""
    card.set('firmware', '')
    other = tmp_path / 'other'
    other.mkdir()
    card.kernel.write_file(
        'sys/module/firmware_class/parameters/path', f'{other}\n'
    )
    seen = []

    def load(path, text):
        seen.append((other / text).read_bytes())
        card.set('state', 'operating')

    card.kernel.handlers['firmware'] = load
    assert os_acc.program_device(CARD, image, 'aes')
    assert seen == [b'aes']


def test_the_copy_in_the_firmware_folder(card, image):
    """Only root can read it; a killed daemon's copy is removed."""
    card.set('firmware', '')
    modes = []

    def load(path, text):
        file = card.kernel.root / 'firmware' / text
        modes.extend(
            each.stat().st_mode & 0o777
            for each in (file, file.parent, file.parent.parent)
        )
        card.set('state', 'operating')

    card.kernel.handlers['firmware'] = load
    left = card.kernel.root / 'firmware/os-acc/0123456789abcdef'
    left.mkdir(parents=True, mode=0o700)
    left.parent.chmod(0o700)
    (left / 'image.bin').write_bytes(b'secret')
    assert os_acc.program_device(CARD, image, 'aes')
    assert modes == [0o400, 0o700, 0o700]
    assert not left.exists()
    left.mkdir()
    programming.sweep()
    assert not left.exists()


@pytest.mark.parametrize('number', [errno.EIO, errno.EINVAL, errno.ETIMEDOUT])
def test_a_kernel_that_refuses(card, image, number):
    card.with_firmware()
    card.set('status', 'reconfig CRC error')
    card.fails = number
    text = failure(image)
    assert f'firmware: {os.strerror(number)}' in text
    assert text.endswith(
        'FPGA manager: fpga0 (Fake FPGA Manager): write error, reconfig CRC '
        'error'
    )
    assert records() == ['error']
    assert list((card.kernel.root / 'firmware/os-acc').iterdir()) == []


def test_a_manager_that_does_not_operate(card, image):
    card.with_firmware()
    card.fails = 'write complete error'
    text = failure(image)
    assert 'fpga0 is not operating after its programming' in text
    assert text.endswith('(Fake FPGA Manager): write complete error')


def test_a_kernel_that_takes_too_long(card, image):
    """It goes on: nobody programs beside it."""
    os_acc.CONF.set_override('device_timeout', 0.1, 'os_acc')
    os_acc.CONF.set_override('program_timeout', 0.3, 'os_acc')
    card.with_firmware()
    go_on = threading.Event()

    def load(path, text):
        go_on.wait(30)
        card.set('state', 'operating')

    card.kernel.handlers['firmware'] = load
    text = failure(image, exception.Timeout)
    assert f'the FPGA manager of {CARD} to be programmed' in text
    assert text.endswith('FPGA manager: fpga0 (Fake FPGA Manager): power off')
    with pytest.raises(exception.DeviceBusy, match='has not ended'):
        privileged.check(CARD, image)
    go_on.set()
    os_acc.CONF.set_override('device_timeout', 20.0, 'os_acc')
    privileged.check(CARD, image)


def test_no_firmware_folder(card, image):
    card.with_firmware()
    (card.kernel.root / 'firmware').rmdir()
    assert "kernel's firmware does not exist" in failure(image)


# --- by an overlay


def test_an_overlay(card, image):
    folder = card.with_overlays() / 'os-acc-fpga0'
    for _ in range(2):
        privileged.program(CARD, image, DIGEST, 20.0)
        assert (folder / 'status').read_text() == 'applied\n'
    assert card.images == [b'aes', b'aes']
    assert card.flags == ['1', '1']
    # It was removed before it was made again.
    assert [w for w in card.kernel.writes if w[1] in ('mkdir', 'rmdir')] == [
        (str(folder.relative_to(card.kernel.root)), what)
        for what in ('mkdir', 'rmdir', 'mkdir')
    ]
    assert list((card.kernel.root / 'firmware/os-acc').iterdir()) == []
    privileged.clear(CARD, 20.0)
    assert not folder.exists()


def test_a_full_image_by_an_overlay(card, image):
    configure(activation='reenumerate')
    card.with_overlays()
    privileged.program(CARD, image, DIGEST, 20.0)
    assert card.flags == ['0']


@pytest.mark.parametrize('fault', ['refused', 'unapplied'])
def test_an_overlay_that_is_not_applied(card, image, fault):
    folder = card.with_overlays()

    def apply(path, text):
        if fault == 'refused':
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    card.kernel.handlers['path'] = apply
    text = failure(image)
    wanted = 'Invalid argument' if fault == 'refused' else 'is unapplied'
    assert wanted in text
    assert list(folder.iterdir()) == []
    assert list((card.kernel.root / 'firmware/os-acc').iterdir()) == []


def test_the_overlay_has_no_place_for_more():
    """Another length of the texts: everything is aligned."""
    for length in range(1, 9):
        content = overlay.make('/' + 'r' * length, 'f' * length, length > 4)
        found = fpga_manager_model.properties(content)
        assert found['firmware-name'] == b'f' * length + b'\0'
        assert ('partial-fpga-config' in found) is (length > 4)


# --- what a kernel lacks


def test_the_mainline_kernel(card, image):
    text = failure(image)
    assert 'this kernel cannot program it' in text
    assert f'no file {sysfs.SYS}/class/fpga_manager/fpga0' in text
    assert 'no device-tree overlays in configfs' in text
    assert text.endswith('FPGA manager: fpga0 (Fake FPGA Manager): power off')
    # The card was not touched.
    assert records() == []


@pytest.mark.parametrize('regions', [0, 2])
def test_overlays_without_the_region(card, image, regions):
    card.with_overlays(regions)
    assert 'not exactly one FPGA region' in failure(image)
    assert records() == []


def test_a_card_without_a_manager(card, image):
    (card.kernel.sys / 'class/fpga_manager/fpga0').unlink()
    assert 'expected one FPGA manager below it' in failure(image)
    assert records() == []


def test_a_card_with_two_managers(card, image):
    card.device(CARD, 'fpga_manager', 'fpga7')
    assert 'found fpga0, fpga7' in failure(image)


def test_what_was_loaded_otherwise_cannot_be_cleared(card):
    with pytest.raises(exception.DeviceError, match='not loaded with the ov'):
        make_programmer().clear()


def test_power_off_means_empty(card, image):
    card.with_firmware()
    assert make_programmer().look() == ''
    assert os_acc.program_device(CARD, image, 'aes')
    assert make_programmer().look() is None
    (found,) = (d for d in os_acc.get_devices() if d.address == CARD)
    assert found.function_id == 'aes'
    card.set('state', 'power off')
    (found,) = (d for d in os_acc.get_devices() if d.address == CARD)
    assert found.function_id is None


# --- root


def test_root_takes_only_what_was_verified(card, image):
    card.with_firmware()
    for path, digest in ((image, '0' * 64), ('/etc/passwd', DIGEST)):
        with pytest.raises(exception.BitstreamError):
            privileged.program(CARD, path, digest, 5.0)
    with pytest.raises(exception.InvalidRequest):
        privileged.program(CARD, image, DIGEST, -1)
    assert card.images == []


def test_a_card_in_use(card, image):
    card.with_firmware()
    kernel = card.kernel
    kernel.write(f'{kernel.pci}/devices/{CARD}/driver_override', 'vfio-pci')
    kernel.write(f'{kernel.pci}/drivers_probe', CARD)
    kernel.hold(kernel.node(CARD))
    failure(image, exception.DeviceBusy)
    for act in (
        lambda: privileged.check(CARD, image),
        lambda: privileged.program(CARD, image, DIGEST, 5.0),
        lambda: privileged.clear(CARD, 5.0),
    ):
        with pytest.raises(exception.DeviceBusy):
            act()
    assert card.images == []


def test_the_errors_of_other_programmers_have_it_too(card, image, tmp_path):
    tool = tmp_path / 'tool'
    tool.write_text('#!/bin/sh\necho no answer; exit 7\n')
    tool.chmod(0o755)
    devices.spec(
        {
            'address': CARD,
            'resource_class': 'FPGA',
            'program': f'{tool} {{address}} {{file}}',
        }
    )
    os_acc.initialize(reset=True)
    card.set('state', 'write error')
    assert failure(image).endswith(
        'exit code 7: no answer. FPGA manager: fpga0 (Fake FPGA Manager): '
        'write error'
    )


def test_the_doctor(card):
    driver = os_acc._get().extensions.drivers['fpga']
    ((verdict, text),) = [(f.verdict, f.text) for f in driver.diagnose()]
    assert verdict == 'error'
    assert 'this kernel cannot program it' in text
    card.with_firmware()
    assert [f.verdict for f in driver.diagnose()] == ['ok']

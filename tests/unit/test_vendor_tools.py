# SPDX-License-Identifier: Apache-2.0

"""The commands of programming.rst, run with tools that have the real rules."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import time

import command as os_acc_command
import devices
import memory
import pages
from pages import blocks
import pytest
import vendor_tools

import os_acc
from os_acc import exception
from os_acc.privileged.fpga import amd
from os_acc.privileged.fpga import command as privileged
from os_acc.programming import bitstreams
from os_acc.programming import programmers
from os_acc.spec import commands as spec_commands
from os_acc.spec import device_spec

CARD = '0000:3b:00.0'
# The same numbers in another domain.
TWIN = '0001:3b:00.0'
USER = '0000:3b:00.1'
TWIN_USER = '0001:3b:00.1'

AFU = 'd8424dc4-a4a3-c413-f89e-433683f9040b'
SHELL = '862c7020-a250-3e29-bbed-b69c97bbf0ff'
OTHER_SHELL = '937ed708-67cf-3350-bc06-304053f4293c'
IMAGE = '6250ec80-3f38-4be0-ac90-68bfd3c140a8'
OTHER_IMAGE = '0a1b2c3d-0000-4000-8000-000000000001'


def entry(marker: str, directory: pathlib.Path) -> dict:
    """The documented entry of device_spec that has a text.

    The tools are those of the test, so their directory is another one.
    """
    (text,) = pages.blocks('programming.rst', 'ini', marker)
    (found,) = (
        each for each in pages.device_specs(text) if marker in json.dumps(each)
    )
    if 'program' in found:
        name = found['program'].split()[0]
        tool = f'{directory}/bin/{os.path.basename(name)}'
        found['program'] = found['program'].replace(name, tool)
    return found


@pytest.fixture
def tools(kernel, tmp_path):
    """Two AMD cards with the same numbers in two domains, and their tools."""
    for address in (CARD, TWIN):
        kernel.add_driver('xclmgmt')
        kernel.add_driver('xocl')
        kernel.add_function(
            address,
            '10ee:5004',
            0x120000,
            'xclmgmt',
            files={'interface_uuids': SHELL.replace('-', '')},
        )
    for address in (USER, TWIN_USER):
        kernel.add_function(
            address, '10ee:5005', 0x120000, 'xocl', files={'xclbinuuid': ''}
        )
    made = vendor_tools.Tools(tmp_path / 'vendor', CARD, USER, TWIN, TWIN_USER)
    os_acc.CONF.set_override('xrt_path', str(made.directory), 'os_acc')
    os_acc.CONF.set_override(
        'allowed_folders', [str(tmp_path / 'images')], 'os_acc_bitstreams'
    )
    (tmp_path / 'images').mkdir()
    return made


def configure(value: dict) -> None:
    devices.spec(value)
    os_acc.initialize(reset=True)


@pytest.fixture
def image(tmp_path):
    """:returns: makes an image of a name and content"""

    def make(name: str, content: bytes) -> str:
        path = tmp_path / 'images' / name
        path.write_bytes(content)
        return str(path)

    return make


def user_image(image, **values) -> str:
    values = {'own': IMAGE, 'interface': SHELL, **values}
    return image('aes.xclbin', vendor_tools.xclbin(**values))


def refused(cause, path: str, address: str = USER, **values) -> str:
    with pytest.raises(cause) as caught:
        os_acc.program_device(address, path, **values)
    return str(caught.value)


def records() -> list[tuple[str, str | None]]:
    found = os_acc._get().journal.programs()
    return [(each.state, each.function_id) for each in found]


# --- fpgaconf


@pytest.fixture
def opae(kernel, tools):
    kernel.add_function(
        '0001:5e:00.0', '8086:bcce', 0x120000, 'dfl-pci', totalvfs=1
    )
    kernel.add_function(
        '0000:5e:00.0', '8086:bcce', 0x120000, 'dfl-pci', totalvfs=1
    )
    (tools.host / 'cards').write_text('0000:5e:00.0 0001:5e:00.0')
    value = entry('fpgaconf', tools.directory)
    del value['function_file']
    configure(value)
    return tools


@pytest.mark.shown('programming.rst', 'ini', 'fpgaconf')
def test_fpgaconf_gets_the_card_of_the_right_domain(opae, image):
    path = image('aes.anything', vendor_tools.GBS + b'aes')
    assert os_acc.program_device('0001:5e:00.0', path, AFU)
    assert opae.inside('0001:5e:00.0') == vendor_tools.GBS + b'aes'
    assert opae.inside('0000:5e:00.0') is None
    (call,) = opae.calls()
    assert call[:3] == ['fpgaconf', '--segment', '0x0001']
    # The copy has the name of the bitstream, and is gone.
    assert os.path.basename(call[-1]) == 'aes.anything'
    assert not os.path.exists(call[-1])


def test_fpgaconf_without_a_segment_does_not_know_the_card(opae, image):
    """The example of earlier releases: it depends on the other cards."""
    path = image('aes.gbs', vendor_tools.GBS + b'aes')
    with pytest.raises(exception.DeviceError, match='more specific'):
        privileged.run(
            '0001:5e:00.0',
            [str(opae.path('fpgaconf')), '--bus', '0x{bus}', path],
            {'bus': '5e'},
            10.0,
            [],
        )


def test_fpgaconf_refuses_what_is_no_gbs(opae, image):
    text = refused(
        exception.DeviceError,
        image('aes.gbs', b'aes'),
        '0001:5e:00.0',
        function_id=AFU,
    )
    assert 'exit code 2: GBS guid is invalid' in text


@pytest.mark.parametrize('mode', ['flood', 'fork'])
def test_a_tool_that_writes_without_end_or_leaves_a_child(opae, image, mode):
    """See also test_command.py."""
    os_acc.CONF.set_override('device_timeout', 0.2, 'os_acc')
    opae.mode(mode)
    path = image('aes.gbs', vendor_tools.GBS + b'aes')
    with memory.grows_by_at_most(64 << 20):  # the tool writes 256 MiB
        assert os_acc.program_device('0001:5e:00.0', path, AFU)
    assert opae.inside('0001:5e:00.0') is not None
    if mode == 'fork':
        # The child may still be programming: nobody programs beside it.
        path = image('sha.gbs', vendor_tools.GBS + b'sha')
        text = refused(
            exception.DeviceBusy, path, '0001:5e:00.0', function_id='sha'
        )
        assert 'an earlier command for it has not ended' in text
        os.kill(int((opae.host / 'pid').read_text()), signal.SIGKILL)


def test_a_tool_that_hangs(opae, image):
    os_acc.CONF.set_override('program_timeout', 0.5, 'os_acc')
    opae.mode('hang')
    path = image('aes.gbs', vendor_tools.GBS + b'aes')
    text = refused(
        exception.DeviceError, path, '0001:5e:00.0', function_id=AFU
    )
    assert 'not done after 0.5 s, killed' in text


# --- xbmgmt --base


def base_entry(tools, **values) -> dict:
    """The documented entry; it names the user function, as instances get."""
    return {**entry('--base', tools.directory), **values}


def make_programmer(address: str):
    spec = device_spec.load(os_acc.CONF).entries[0]
    return programmers.make(address, '', spec)


def bitstream(path: str) -> bitstreams.Bitstream:
    with bitstreams.fetched(path) as found:
        return found


def ignore(fraction: float | None, message: str) -> None:
    pass


@pytest.mark.shown('programming.rst', 'ini', '--base')
def test_base_is_active_after_a_cold_reboot(tools, image):
    # The output counts, not the entry.
    configure(base_entry(tools, activation='partial'))
    file = bitstream(image('shell.xsabin', b'shell'))
    activation = make_programmer(TWIN_USER).program(file, None, ignore)
    assert activation == device_spec.COLD_REBOOT
    assert tools.inside(TWIN) == b'shell'
    assert tools.inside(CARD) is None
    (call,) = tools.calls()
    assert call[:6] == [
        'xbmgmt',
        'program',
        '--device',
        TWIN,
        '--base',
        '--image',
    ]
    assert call[-1] == '--force'


@pytest.mark.parametrize('mode', ['ok', 'old'])
@pytest.mark.parametrize('name', ['shell.xsabin', 'shell.bin'])
def test_base_without_force_asks_and_gets_no_answer(tools, image, mode, name):
    """In the mode ok, the end of the input would mean yes."""
    os_acc.CONF.set_override('program_timeout', 1.0, 'os_acc')
    value = base_entry(tools)
    value['program'] = value['program'].removesuffix(' --force')
    configure(value)
    tools.mode(mode)
    text = refused(
        exception.DeviceError,
        image(name, b'shell'),
        USER,
        function_id='shell',
    )
    assert text.endswith('Are you sure you wish to proceed? [Y/n]:')
    assert 'probably waited for input' in text
    # The copy keeps the extension, which the tool looks at.
    assert ('Non-xsabin' in text) is (name == 'shell.bin')
    assert tools.calls() == []
    assert not (tools.host / 'asked').exists()


def test_the_percentage_is_reported(tools, image, monkeypatch):
    monkeypatch.setattr(programmers, '_REPORT_EVERY', 0.05)
    configure(base_entry(tools))
    tools.mode('percent')
    seen: list[float] = []

    def report(step) -> None:
        if step.fraction is not None:
            seen.append(step.fraction)
            (tools.host / f'after.{round(100 * step.fraction)}').touch()

    assert os_acc.program_device(
        USER, image('shell.xsabin', b'shell'), 'shell', progress=report
    )
    assert seen == [0.1, 0.55, 0.9, 1.0]
    # There is nothing to say when nothing runs.
    assert privileged.percent(USER, '') is None


# --- the patterns of progress


@pytest.mark.parametrize(
    ('pattern', 'said', 'percent'),
    [
        (r'(\d+)%', '10%\n42%\n', 42.0),
        (r'(\d+)%', '\r[10%]\r[42%]\r[4', 42.0),
        (r'([\d.]+) %', 'Erase: 12.5 %', 12.5),
        (r'(\d+)%', 'nothing', None),
        (r'(\d+)%', '142%', None),
        (r'(\d+)%', '42%' + 'x' * 120, None),
        (r'done: (\w+)', 'done: all', None),
        (r'at(?: (\d+))?', 'at', None),
    ],
)
def test_a_percentage(pattern, said, percent):
    assert spec_commands.progress('progress', pattern) == pattern
    assert spec_commands.percent(pattern, said) == percent


@pytest.mark.parametrize(
    'pattern',
    [
        '',
        7,
        '(',
        r'\d+%',
        r'(\d+)% of (\d+)',
        r'(\d+)%' + 'x' * 200,
        '(x+)+y',
        '(x+)*',
        '(x|xx){5}y',
        '(?:x+ )+(y)',
        '(.*).*.*.*x',
        r'(x)\1',
        '(?P<a>x)(?P=a)',
        '(?x)(x+) *',
        '(x+)(?#)*',
    ],
)
def test_a_pattern_that_is_refused(pattern):
    with pytest.raises(exception.InvalidRequest, match='progress is'):
        spec_commands.progress('progress', pattern)


def test_the_slowest_pattern_is_fast_enough():
    pattern = spec_commands.progress('progress', '(.*).*.*x')
    begun = time.process_time()
    assert spec_commands.percent(pattern, 'y' * 10_000) is None
    assert time.process_time() - begun < 5


# --- the commands of device_spec


@pytest.mark.parametrize(
    ('key', 'command', 'expected'),
    [
        ('program', '/bin/x {file}', 'whole address'),
        ('program', '/bin/x {bus}:{device}.{function} {file}', 'whole addr'),
        ('program', '/bin/x {domain}:{bus} {file}', 'whole address'),
        ('program', '/bin/x {address}', '{file}'),
        ('program', '/bin/x {address} {file} {image}', 'placeholders'),
        ('program', '/bin/x {address} {{file}}', 'placeholders'),
        ('program', '/bin/x {address} {file', '{file}'),
        ('program', ['/bin/x\0', '{address}', '{file}'], 'null'),
        ('check', '/bin/x', 'whole address'),
        ('check', '/bin/x {bus} {function_id}', 'whole address'),
        ('check', '/bin/x {address} {file}', 'placeholders'),
        ('clear', '/bin/x', 'whole address'),
        ('clear', '/bin/x {address} {function_id}', 'placeholders'),
    ],
)
def test_a_command_that_does_not_name_the_device(
    clean, key, command, expected
):
    value = {'program': '/bin/x {address} {file}', key: command}
    devices.spec({'address': CARD, **value})
    with pytest.raises(exception.InvalidRequest) as caught:
        device_spec.load(os_acc.CONF)
    text = str(caught.value)
    assert f'device_spec: {key} is {command!r}, expected' in text
    assert expected in text.partition(', expected')[2]


@pytest.mark.parametrize(
    'command',
    [
        '/bin/x {address} {file}',
        '/bin/x --at={domain}:{bus}:{device}.1 {file}',
        ['/bin/x', '{domain}', '{bus}', '{device}', '{function}', '{file}'],
    ],
)
def test_a_command_that_names_the_device(clean, command):
    devices.spec({'address': CARD, 'program': command})
    (found,) = device_spec.load(os_acc.CONF).entries
    assert found.programmer == 'command'


@pytest.mark.parametrize(
    ('value', 'field'),
    [
        ({'programmer': 'command'}, 'program'),
        ({'programmer': 'amd', 'program': '/x {address} {file}'}, 'program'),
        ({'programmer': 'amd', 'check': '/x {address}'}, 'check'),
        ({'programmer': 'amd', 'progress': '(x)'}, 'progress'),
        ({'programmer': 'amd', 'programming': 'dynamic'}, 'programming'),
        (
            {
                'program': '/x {address} {file}',
                'check': '/x {address}',
                'activation': 'reenumerate',
            },
            'check',
        ),
        ({'programmer': 'amd', 'activation': 'partial'}, 'activation'),
        ({'programmer': 'amd', 'function_file': 'x'}, 'function_file'),
        ({'programmer': 'dfl', 'clear': '/x {address}'}, 'clear'),
        ({'programmer': 'dfl', 'program': '/x {address} {file}'}, 'program'),
        ({'programmer': 'xrt'}, 'programmer'),
        ({'programmer': 'fpga_manager'}, 'programmer'),
        ({'progress': '(x)'}, 'progress'),
    ],
)
def test_keys_that_do_not_fit_the_programmer(clean, value, field):
    devices.spec({'address': CARD, **value})
    with pytest.raises(exception.InvalidRequest, match=f'{field} is'):
        device_spec.load(os_acc.CONF)


# --- AMD user images


@pytest.fixture
def cards(tools):
    configure(entry('"programmer": "amd"', tools.directory))
    return tools


def documented_commands() -> list[list[str]]:
    (text,) = (
        each for each in blocks('programming.rst', 'none', 'xbmgmt program')
    )
    (other,) = blocks('programming.rst', 'none', 'xrt-smi program')
    return [text.split(), other.split()]


def shown(call: list[str]) -> list[str]:
    """A call as the documentation shows it."""
    return [f'/opt/xilinx/xrt/bin/{call[0]}', *call[1:-1], 'FILE']


@pytest.mark.shown('programming.rst', 'ini', '"programmer": "amd"')
@pytest.mark.shown('programming.rst', 'none', 'xbmgmt program')
def test_a_user_image_through_the_management_function(cards, image, kernel):
    path = user_image(image)
    assert os_acc.program_device(USER, path)
    (call,) = cards.calls()
    assert shown(call) == documented_commands()[0]
    assert cards.inside(CARD) == pathlib.Path(path).read_bytes()
    assert cards.inside(TWIN) is None
    assert call[-1].endswith('/aes.xclbin')
    assert not os.path.exists(call[-1])
    # The function is the image's UUID.
    assert records() == [('programmed', IMAGE)]
    assert os_acc.program_device(USER, path) is False


@pytest.mark.shown('programming.rst', 'none', 'xrt-smi program')
@pytest.mark.parametrize('name', ['xrt-smi', 'xbutil'])
def test_a_user_image_through_the_user_function(cards, image, kernel, name):
    cards.install(name)
    directory = kernel.pci / 'devices' / USER
    (directory / 'interface_uuids').write_text(SHELL.replace('-', ''))
    (directory / 'xclbinuuid').write_text(f'{IMAGE}\n')
    kernel.write(f'{kernel.pci}/drivers/xclmgmt/unbind', CARD)
    assert os_acc.program_device(USER, user_image(image))
    (call,) = cards.calls()
    tool, *words = documented_commands()[1]
    assert shown(call) == [tool.replace('xrt-smi', name), *words]
    assert call[:4] == [name, 'program', '--device', USER]
    # The driver shows another image than the one that was loaded.
    (directory / 'xclbinuuid').write_text(f'{OTHER_IMAGE}\n')
    path = user_image(image, own='0a1b2c3d-0000-4000-8000-000000000002')
    text = refused(exception.DeviceError, path)
    assert f'but it has {OTHER_IMAGE}' in text


@pytest.mark.shown('programming.rst', 'console', 'aes.xclbin')
def test_the_documented_command_line(cards, image, capsys, monkeypatch):
    (text,) = blocks('programming.rst', 'console', 'aes.xclbin')
    ((words, said),) = pages.steps(text)
    words[words.index('/srv/fpga/aes.xclbin')] = user_image(image)
    state = os_acc.CONF.os_acc.state_path
    run = os_acc_command.Command(state, capsys, monkeypatch)
    assert run.fine(*words).out == f'{said}\n'
    assert run.fine(*words).out == 'already programmed\n'


def test_a_function_that_the_request_names(cards, image):
    assert os_acc.program_device(USER, user_image(image), 'aes')
    assert records() == [('programmed', 'aes')]
    assert os_acc.program_device(USER, user_image(image), 'aes') is False


def test_an_image_without_its_extension(cards, image):
    """A download from Glance has another name."""
    path = image('0b4f6d', vendor_tools.xclbin(IMAGE, SHELL))
    assert os_acc.program_device(USER, path)
    (call,) = cards.calls()
    assert call[-1].endswith('/0b4f6d.xclbin')


@pytest.mark.parametrize(
    ('values', 'reason'),
    [
        (
            {'interface': OTHER_SHELL},
            f'with interface {OTHER_SHELL}, the card at {USER} has {SHELL}',
        ),
        ({'kind': vendor_tools.MCS}, 'no user logic'),
        ({'mode': 5}, 'for an emulation'),
        ({'own': '00000000-0000-0000-0000-000000000000'}, 'no UUID'),
    ],
)
def test_an_image_that_does_not_fit(cards, image, values, reason):
    text = refused(exception.BitstreamError, user_image(image, **values))
    assert reason in text
    # The card was not touched.
    assert cards.calls() == []
    assert records() == []


@pytest.mark.parametrize(
    ('change', 'reason'),
    [
        (lambda content: b'aes', "does not begin with 'xclbin2'"),
        (lambda content: content[:100], "does not begin with 'xclbin2'"),
        (lambda content: b'xclbin0' + content[7:], 'does not begin'),
        (lambda content: content + b'x', 'its header says 541'),
        (
            lambda content: content[:448] + b'\xff' * 4 + content[452:],
            '4294967295 sections',
        ),
        (
            lambda content: content[:448] + b'\x20\0\0\0' + content[452:],
            'ends before its last section header',
        ),
        (
            lambda content: content[:480] + b'\xff' * 8 + content[488:],
            'goes beyond its end',
        ),
    ],
)
def test_a_damaged_image(cards, image, change, reason):
    content = vendor_tools.xclbin(IMAGE, SHELL)
    path = image('aes.xclbin', change(content))
    assert reason in refused(exception.BitstreamError, path)
    assert cards.calls() == []
    assert records() == []


@pytest.mark.parametrize(
    ('platform', 'timestamp', 'fits'),
    [
        ('xilinx:u200:xdma:201830.2', 1542252769, True),
        ('xilinx_u200_xdma_201830_2', 1542252769, True),
        ('xilinx_u200_xdma_201830_2', 7, False),
        ('xilinx_u250_xdma_201830_2', 1542252769, False),
    ],
)
def test_an_older_shell(cards, image, kernel, platform, timestamp, fits):
    """It has no interfaces. The image may have the UUID of its ROM."""
    directory = kernel.pci / 'devices' / CARD
    (directory / 'interface_uuids').unlink()
    rom = directory / 'rom.m.15204352'
    rom.mkdir()
    (rom / 'VBNV').write_text('xilinx_u200_xdma_201830_2\n')
    (rom / 'timestamp').write_text('1542252769\n')
    values = {'platform': platform, 'timestamp': timestamp}
    for number, interface in enumerate((None, OTHER_SHELL)):
        own = f'0a1b2c3d-0000-4000-8000-00000000000{number}'
        path = user_image(image, own=own, interface=interface, **values)
        if fits:
            assert os_acc.program_device(USER, path)
        else:
            text = refused(exception.BitstreamError, path)
            assert f'linked for platform {platform!r} of {timestamp}' in text
            assert cards.calls() == []


def test_a_card_that_does_not_show_its_shell(cards, image, kernel):
    (kernel.pci / 'devices' / CARD / 'interface_uuids').unlink()
    for interface in (SHELL, None):
        path = user_image(image, interface=interface)
        text = refused(exception.DeviceError, path)
        assert 'neither interface_uuids nor rom.*/VBNV has a value' in text
    assert cards.calls() == []
    assert records() == []


def test_a_card_without_drivers(cards, image, kernel):
    for address, driver in ((CARD, 'xclmgmt'), (USER, 'xocl')):
        kernel.write(f'{kernel.pci}/drivers/{driver}/unbind', address)
    text = refused(exception.DeviceError, user_image(image))
    assert "install XRT's drivers" in text
    assert records() == []


def test_a_host_without_the_tools(cards, image):
    cards.install('fpgaconf')
    text = refused(exception.DeviceError, user_image(image))
    assert f'{cards.path("xbmgmt")}: there is no such command' in text
    assert records() == []


def test_a_card_in_use(cards, image, kernel):
    """A guest has .1, the image would be loaded through .0."""
    kernel.write(f'{kernel.pci}/drivers/xocl/unbind', USER)
    kernel.write(f'{kernel.pci}/devices/{USER}/driver_override', 'vfio-pci')
    kernel.write(f'{kernel.pci}/drivers_probe', USER)
    kernel.hold(kernel.node(USER))
    path = user_image(image)
    refused(exception.DeviceBusy, path)
    digest = bitstream(path).sha256
    # Root asks for itself.
    for act in (
        lambda: amd.check(USER, path),
        lambda: amd.program(USER, path, digest, 5.0),
    ):
        with pytest.raises(exception.DeviceBusy):
            act()
    assert cards.calls() == []


def test_root_checks_the_image_again(cards, image):
    path = user_image(image, interface=OTHER_SHELL)
    digest = bitstream(path).sha256
    with pytest.raises(exception.BitstreamError, match='linked for a shell'):
        amd.program(USER, path, digest, 5.0)
    with pytest.raises(exception.BitstreamError, match='it was changed'):
        amd.program(USER, path, '0' * 64, 5.0)
    with pytest.raises(exception.BitstreamError, match='none of'):
        amd.program(USER, '/etc/passwd', digest, 5.0)
    assert cards.calls() == []


def test_a_tool_of_xrt_that_fails(cards, image):
    cards.mode('fail')
    text = refused(exception.DeviceError, user_image(image))
    assert 'exit code 1' in text
    assert 'ERROR: the card does not answer' in text
    assert records() == [('error', IMAGE)]


def test_a_tool_of_xrt_that_hangs(cards, image):
    os_acc.CONF.set_override('program_timeout', 1.0, 'os_acc')
    cards.mode('hang')
    text = refused(exception.DeviceError, user_image(image))
    assert 'not done after 1 s, killed' in text
    assert records() == [('error', IMAGE)]
    cards.mode('ok')
    os_acc.CONF.set_override('program_timeout', 60.0, 'os_acc')
    assert os_acc.program_device(USER, user_image(image))


def test_a_tool_of_xrt_that_leaves_a_child(cards, image, kernel):
    """It may still be programming: the whole card stays busy."""
    os_acc.CONF.set_override('device_timeout', 0.2, 'os_acc')
    cards.mode('fork')
    assert os_acc.program_device(USER, user_image(image))
    path = user_image(image, own=OTHER_IMAGE)
    text = refused(exception.DeviceBusy, path)
    assert 'an earlier command for it has not ended' in text
    os.kill(int((cards.host / 'pid').read_text()), signal.SIGKILL)


def test_a_user_image_cannot_be_removed(cards, image):
    with pytest.raises(exception.DeviceError, match='at_unplug to keep'):
        make_programmer(USER).clear()


def diagnosis() -> list[tuple[str, str]]:
    driver = os_acc._get().extensions.drivers['fpga']
    return [
        (each.verdict, each.text)
        for each in driver.diagnose()
        if USER in each.subject
    ]


def test_the_doctor(cards, kernel):
    assert [verdict for verdict, _ in diagnosis()] == ['ok']
    cards.install('xbutil')
    ((verdict, text),) = diagnosis()
    assert verdict == 'error'
    assert f'{cards.path("xbmgmt")}: there is no such command' in text
    # Through the user function, this tool will do.
    kernel.write(f'{kernel.pci}/drivers/xclmgmt/unbind', CARD)
    assert [verdict for verdict, _ in diagnosis()] == ['ok']


def test_a_new_shell_is_given_out_after_the_reboot(tools, image, kernel):
    """xbmgmt says so, and that counts more than the entry of device_spec."""
    configure(base_entry(tools, activation='partial'))
    path = image('shell.xsabin', b'shell')
    assert os_acc.program_device(USER, path, 'shell')
    assert records() == [('reboot', 'shell')]
    wanted = devices.pci(USER)
    wanted.driver = 'fpga'
    with pytest.raises(exception.PlugException, match='cold reboot'):
        os_acc.plug(devices.instance(), [wanted])
    kernel.boot()
    (van,) = os_acc.plug(devices.instance(), [wanted])
    assert van.handle.address == USER
    assert len(tools.calls()) == 1

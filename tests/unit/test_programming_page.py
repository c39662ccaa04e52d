# SPDX-License-Identifier: Apache-2.0

"""Every code block of programming.rst is run by a test.

A test that runs a block has the marker ``shown`` with the block's page, its
language and a text that only this block has. It gets the block from the page
with pages.blocks(): a fixture in conftest.py checks that.
"""

from __future__ import annotations

import datetime
import re
import sys
import tomllib

import command
from oslo_utils import timeutils
import pages
import pytest
from stevedore import extension
import test_dfl
import test_documentation
import test_fpga_manager
import test_vendor_tools
import vendor as vendor_module

import os_acc
from os_acc import exception
from os_acc.programming import hooks

PAGE = 'programming.rst'

#: Besides this one, the modules with tests that run a block of the page.
MODULES = (
    test_dfl,
    test_documentation,
    test_fpga_manager,
    test_vendor_tools,
)


def marks(tests):
    """The arguments of the markers of test functions."""
    for name, test in tests.items():
        if name.startswith('test_') and callable(test):
            for mark in getattr(test, 'pytestmark', ()):
                if mark.name == 'shown':
                    yield mark.args


def test_every_block_is_run():
    run = set(marks(globals()))
    for module in MODULES:
        found = set(marks(vars(module)))
        assert found, module
        run |= found
    tested = set()
    for page, language, marker in run:
        assert page == PAGE
        (text,) = pages.blocks(page, language, marker)
        tested.add((language, text))
    shown = pages.all_blocks(PAGE)
    assert [block for block in shown if block not in tested] == []
    # There are no blocks that all_blocks() does not find.
    text = (pages.SOURCE / PAGE).read_text()
    assert len(re.findall('::$|code-block|literalinclude', text, re.M)) == (
        len(shown)
    )


@pytest.fixture
def run(capsys, monkeypatch):
    state = os_acc.CONF.os_acc.state_path
    return command.Command(state, capsys, monkeypatch)


def card(kernel, tmp_path, address):
    kernel.add_function(address, '8086:bcce', 0x120000, 'dfl-pci', totalvfs=4)
    tool = vendor_module.Vendor(tmp_path / 'vendor')
    tool.configure('single', address=address)
    os_acc.initialize()
    return tool


@pytest.mark.shown(PAGE, 'console', '--function')
def test_programming_ahead_of_time(kernel, tmp_path, run):
    (text,) = pages.blocks(PAGE, 'console', '--function')
    ((words, said),) = pages.steps(text)
    tool = card(kernel, tmp_path, words[2])
    function = words[words.index('--function') + 1]
    path = tool.bitstreams / 'aes.gbs'
    path.write_text(function)
    words[words.index('/srv/fpga/aes.gbs')] = str(path)
    assert run.fine(*words).out == f'{said}\n'
    assert tool.function() == function
    # The text below the block.
    assert run.fine(*words).out == 'already programmed\n'
    path.write_text(f'{function} ')  # a newer bitstream
    assert run.fine(*words).out == 'programmed\n'


@pytest.mark.shown(PAGE, 'console', 'device free')
def test_a_device_is_given_out_again(kernel, tmp_path, run):
    (text,) = pages.blocks(PAGE, 'console', 'device free')
    ((words, said),) = pages.steps(text)
    tool = card(kernel, tmp_path, words[2])
    tool.mode('fail')
    (when,) = re.findall(r'since (\S+): ', said)
    timeutils.set_time_override(datetime.datetime.fromisoformat(when))
    try:
        with pytest.raises(exception.DeviceError):
            os_acc.program_device(words[2], tool.bitstream('aes'), 'aes')
    finally:
        timeutils.clear_time_override()
    told = run.fine(*words).out
    assert said.endswith('its programming failed: ...')
    assert told.startswith(said.removesuffix('...'))
    assert 'exit code 3' in told
    tool.mode('ok')
    assert os_acc.program_device(words[2], tool.bitstream('aes'), 'aes')


@pytest.mark.shown(PAGE, 'toml', 'entry-points')
def test_a_hook_of_another_package(kernel, tmp_path, monkeypatch):
    (text,) = pages.blocks(PAGE, 'toml', 'entry-points')
    project = tomllib.loads(text)['project']
    (module, name) = project['entry-points'][hooks.GROUP]['placement'].split(
        ':'
    )
    package, _, submodule = module.partition('.')
    directory = tmp_path / 'site'
    (directory / package).mkdir(parents=True)
    (directory / package / f'{submodule}.py').write_text(
        f'events = []\n{name} = events.append\n'
    )
    test_documentation.install(directory, {'name': package, **project})
    monkeypatch.syspath_prepend(directory)
    # This process may have read the list before, and later tests must not get
    # the list of this one.
    cache = extension.ExtensionManager.ENTRY_POINT_CACHE
    monkeypatch.setitem(cache, hooks.GROUP, [])
    del cache[hooks.GROUP]
    tool = card(kernel, tmp_path, vendor_module.FPGA)
    try:
        os_acc.program_device(vendor_module.FPGA, tool.bitstream('aes'), 'aes')
        (event,) = sys.modules[module].events
    finally:
        for each in (module, package):
            sys.modules.pop(each, None)
    assert isinstance(event, hooks.ProgrammedEvent)
    assert (event.device, event.function_id, event.state) == (
        vendor_module.FPGA,
        'aes',
        hooks.PROGRAMMED,
    )

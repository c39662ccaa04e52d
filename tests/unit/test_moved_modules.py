# SPDX-License-Identifier: Apache-2.0

"""Modules of the documentation that drivers import from an earlier place."""

from __future__ import annotations

import importlib

import pytest

from os_acc.cli import app
from os_acc.kernel import chip
from os_acc.kernel import sysfs
from os_acc.kinds.fake.driver import driver as fake
from os_acc.privileged import notes
from os_acc.privileged import root_folder
from os_acc.spec import device_spec


@pytest.mark.parametrize('module', [chip, device_spec, root_folder, sysfs])
def test_the_earlier_place(module):
    name = module.__name__.rpartition('.')[2]
    earlier = importlib.import_module('os_acc.devices')
    with pytest.warns(DeprecationWarning, match=f'now {module.__name__}$'):
        # The same module: what a test replaces in one is replaced in both.
        assert getattr(earlier, name) is module


def test_an_import_statement():
    with pytest.warns(DeprecationWarning, match='os_acc.kernel.sysfs'):
        from os_acc.devices import sysfs as found
    assert found is sysfs


def test_notes_by_their_earlier_name():
    with pytest.warns(DeprecationWarning, match='os_acc.privileged.notes'):
        from os_acc.privileged import held
    assert held is notes


def test_the_fake_driver_by_its_earlier_place():
    with pytest.warns(DeprecationWarning, match='os_acc.kinds.fake'):
        earlier = importlib.import_module('os_acc.drivers.fake.driver')
    assert earlier.FakeDriver is fake.FakeDriver


def test_the_command_by_its_earlier_place():
    os_acc_command = importlib.import_module('os_acc_command')
    assert os_acc_command.main is app.main


def test_what_was_never_there():
    with pytest.raises(ImportError, match='cannot import name'):
        from os_acc.devices import anything
    with pytest.raises(ImportError, match='cannot import name'):
        from os_acc.privileged import anything  # noqa: F401

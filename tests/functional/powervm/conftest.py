# SPDX-License-Identifier: Apache-2.0

"""A PowerVM host: os-acc with a simulated NovaLink on the loopback."""

from __future__ import annotations

import gc

import novalink
import pytest

from acc_plug_powervm import OPTS
from acc_plug_powervm import PowerVMPlugin
import os_acc
from os_acc import powervm


@pytest.fixture
def link():
    with novalink.NovaLink() as made:
        yield made


@pytest.fixture
def host(link, tmp_path, monkeypatch):
    """An initialized os_acc, and its NovaLink."""
    monkeypatch.setattr(os_acc, '_host', None)
    powervm.close()
    conf = os_acc.CONF
    conf([], project='os-acc', default_config_files=[])
    PowerVMPlugin.load('powervm')
    overrides = {
        ('os_acc', 'state_path'): str(tmp_path / 'state'),
        ('os_acc', 'plugin'): 'powervm',
        ('os_acc_powervm', 'port'): link.port,
        ('os_acc_powervm', 'request_timeout'): 5,
        ('os_acc_powervm', 'rmc_timeout'): 1.0,
    }
    for (group, name), value in overrides.items():
        conf.set_override(name, value, group)
    os_acc.initialize()
    yield link
    os_acc._host.close()
    # Log off while the NovaLink still runs.
    powervm.close()
    gc.collect()
    for group, name in overrides:
        conf.clear_override(name, group)
    for option in OPTS:
        conf.clear_override(option.dest, 'os_acc_powervm')
    conf.clear_override('discover', 'os_acc_drc')

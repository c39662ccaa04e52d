# SPDX-License-Identifier: Apache-2.0

"""The mdevs that Nova's own driver has made are removed from libvirt."""

from __future__ import annotations

import logging
from unittest import mock
import uuid

import nova_double
import pytest

INSTANCE = str(uuid.UUID(int=1))
MDEV = str(uuid.UUID(int=2))
NAME = f'mdev_{MDEV.replace("-", "_")}_0000_84_00_0'


def arq(kind='MDEV'):
    return {
        'attach_handle_type': kind,
        'attach_handle_uuid': MDEV,
        'attach_handle_info': {
            'domain': '0000',
            'bus': '84',
            'device': '00',
            'function': '0',
            'asked_type': 'nvidia-223',
        },
    }


@pytest.fixture
def remove(monkeypatch, tmp_path):
    nova_double.install(monkeypatch, tmp_path)
    from os_acc_nova import node_devices

    yield node_devices.remove
    nova_double.uninstall()


@pytest.fixture
def host():
    made = nova_double.Hypervisor()
    device = made.node_devices[NAME] = mock.Mock()
    device.isPersistent.return_value = True
    device.isActive.return_value = True
    return made


def acts(host):
    calls = host.node_devices[NAME].method_calls
    return [name for name, _, _ in calls if not name.startswith('is')]


def test_the_definition_goes_last(remove, host):
    remove(host, INSTANCE, [arq()])
    assert acts(host) == ['destroy', 'undefine']


def test_an_interrupted_removal_is_finished(remove, host):
    host.node_devices[NAME].isActive.return_value = False
    remove(host, INSTANCE, [arq()])
    assert acts(host) == ['undefine']


def test_an_mdev_that_nova_has_not_defined_is_left_alone(remove, host):
    host.node_devices[NAME].isPersistent.return_value = False
    remove(host, INSTANCE, [arq()])
    assert acts(host) == []


def test_other_devices_are_left_alone(remove, host):
    remove(host, INSTANCE, [arq('PCI')])
    assert host.node_devices[NAME].method_calls == []


def test_an_mdev_that_libvirt_does_not_know(remove, host, caplog):
    host.node_devices.clear()
    remove(host, INSTANCE, [arq()])
    assert caplog.records == []


def test_a_failure_is_told_with_what_to_do(remove, host, caplog):
    host.node_devices[NAME].destroy.side_effect = nova_double.LibvirtError(
        'busy', 1
    )
    remove(host, INSTANCE, [arq(), arq('PCI')])
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f'virsh nodedev-undefine {NAME}' in record.getMessage()
    assert 'busy' in record.getMessage()
    assert acts(host) == ['destroy']

# SPDX-License-Identifier: Apache-2.0

"""Who has a device open: processes that see another /dev, or are killed."""

from __future__ import annotations

import lab_devices
import pytest
import use

import os_acc
from os_acc import exception
from os_acc.kernel import pci
from os_acc.kernel import vfio
from os_acc.privileged.kernel import vfio_binding


@pytest.fixture
def bound(configured, snapshot):
    """Another program has bound a function to VFIO; the path of its file."""
    before = snapshot()
    there = vfio.Binding.of(pci.get(lab_devices.PLAIN))
    vfio_binding.bind(lab_devices.PLAIN, 'vfio-pci', 30)
    yield use.group_file(lab_devices.PLAIN)
    vfio_binding.restore(lab_devices.PLAIN, there, 30)
    assert snapshot() == before


@pytest.mark.parametrize('name', ['gpu0', 'null'])
@pytest.mark.parametrize('unlink', [False, True])
def test_a_container_has_it_open(bound, name, unlink):
    """The path in the container means nothing on the host."""
    holder = use.Contained(bound, name, unlink)
    try:
        with pytest.raises(exception.PlugException) as err:
            os_acc.plug(use.instance(), [use.pci_request(lab_devices.PLAIN)])
    finally:
        holder.end()
    assert isinstance(err.value.__cause__, exception.DeviceBusy)
    assert f'process {holder.pid} (' in str(err.value)
    assert f' has {bound} open' in str(err.value)


@pytest.mark.parametrize(
    'start, says',
    [
        (lambda path: use.Contained(path, 'vfio', True), 'process {} ('),
        (use.Posted, 'is still open, although no process shows it'),
    ],
)
def test_unplug_waits_for_it(configured, snapshot, start, says):
    before, instance = snapshot(), use.instance()
    os_acc.plug(instance, [use.pci_request(lab_devices.PLAIN)])
    there = snapshot()
    holder = start(use.group_file(lab_devices.PLAIN))
    try:
        with pytest.raises(exception.UnplugException) as err:
            os_acc.unplug(instance)
    finally:
        holder.end()
    assert isinstance(err.value.__cause__, exception.DeviceBusy)
    assert says.format(holder.pid) in str(err.value)
    assert there[lab_devices.PLAIN]['driver'] == 'vfio-pci'
    assert os_acc.unplug(instance) == 1
    assert snapshot() == before


def test_a_guest_that_is_killed(configured, snapshot):
    """The kernel closes the files of a killed process in its own time."""
    before, instance = snapshot(), use.instance()
    configured.set_override('release_timeout', 30.0, 'os_acc')
    os_acc.plug(instance, [use.pci_request(lab_devices.PLAIN)])
    guest = use.Guest(lab_devices.PLAIN)
    with pytest.raises(exception.UnplugException):
        configured.set_override('release_timeout', 0.5, 'os_acc')
        os_acc.unplug(instance)
    configured.set_override('release_timeout', 30.0, 'os_acc')
    guest.end()
    assert os_acc.unplug(instance) == 1
    assert snapshot() == before

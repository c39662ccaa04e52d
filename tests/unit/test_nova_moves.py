# SPDX-License-Identifier: Apache-2.0

"""Moves of an instance in the compute driver, without Cyborg.

The stand-in for Nova is one host. So the source's half and the target's half
are tested one by one; tests/functional_nova has both.
"""

from __future__ import annotations

import datetime
import json
import sys
import types
import uuid

import nova_double
from oslo_utils import timeutils
import pytest
import test_nova_allocations
from test_nova_allocations import TWO
from test_nova_allocations import image
from test_nova_allocations import on
from test_nova_allocations import spawn
from test_nova_allocations import two
import test_nova_driver

import os_acc
from os_acc import exception
from os_acc import migration
from os_acc import objects

site = test_nova_driver.site
offer = test_nova_allocations.offer
HERE, THERE = 'node-1', 'node-2'


def states(instance):
    return [van.state for van in os_acc.get_vans(instance.uuid)]


@pytest.fixture
def live(site, monkeypatch):
    """The driver and the plugin can detach and attach."""
    monkeypatch.setattr(type(site.host.driver), 'moves', 'replug')
    monkeypatch.setattr(type(site.host.plugin), 'supports_live', True)
    monkeypatch.setattr(
        type(site.host.plugin),
        'runs_guest',
        lambda plugin, info: (
            info.uuid in site.driver.domains
            and site.driver.domains[info.uuid].state == nova_double.RUNNING
        ),
    )


@pytest.fixture
def booted(site, offer):
    instance = two()
    spawn(site, instance, on(**TWO))
    site.records.instances[instance.uuid] = instance
    site.placement.allocations = on(**TWO)
    instance.node = instance.host = HERE
    site.log.clear()
    return instance


def move_of(site, instance, source=HERE, dest=THERE):
    made = types.SimpleNamespace(
        uuid=str(uuid.uuid4()),
        source_node=source,
        dest_node=dest,
        source_compute=source,
        dest_compute=dest,
    )
    site.records.migrations[7] = made
    instance.migration_context = types.SimpleNamespace(migration_id=7)
    return made


def stop(site, instance):
    site.driver.migrate_disk_and_power_off(None, instance, THERE, None, [])


def finish(site, instance, move, allocations):
    site.driver.finish_migration(
        None, move, instance, '[]', [], image(), True, allocations
    )


def test_the_source_confirms(site, booted):
    move = move_of(site, booted)
    stop(site, booted)
    assert states(booted) == ['outgoing'] * 2
    site.driver.confirm_migration(None, move, booted, [])
    assert states(booted) == []
    # Nothing is left to do, and an instance without any is fine.
    site.driver.confirm_migration(None, move, booted, [])


def test_the_source_reverts(site, booted):
    move = move_of(site, booted)
    stop(site, booted)
    site.log.clear()
    site.driver.finish_revert_migration(None, booted, [], move)
    assert states(booted) == ['plugged'] * 2
    # The devices were never given away.
    assert 'prepareVAN' not in site.log


def test_an_instance_without_accelerators(site, offer):
    instance = test_nova_allocations.instance_of()
    stop(site, instance)
    assert site.log == ['migrate disk', 'destroy']


def test_a_failed_copy_leaves_them_to_the_source(site, booted):
    move_of(site, booted)
    site.driver.fail_at = 'migrate disk'
    with pytest.raises(RuntimeError, match='no'):
        stop(site, booted)
    assert states(booted) == ['plugged'] * 2


def test_what_the_flavor_does_not_request_does_not_move(site, booted):
    move_of(site, booted)
    by_hand = objects.AcceleratorRequest(uuid=uuid.uuid4(), driver='recording')
    os_acc.plug(objects.InstanceInfo(uuid=booted.uuid), [by_hand])
    with pytest.raises(
        nova_double.InstanceFaultRollback, match=by_hand.uuid
    ) as caught:
        stop(site, booted)
    assert isinstance(
        caught.value.inner_exception, nova_double.MigrationPreCheckError
    )
    assert site.driver.domains[booted.uuid].state == nova_double.RUNNING
    assert states(booted) == ['plugged'] * 3
    with pytest.raises(nova_double.MigrationPreCheckError, match=by_hand.uuid):
        site.driver.check_can_live_migrate_source(
            None, booted, nova_double.LiveMigrateData()
        )


def test_a_refused_hand_over_leaves_the_guest_running(site, booted):
    other = move_of(site, booted)
    info = objects.InstanceInfo(uuid=booted.uuid)
    migration.hand_over(info, other.uuid)
    move_of(site, booted)
    with pytest.raises(nova_double.InstanceFaultRollback, match=other.uuid):
        stop(site, booted)
    assert site.driver.domains[booted.uuid].state == nova_double.RUNNING


def test_the_target_of_a_resize(site, offer):
    instance = two()
    finish(site, instance, move_of(site, instance, THERE, HERE), on(**TWO))
    assert states(instance) == ['plugged'] * 2
    # The resize is reverted.
    site.driver.destroy(None, instance, [])
    assert states(instance) == []


def test_a_failed_resize_leaves_nothing_on_the_target(site, offer):
    instance = two()
    site.driver.fail_at = 'launch'
    with pytest.raises(RuntimeError, match='no'):
        finish(site, instance, move_of(site, instance, THERE, HERE), on(**TWO))
    assert states(instance) == []


def test_a_resize_on_one_host(site, booted):
    move = move_of(site, booted, HERE, HERE)
    stop(site, booted)
    assert states(booted) == ['plugged'] * 2
    booted.flavor.extra_specs = {'resources:CUSTOM_DSA': '1'}
    finish(site, booted, move, on(CUSTOM_DSA=1))
    assert test_nova_allocations.plugged(booted) == [('CUSTOM_DSA', [])]
    site.driver.confirm_migration(None, move, booted, [])
    assert states(booted) == ['plugged']


def test_a_hard_reboot_takes_back_what_was_handed_over(site, booted):
    move_of(site, booted)
    stop(site, booted)
    # Nova says that the guest is here: the target has not begun.
    site.driver.reboot(None, booted, [], 'HARD')
    assert states(booted) == ['plugged'] * 2


def test_what_is_left_behind_is_released_in_the_end(site, booted):
    move_of(site, booted)
    stop(site, booted)

    def periodic():
        site.driver.get_available_resource(HERE)
        return states(booted)

    # The instance is here; it is there, but the move may be reverted.
    site.placement.allocations = {}
    assert periodic() == ['outgoing'] * 2
    booted.node = booted.host = THERE
    site.placement.allocations = on(**TWO)
    assert periodic() == ['outgoing'] * 2
    site.placement.allocations = nova_double.ConsumerAllocationRetrievalFailed(
        error='it is down'
    )
    assert periodic() == ['outgoing'] * 2
    site.placement.allocations = {}
    assert periodic() == []


def test_an_instance_that_was_evacuated_to_a_third_host(site, booted):
    """Nova keeps the allocation of the source."""
    move = move_of(site, booted)
    stop(site, booted)
    booted.node = booted.host = 'node-3'
    move.dest_compute = None  # Nova has not chosen it yet
    site.driver.get_available_resource(HERE)
    assert states(booted) == ['outgoing'] * 2
    move.dest_compute = THERE
    site.driver.get_available_resource(HERE)
    assert states(booted) == []


def test_what_a_deleted_instance_has_left_behind(site, booted):
    move_of(site, booted)
    stop(site, booted)
    site.records.instances.clear()
    site.placement.allocations = {}
    site.driver.get_available_resource(HERE)
    assert states(booted) == []


def test_a_revert_while_what_is_left_behind_is_looked_for(
    site, booted, monkeypatch
):
    """Nova writes that the instance is here, then gives the allocation back,
    then calls the driver."""
    from os_acc_nova import allocations

    move = move_of(site, booted)
    stop(site, booted)
    booted.node = booted.host = THERE
    read = allocations.read

    def reverted(context, consumer):
        booted.node = booted.host = HERE
        with monkeypatch.context() as patch:
            patch.setattr(site.placement, 'allocations', {})
            return read(context, consumer)

    monkeypatch.setattr(allocations, 'read', reverted)
    site.driver.get_available_resource(HERE)
    assert states(booted) == ['outgoing'] * 2
    monkeypatch.setattr(allocations, 'read', read)
    site.log.clear()
    site.driver.finish_revert_migration(None, booted, [], move)
    assert states(booted) == ['plugged'] * 2
    assert 'prepareVAN' not in site.log


def test_what_others_move_is_theirs(site, offer, monkeypatch):
    """os-acc migrate moves a guest that Nova and Placement do not know."""
    info = objects.InstanceInfo(uuid=str(uuid.uuid4()))
    request = objects.AcceleratorRequest(uuid=uuid.uuid4(), driver='recording')
    with monkeypatch.context() as patch:
        patch.setattr(os_acc.this_host(), 'owner', 'os-acc')
        os_acc.plug(info, [request])
    move = str(uuid.uuid4())
    migration.hand_over(info, move)
    site.driver.get_available_resource(HERE)
    assert states(info) == ['outgoing']
    assert migration.abort(info, move) == 1


class Live:
    """A live migration from this host to itself, one half after the other."""

    def __init__(self, site, instance) -> None:
        self.site, self.instance = site, instance
        self.driver = site.driver
        self.data = nova_double.LiveMigrateData()
        self.move = move_of(site, instance)
        self.recovered = []

    def offer(self):
        return self.driver.check_can_live_migrate_source(
            None, self.instance, self.data
        )

    def check(self):
        return self.driver.check_source_migrate_data_at_dest(
            None, self.instance, self.data, self.move, None, on(**TWO)
        )

    def prepare(self):
        self.driver.pre_live_migration(
            None, self.instance, {}, [], None, self.data
        )

    def begin(self):
        self.driver.live_migration(
            None,
            self.instance,
            'host-2',
            None,
            lambda *args, **kwargs: self.recovered.append(args),
            migrate_data=self.data,
        )


def test_live_the_source(site, live, booted):
    moved = Live(site, booted)
    moved.offer()
    moved.data.target_mdevs = {'os_acc': moved.move.uuid}
    moved.begin()
    assert states(booted) == ['outgoing'] * 2
    assert site.log[-1] == 'live migration'
    assert site.log.count('unplug') == 2
    site.driver.rollback_live_migration_at_source(None, booted, moved.data)
    assert states(booted) == ['plugged'] * 2
    moved.begin()
    del site.driver.domains[booted.uuid]
    site.driver.cleanup(None, booted, [], migrate_data=moved.data)
    assert states(booted) == []


def uuids(instance):
    return json.dumps([van.uuid for van in os_acc.get_vans(instance.uuid)])


def test_live_what_was_plugged_meanwhile_does_not_move(site, live, booted):
    """The target has prepared nothing for it."""
    moved = Live(site, booted)
    moved.offer()
    moved.data.target_mdevs = {
        'os_acc': moved.move.uuid,
        'os_acc_vans': uuids(booted),
    }
    by_hand = objects.AcceleratorRequest(uuid=uuid.uuid4(), driver='recording')
    os_acc.plug(objects.InstanceInfo(uuid=booted.uuid), [by_hand])
    moved.begin()
    assert f'VAN {by_hand.uuid} was plugged' in site.records.faults[0]
    assert states(booted) == ['plugged'] * 3
    assert 'live migration' not in site.log
    os_acc.unplug(objects.InstanceInfo(uuid=booted.uuid), [by_hand.uuid])
    moved.begin()
    assert states(booted) == ['outgoing'] * 2


def test_live_the_target(site, live, booted):
    moved = Live(site, booted)
    moved.offer()
    site.driver.destroy(None, booted, [])
    moved.check()
    moved.prepare()
    assert states(booted) == ['incoming'] * 2
    # Nova looks in it for the UUIDs of mdevs.
    assert moved.data.target_mdevs == {
        'os_acc': moved.move.uuid,
        'os_acc_vans': uuids(booted),
    }
    site.driver.rollback_live_migration_at_destination(None, booted, [], {})
    assert states(booted) == []


@pytest.fixture
def incoming(site, live, booted):
    """An instance that moves to this host, where its target is prepared."""
    moved = Live(site, booted)
    moved.offer()
    site.driver.destroy(None, booted, [])
    moved.move.source_compute, moved.move.dest_compute = THERE, HERE
    booted.node = booted.host = THERE
    moved.check()
    moved.prepare()
    site.driver.get_available_resource(HERE)
    assert states(booted) == ['incoming'] * 2
    return booted


def test_live_it_is_evacuated_to_the_target(site, incoming):
    spawn(site, incoming, on(**TWO))
    assert states(incoming) == ['plugged'] * 2


def test_live_it_is_evacuated_to_a_third_host(site, incoming):
    incoming.node = incoming.host = 'node-3'
    site.driver.get_available_resource(HERE)
    assert states(incoming) == []


def test_live_it_is_deleted_when_the_target_is_prepared(
    site, incoming, monkeypatch
):
    site.records.instances.clear()
    site.placement.allocations = {}
    begun = os_acc.get_vans(incoming.uuid)[0].created_at
    limit = os_acc.CONF.os_acc.migration_timeout

    def states_after(seconds):
        now = begun + datetime.timedelta(seconds=seconds)
        monkeypatch.setattr(timeutils, 'utcnow', lambda with_timezone: now)
        site.driver.get_available_resource(HERE)
        return states(incoming)

    assert states_after(limit - 60) == ['incoming'] * 2
    assert states_after(limit + 60) == []


def test_live_the_target_attaches(site, live, booted):
    moved = Live(site, booted)
    moved.offer()
    site.driver.destroy(None, booted, [])
    moved.check()
    moved.prepare()
    site.log.clear()
    site.driver.post_live_migration_at_destination(None, booted, [])
    assert states(booted) == ['plugged'] * 2
    assert site.log.count('plug') == 2
    assert all(e.live for e in os_acc._host.journal.entries(booted.uuid))


def test_live_the_target_does_not_attach(site, live, booted):
    moved = Live(site, booted)
    moved.offer()
    site.driver.destroy(None, booted, [])
    moved.check()
    moved.prepare()
    site.fails('plug', exception.HypervisorError(what='x', reason='no slot'))
    site.driver.post_live_migration_at_destination(None, booted, [])
    assert booted.vm_state == 'error'
    assert 'no slot' in site.records.faults[0]
    assert states(booted) == ['incoming'] * 2
    # A hard reboot prepares what Placement has allocated anew.
    site.host.calls.on('plug', lambda van: None)
    site.driver.reboot(None, booted, [], 'HARD')
    assert states(booted) == ['plugged'] * 2


def test_live_a_failed_target_prepares_nothing(site, live, booted):
    moved = Live(site, booted)
    moved.offer()
    site.driver.destroy(None, booted, [])
    moved.check()
    site.driver.fail_at = 'pre live migration'
    with pytest.raises(RuntimeError, match='no'):
        moved.prepare()
    assert states(booted) == []


def test_live_the_target_lacks_a_device(site, live, booted, offer):
    moved = Live(site, booted)
    moved.offer()
    site.driver.destroy(None, booted, [])
    del offer[1]
    with pytest.raises(nova_double.MigrationPreCheckError, match='CUSTOM_DSA'):
        moved.check()


def test_live_a_target_with_another_driver(site, live, booted):
    """Nova's own driver prepares nothing."""
    moved = Live(site, booted)
    moved.offer()
    moved.begin()
    assert len(moved.recovered) == 1
    assert 'os_acc.LibvirtDriver' in site.records.faults[0]
    assert states(booted) == ['plugged'] * 2
    assert 'live migration' not in site.log


def test_live_a_guest_that_does_not_get_them_back(site, live, booted):
    moved = Live(site, booted)
    moved.data.target_mdevs = {'os_acc': moved.move.uuid}
    moved.begin()
    site.fails('plug', exception.HypervisorError(what='x', reason='no slot'))
    site.driver.rollback_live_migration_at_source(None, booted, moved.data)
    assert 'no slot' in site.records.faults[0]
    assert states(booted) == ['outgoing'] * 2
    site.host.calls.on('plug', lambda van: None)
    site.driver.reboot(None, booted, [], 'HARD')
    assert states(booted) == ['plugged'] * 2


@pytest.mark.parametrize(
    ('extra', 'text'),
    [
        ({'os_acc:migration': 'cold'}, 'os_acc:migration=cold'),
        ({'os_acc:migration': 'live'}, 'by replug only'),
        ({'os_acc:migration': 'warm'}, "os_acc:migration is 'warm'"),
    ],
)
def test_live_is_refused_by_the_flavor(site, live, booted, extra, text):
    booted.flavor.extra_specs |= extra
    with pytest.raises(nova_double.MigrationPreCheckError, match=text):
        Live(site, booted).offer()


def test_live_is_refused_by_the_kind(site, booted):
    with pytest.raises(
        nova_double.MigrationPreCheckError, match='cannot be detached'
    ):
        Live(site, booted).offer()


def test_live_without_accelerators(site, live):
    instance = test_nova_allocations.instance_of()
    moved = Live(site, instance)
    moved.offer()
    moved.check()
    moved.prepare()
    moved.begin()
    site.driver.post_live_migration_at_destination(None, instance, [])
    assert 'target_mdevs' not in moved.data
    assert site.records.faults == []


# --- live, with the devices


@pytest.fixture
def keeps(site, live, monkeypatch):
    """The kernel can save the state of the devices."""
    monkeypatch.setattr(type(site.host.driver), 'moves', 'live')
    monkeypatch.setattr(
        type(site.host.plugin),
        'migration_map',
        lambda *_: objects.MigrationMap(format='recording', changes=[]),
    )

    def answer(value):
        def prepared(van):
            van.live_migratable = value

        site.host.calls.on('prepareVAN', prepared)

    answer(True)
    return answer


def names(instance):
    return [
        van.handle.identity.partition('/')[2]
        for van in os_acc.get_vans(instance.uuid)
    ]


def test_live_the_target_tells_nova_what_to_write(site, keeps, booted):
    moved = Live(site, booted)
    moved.offer()
    source = names(booted)
    site.driver.destroy(None, booted, [])
    moved.check()
    moved.data.pci_dev_map_src_dst = {'0000:01:00.0': '0000:02:00.0'}
    moved.prepare()
    assert moved.data.target_mdevs == {
        'os_acc': moved.move.uuid,
        'os_acc_mapped': moved.move.uuid,
        'os_acc_vans': uuids(booted),
    }
    assert moved.data.pci_dev_map_src_dst == {
        '0000:01:00.0': '0000:02:00.0',
        **dict(zip(source, names(booted), strict=True)),
    }
    assert states(booted) == ['incoming'] * 2


def test_live_the_source_detaches_nothing(site, keeps, booted):
    moved = Live(site, booted)
    moved.data.target_mdevs = {
        'os_acc': moved.move.uuid,
        'os_acc_mapped': moved.move.uuid,
    }
    moved.begin()
    assert states(booted) == ['outgoing'] * 2
    site.driver.rollback_live_migration_at_source(None, booted, moved.data)
    assert states(booted) == ['plugged'] * 2
    assert not {'plug', 'unplug', 'prepareVAN'} & set(site.log)


def test_live_an_earlier_target_replugs(site, keeps, booted):
    """It says nothing of a map, so that the devices must not stay."""
    moved = Live(site, booted)
    moved.offer()
    moved.data.target_mdevs |= {'os_acc': moved.move.uuid}
    moved.begin()
    assert site.log.count('unplug') == 2


def test_live_a_target_whose_kernel_cannot(site, keeps, booted):
    moved = Live(site, booted)
    moved.offer()
    site.driver.destroy(None, booted, [])
    moved.check()
    keeps(False)
    with pytest.raises(Exception, match='the kernel cannot migrate'):
        moved.prepare()
    assert states(booted) == []


@pytest.mark.parametrize(
    ('asked', 'post_copy', 'keeps_them'),
    [
        (None, False, True),
        ('live', False, True),
        ('replug', False, False),
        (None, True, False),
        ('replug', True, False),
    ],
)
def test_live_or_replug(
    site, keeps, booted, monkeypatch, asked, post_copy, keeps_them
):
    conf = moving_driver().CONF.libvirt
    monkeypatch.setattr(conf, 'live_migration_permit_post_copy', post_copy)
    if asked is not None:
        booted.flavor.extra_specs['os_acc:migration'] = asked
    moved = Live(site, booted)
    moved.offer()
    assert ('os_acc_source' in moved.data.target_mdevs) is keeps_them


def moving_driver():
    return sys.modules['os_acc_nova.moving_driver']


def test_live_and_post_copy_exclude_each_other(
    site, keeps, booted, monkeypatch
):
    conf = moving_driver().CONF.libvirt
    monkeypatch.setattr(conf, 'live_migration_permit_post_copy', True)
    booted.flavor.extra_specs['os_acc:migration'] = 'live'
    with pytest.raises(
        nova_double.MigrationPreCheckError, match='permit_post_copy = true'
    ):
        Live(site, booted).offer()


def test_live_nova_moves_its_own_mdevs_only(site, keeps, booted):
    ours = names(booted)
    moved = Live(site, booted)
    moved.data.source_mdev_types = {ours[0]: 'mtty-1', 'another': 'nvidia-1'}
    moved.offer()
    assert moved.data.source_mdev_types == {'another': 'nvidia-1'}

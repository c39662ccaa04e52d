# SPDX-License-Identifier: Apache-2.0

"""The simulated NovaLink, tested with pypowervm alone, without os-acc."""

from __future__ import annotations

from concurrent import futures
import gc
import time
import uuid

import pytest

pytest.importorskip('pypowervm')

import novalink as nl
from pypowervm import adapter as pvm_adapter
from pypowervm import exceptions as pvm_exc
from pypowervm.helpers import vios_busy
from pypowervm.utils import lpar_builder
from pypowervm.utils import transaction
from pypowervm.wrappers import base_partition
from pypowervm.wrappers import logical_partition
from pypowervm.wrappers import managed_system

SLOT = nl.FREE_SLOTS[0]
LPAR = logical_partition.LPAR


@pytest.fixture
def novalink():
    with nl.NovaLink() as server:
        yield server


@pytest.fixture
def adapter(novalink):
    return nl.session(novalink)


def inventory(adapter) -> dict:
    [system] = managed_system.System.get(adapter)
    return {slot.drc_index: slot for slot in system.asio_config.io_slots}


def slot(adapter, drc_index: int = SLOT):
    return base_partition.IOSlot.bld(adapter, False, drc_index)


def add(adapter, lpar_uuid: str, *drc_indexes: int, **update):
    lpar = LPAR.get(adapter, uuid=lpar_uuid)
    for drc_index in drc_indexes:
        lpar.io_config.io_slots.append(slot(adapter, drc_index))
    return lpar.update(**update)


@transaction.entry_transaction
def add_in_transaction(lpar, drc_index: int = SLOT):
    lpar.io_config.io_slots.append(slot(lpar.adapter, drc_index))
    return lpar.update()


def getter(adapter, lpar_uuid: str = nl.RUNNING[0]):
    return LPAR.getter(adapter, entry_uuid=lpar_uuid)


def test_logon_makes_a_session_that_is_no_hmcs(novalink, adapter):
    assert adapter.session.use_file_auth
    assert adapter.session.mc_type == 'PVM'
    assert adapter.traits.local_api
    assert novalink.requests == [('PUT', '/rest/api/web/Logon')]
    assert novalink.writes() == []


def test_a_session_that_is_lost_logs_off_and_its_token_is_void(
    novalink, adapter
):
    lost = pvm_adapter.Session(port=novalink.port)
    token = lost._sessToken
    del lost
    gc.collect()
    assert novalink.requests[-1] == ('DELETE', '/rest/api/web/Logon')
    adapter.session._sessToken = token
    LPAR.get(adapter, uuid=nl.NO_RMC)  # 401, log on, again
    assert adapter.session._sessToken != token
    assert novalink.writes() == []


def test_the_managed_system_has_20_slots(adapter):
    slots = inventory(adapter)
    assert len(slots) == 20
    for drc_index in nl.FREE_SLOTS:
        assert slots[drc_index].part_uuid is None
    assert slots[SLOT].drc_name == 'U5294.001.CEC1234-P01-C013'
    assert slots[nl.VIOS_SLOT].part_name == 'vios1'
    assert slots[nl.VIOS_SLOT].part_uuid == nl.VIOS
    assert slots[nl.VIOS_SLOT].bus_grp_required
    assert nl.NO_SLOT not in slots


def test_the_lpars_and_their_states(adapter):
    lpars = {lpar.uuid: lpar for lpar in LPAR.get(adapter)}
    assert len(lpars) == 21
    running = {u for u, lpar in lpars.items() if lpar.state == 'running'}
    assert running == {*nl.RUNNING, nl.NO_RMC}
    assert {u for u in running if lpars[u].rmc_state == 'active'} == {
        *nl.RUNNING
    }
    assert not lpars[nl.NO_RMC].can_modify_io()[0]
    for lpar_uuid in nl.INACTIVE:
        assert lpars[lpar_uuid].state == 'not activated'
        assert lpars[lpar_uuid].can_modify_io() == (True, None)
    assert not any(lpar.io_config.io_slots for lpar in lpars.values())


def test_the_feed_and_the_entry_have_the_same_etag(adapter):
    for lpar in LPAR.get(adapter)[:3]:
        alone = LPAR.get(adapter, uuid=lpar.uuid.lower())
        assert alone.etag == lpar.etag
        assert alone.refresh() is alone  # 304


@pytest.mark.parametrize('lpar_uuid', [nl.RUNNING[0], nl.INACTIVE[0]])
def test_an_update_gives_the_slot_and_another_frees_it(
    novalink, adapter, lpar_uuid
):
    before = LPAR.get(adapter, uuid=lpar_uuid)
    after = add(adapter, lpar_uuid, SLOT)
    assert after.etag != before.etag
    assert after.etag == LPAR.get(adapter, uuid=lpar_uuid).etag
    [assigned] = after.io_config.io_slots
    assert assigned.drc_index == SLOT
    assert assigned.drc_name == 'U5294.001.CEC1234-P01-C013'
    owned = inventory(adapter)[SLOT]
    assert owned.part_uuid == lpar_uuid == novalink.owner_of(SLOT)
    assert (owned.part_id, owned.part_name) == (after.id, after.name)
    assert novalink.slots_of(lpar_uuid) == [SLOT]
    path = f'/rest/api/uom/LogicalPartition/{lpar_uuid}'
    assert novalink.writes() == [('POST', path)]
    assert str(SLOT) in novalink.bodies[0]
    assert str(SLOT) in novalink.lpar_xml(lpar_uuid)

    after.io_config.io_slots.remove(assigned)
    assert not after.update().io_config.io_slots
    assert inventory(adapter)[SLOT].part_uuid is None
    assert novalink.owner_of(SLOT) is None
    assert len(novalink.bodies) == 2


def test_a_slot_listed_twice_is_not_refused(novalink, adapter):
    add(adapter, nl.RUNNING[0], SLOT, SLOT)
    assert novalink.slots_of(nl.RUNNING[0]) == [SLOT, SLOT]
    assert inventory(adapter)[SLOT].part_uuid == nl.RUNNING[0]


@pytest.mark.parametrize('drc_index', [nl.VIOS_SLOT, nl.NO_SLOT, -1, SLOT])
def test_a_slot_of_somebody_elses_or_nowhere_is_refused(
    novalink, adapter, drc_index
):
    novalink.give(nl.RUNNING[1], SLOT)
    with pytest.raises(pvm_exc.HttpError) as caught:
        add(adapter, nl.RUNNING[0], drc_index)
    assert caught.value.response.status == 500
    assert str(drc_index) in caught.value.her_wrap.message
    assert novalink.slots_of(nl.RUNNING[0]) == []
    novalink.take(nl.RUNNING[1], SLOT)
    assert novalink.owner_of(SLOT) is None


def test_create_stores_an_lpar_with_its_slot(novalink, adapter):
    [system] = managed_system.System.get(adapter)
    wanted = str(uuid.UUID(int=7, version=4))
    attributes = {
        'name': 'guest',
        'env': 'AIX/Linux',
        'memory': 1024,
        'vcpu': 1,
        'uuid': wanted,
        'phys_io_slots': [slot(adapter)],
    }
    builder = lpar_builder.LPARBuilder(
        adapter, attributes, lpar_builder.DefaultStandardize(system)
    )
    made = builder.build().create(parent=system)
    assert made.uuid == wanted.upper() == made.partition_uuid
    assert made.can_modify_io() == (True, None)
    assert novalink.slots_of(wanted) == [SLOT]
    assert inventory(adapter)[SLOT].part_name == 'guest'
    assert novalink.writes()[0][0] == 'PUT'
    assert len(LPAR.get(adapter)) == 22

    made = LPAR.get(adapter, uuid=wanted)
    made.io_config.io_slots.append(slot(adapter, nl.FREE_SLOTS[1]))
    made = made.update()
    assert novalink.slots_of(wanted) == [SLOT, nl.FREE_SLOTS[1]]
    made.delete()
    assert novalink.owner_of(SLOT) is None


def test_create_makes_up_a_uuid_that_pypowervm_takes(
    novalink, adapter, monkeypatch
):
    [system] = managed_system.System.get(adapter)
    first_bit_set = uuid.UUID('d8a5613d-777c-40e0-9760-9ca37a32ff3b')
    monkeypatch.setattr(nl.uuid, 'uuid4', lambda: first_bit_set)
    attributes = {'name': 'g', 'env': 'AIX/Linux', 'memory': 1024, 'vcpu': 1}
    builder = lpar_builder.LPARBuilder(
        adapter, attributes, lpar_builder.DefaultStandardize(system)
    )
    made = builder.build().create(parent=system)
    assert made.uuid == '58A5613D-777C-40E0-9760-9CA37A32FF3B'
    assert novalink.slots_of(made.uuid) == []


def test_an_old_etag_is_a_412(novalink, adapter):
    lpar = LPAR.get(adapter, uuid=nl.RUNNING[0])
    novalink.touch(nl.RUNNING[0])
    lpar.io_config.io_slots.append(slot(adapter))
    with pytest.raises(pvm_exc.HttpError) as caught:
        lpar.update()
    assert type(caught.value) is pvm_exc.HttpError
    assert caught.value.response.status == 412
    assert caught.value.her_wrap.status == 412
    assert novalink.slots_of(nl.RUNNING[0]) == []


def test_a_transaction_tries_again_after_a_412(novalink, adapter):
    others = iter(nl.FREE_SLOTS[1:])

    def somebody_else():
        for drc_index in others:
            novalink.give(nl.RUNNING[0], drc_index)
            return

    novalink.before_post = somebody_else
    lpar = add_in_transaction(getter(adapter))
    assert len(novalink.writes()) == 3
    slots = [one.drc_index for one in lpar.io_config.io_slots]
    assert slots == [*nl.FREE_SLOTS[1:], SLOT]
    assert novalink.slots_of(nl.RUNNING[0]) == slots


def test_another_client_may_update_before_a_post(novalink, adapter):
    another = nl.session(novalink)

    def update():
        novalink.before_post = None
        # No transaction: transactions of one process wait for each other.
        add(another, nl.RUNNING[0], nl.FREE_SLOTS[1])

    novalink.before_post = update
    add_in_transaction(getter(adapter))
    assert len(novalink.writes()) == 3
    assert novalink.slots_of(nl.RUNNING[0]) == [nl.FREE_SLOTS[1], SLOT]


def test_many_clients_lose_no_update(novalink):
    drc_indexes = list(inventory(nl.session(novalink)))[2:12]

    def one(drc_index):
        lpar = LPAR.get(adapter := nl.session(novalink), uuid=nl.RUNNING[0])
        while True:
            lpar.io_config.io_slots.append(slot(adapter, drc_index))
            try:
                return lpar.update()
            except pvm_exc.HttpError as err:
                assert err.response.status == 412
                lpar = lpar.refresh(use_etag=False)

    with futures.ThreadPoolExecutor(10) as pool:
        list(pool.map(one, drc_indexes))
    assert sorted(novalink.slots_of(nl.RUNNING[0])) == sorted(drc_indexes)


def test_an_unknown_lpar_is_a_404(novalink, adapter):
    with pytest.raises(pvm_exc.HttpNotFound) as caught:
        add_in_transaction(getter(adapter, nl.UNKNOWN))
    assert caught.value.response.status == 404
    assert nl.UNKNOWN in caught.value.her_wrap.message
    assert novalink.writes() == []


def test_an_error_has_its_message(novalink, adapter):
    novalink.fail_next(500, 'HSCL0000 The adapter is on fire.')
    with pytest.raises(pvm_exc.HttpError) as caught:
        add(adapter, nl.RUNNING[0], SLOT)
    assert caught.value.her_wrap.status == 500
    assert caught.value.her_wrap.reason_code == 'Unknown internal error.'
    assert 'HSCL0000 The adapter is on fire.' in str(caught.value)
    assert novalink.slots_of(nl.RUNNING[0]) == []
    add(adapter, nl.RUNNING[0], SLOT)


def test_an_error_may_come_after_the_update(novalink, adapter):
    novalink.fail_next(500, applied=True)
    with pytest.raises(pvm_exc.HttpError):
        add(adapter, nl.RUNNING[0], SLOT)
    assert novalink.slots_of(nl.RUNNING[0]) == [SLOT]


@pytest.mark.parametrize(
    ('status', 'message'),
    [(503, None), (500, 'HSCL3205 busy'), (500, 'VIOS0014 busy')],
)
def test_busy_is_tried_again_by_the_helper(
    novalink, adapter, monkeypatch, status, message
):
    slept = []
    monkeypatch.setattr(vios_busy, 'SLEEP', slept.append)
    novalink.fail_next(status, message, times=3)
    add(adapter, nl.RUNNING[0], SLOT)
    assert slept == [5, 10, 15]
    novalink.fail_next(status, message, times=4)
    with pytest.raises(pvm_exc.HttpError):
        add(adapter, nl.RUNNING[0], nl.FREE_SLOTS[1])


def test_a_slow_server_is_a_timeout(novalink):
    adapter = nl.session(novalink, timeout=0.3)
    novalink.delay = 1
    with pytest.raises(pvm_exc.TimeoutError) as caught:
        LPAR.get(adapter, uuid=nl.RUNNING[0])
    assert caught.value.response is None
    with pytest.raises(pvm_exc.TimeoutError):
        nl.session(novalink, timeout=0.3)


def test_an_update_waits_an_hour_unless_told_otherwise(novalink):
    adapter = nl.session(novalink, timeout=0.3)
    lpar = LPAR.get(adapter, uuid=nl.RUNNING[0])
    lpar.io_config.io_slots.append(slot(adapter))
    novalink.delay = 1
    start = time.monotonic()
    lpar = lpar.update()  # the timeout of the session does not count
    assert time.monotonic() - start >= 1
    lpar.io_config.io_slots.append(slot(adapter, nl.FREE_SLOTS[1]))
    with pytest.raises(pvm_exc.TimeoutError):
        lpar.update(timeout=0.3)
    # The change was applied.
    assert novalink.slots_of(nl.RUNNING[0]) == [SLOT, nl.FREE_SLOTS[1]]


def test_a_server_that_is_gone_is_a_connection_error(novalink, adapter):
    lpar = LPAR.get(adapter, uuid=nl.RUNNING[0])
    novalink.delay = 30
    with futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lpar.update)
        while not novalink.writes():
            time.sleep(0.01)
        novalink.stop()
        with pytest.raises(pvm_exc.ConnectionError):
            waiting.result()
    with pytest.raises(pvm_exc.ConnectionError) as caught:
        LPAR.get(adapter)
    assert caught.value.response is None
    with pytest.raises(pvm_exc.ConnectionError):
        nl.session(novalink)

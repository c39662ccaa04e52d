# SPDX-License-Identifier: Apache-2.0

"""ARQs that must not be plugged, and VANs without an ARQ."""

from __future__ import annotations

import json
import uuid

import hardware
import live
import nova_part
import pytest

VF = nova_part.group(hardware.MADE_CLASS)


def test_other_states(cloud: live.Live, nova: nova_part.Nova) -> None:
    """One of two ARQs is not bound: the instance gets neither device."""
    instance = nova.boot(nova_part.group(hardware.MADE_CLASS, 2))
    arq = nova.arqs(instance)[0]['uuid']
    for state in (
        'Initial',
        'BindStarted',
        'BindFailed',
        'Unbound',
        'Deleting',
    ):
        live.sql(
            'UPDATE extended_accelerator_requests SET state = %s '
            'WHERE uuid = %s',
            state,
            arq,
        )
        live.plug(instance, code=2, text=state)
        assert live.vans() == []


def test_bind_that_failed(nova: nova_part.Nova) -> None:
    """Cyborg finds no image with the function."""
    instance = str(uuid.uuid4())
    (arq,) = nova.bind(
        instance,
        nova_part.group(hardware.FPGA_CLASS, bitstream_id=str(uuid.uuid4())),
    )
    assert arq['state'] == 'BindFailed'

    live.plug(instance, code=2, text='BindFailed')


def test_unbound(nova: nova_part.Nova) -> None:
    instance = nova.boot(VF)
    (arq,) = nova.arqs(instance)
    nova.unbind(arq['uuid'])

    live.plug(instance, code=2, text=instance)

    assert live.vans() == []


def test_never_bound(nova: nova_part.Nova) -> None:
    (arq,) = nova.create_arqs(nova.profile(VF))
    assert arq['state'] == 'Initial'

    live.plug(str(uuid.uuid4()), code=2)

    assert live.vans() == []


def test_another_host(nova: nova_part.Nova) -> None:
    instance = nova.boot(VF, host='elsewhere')

    live.plug(instance, code=2, text='elsewhere')

    assert live.vans() == []


def test_another_instance(
    nova: nova_part.Nova, tmp_path_factory: pytest.TempPathFactory
) -> None:
    instance, other = nova.boot(VF), nova.boot(VF)
    path = tmp_path_factory.mktemp('arqs') / 'arqs.json'
    path.write_text(json.dumps({'arqs': nova.arqs(instance)}))

    live.os_acc('plug', other, '--arqs', str(path), code=2, text=instance)

    assert live.vans() == []


def test_handle_bound_anew(cloud: live.Live, nova: nova_part.Nova) -> None:
    """An ARQ is deleted under a VAN, and its handle is given to another."""
    gpu = nova_part.group(hardware.GPU_CLASS)
    old = nova.boot(gpu)
    (van,) = live.plug(old)
    assert live.check() == []
    nova.delete(old)
    new = nova.boot(gpu)

    live.plug(new, code=5, text=old)

    assert [each.instance_uuid for each in live.vans()] == [old]
    (found,) = [each for each in live.check(code=3) if old in json.dumps(each)]
    assert van['uuid'] in json.dumps(found)

    # The instance still has a guest.
    hardware.set_guests(old)
    live.check('--fix', '--minimum-age', '0', code=3)
    assert [each.instance_uuid for each in live.vans()] == [old]

    hardware.set_guests()
    live.check('--fix', '--minimum-age', '0')
    assert live.vans() == []
    assert live.plug(new)[0]['state'] == 'plugged'
    assert live.check() == []


def test_bound_to_another_host_later(nova: nova_part.Nova) -> None:
    instance = nova.boot(VF)
    live.plug(instance)
    live.sql('UPDATE extended_accelerator_requests SET hostname = "elsewhere"')

    found = json.dumps(live.check(code=3))

    assert 'elsewhere' in found
    assert nova.arqs(instance)[0]['uuid'] in found


def test_bound_handle_gone(nova: nova_part.Nova) -> None:
    """Then Cyborg cannot list ARQs at all, of no instance.

    MariaDB keeps such a handle by a foreign key. Other databases do not.
    """
    instance = nova.boot(VF)
    live.plug(instance)
    (arq,) = nova.arqs(instance)
    # The id is negative while it is away.
    move = 'UPDATE attach_handles SET id = -id WHERE uuid = %s'
    live.sql(move, arq['attach_handle_uuid'])
    try:
        found = json.dumps(live.check(code=3))
        assert arq['uuid'] in found
        live.check('--fix', '--minimum-age', '0', code=3)
        assert [each.instance_uuid for each in live.vans()] == [instance]
    finally:
        live.sql(move, arq['attach_handle_uuid'])

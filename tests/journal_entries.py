# SPDX-License-Identifier: Apache-2.0

"""Entries of the journal, as plug makes them.

Other processes import this too: it imports no library of tests, which takes
longer than what they do.
"""

from __future__ import annotations

import datetime
import uuid

from os_acc import journal
from os_acc import objects


def new_uuid():
    return str(uuid.uuid4())


def test_handle(name):
    return objects.TestHandle(name=name)


test_handle.__test__ = False


def make_entry(instance=None, van=None, claim=None, live=False, **values):
    """An entry as plug makes it.

    :param claim: name of the handle that the request asks for
    :param values: fields of the VAN
    """
    instance, van = instance or new_uuid(), van or new_uuid()
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    fields = {
        'uuid': van,
        'instance_uuid': instance,
        'driver': 'fake',
        'plugin': 'noop',
        'state': 'preparing',
        'boot_id': 'this-boot',
        'created_at': now,
        'updated_at': now,
    }
    request = objects.AcceleratorRequest(uuid=van)
    if claim is not None:
        request.handle = test_handle(claim)
    return journal.Entry(
        van=objects.VAN(**{**fields, **values}),
        request=request,
        instance_info=objects.InstanceInfo(
            uuid=instance, name='guest', project_id='project'
        ),
        live=live,
    )

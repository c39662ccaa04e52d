# SPDX-License-Identifier: Apache-2.0

"""The document of the state that this host's devices have today."""

from __future__ import annotations

from typing import Any

from os_acc import host as host_module
from os_acc.desired import documents
from os_acc.desired import functions
from os_acc.desired import offered
from os_acc.texts import forms


def export(host: host_module.Host) -> dict[str, Any]:
    """Write the document. documents.read() reads it.

    :raises InvalidRequest: if device_spec cannot be read
    """
    document = documents.stored(host.journal.desired()).as_object()
    pools = document.get('pools', [])
    named = {
        (each['device'], each.get('region'))
        for each in document.get('functions', ())
    }
    # A region that holds the function of a pool stays free for the pools.
    kept = [each['function'] for each in pools]
    held = [
        each
        for each in functions.export(host)
        if (each['device'], each.get('region')) in named
        or not any(forms.same_function(each['function'], f) for f in kept)
    ]
    return documents.written(
        offered.export(host.conf),
        held,
        reserved=document.get('reserved', []),
        partitions=document.get('partitions', []),
        vgpus=document.get('vgpus', []),
        work_queues=document.get('work_queues', []),
        mdevs=document.get('mdevs', []),
        pools=pools,
    )

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
    """Write the document. documents.read() reads it."""
    document = documents.stored(host.journal.desired()).as_object()
    pools = document.get('pools', [])
    named = {_place(each): each for each in document.get('functions', ())}
    # A region that holds the function of a pool stays free for the pools.
    kept = [each['function'] for each in pools]
    held = [
        _with_bitstream(each, named.get(_place(each)))
        for each in functions.export(host)
        if _place(each) in named
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


def _place(entry: dict[str, str]) -> tuple[str, str | None]:
    """What an entry of functions is about."""
    return entry['device'], entry.get('region')


def _with_bitstream(
    held: dict[str, str], stored: dict[str, str] | None
) -> dict[str, str]:
    """Add the bitstream of a function.

    :param stored: the entry of the document for the same region; None: it has
        none
    """
    if stored is None or not forms.same_function(
        held['function'], stored['function']
    ):
        return held
    return {**stored, **held}

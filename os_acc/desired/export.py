# SPDX-License-Identifier: Apache-2.0

"""The document of the state that this host's devices have today."""

from __future__ import annotations

import json
from typing import Any

from os_acc import host as host_module
from os_acc import reserved
from os_acc.desired import documents
from os_acc.desired import functions
from os_acc.desired import offered
from os_acc.desired import reservations


def export(host: host_module.Host) -> dict[str, Any]:
    """Write the document. documents.read() reads it.

    :raises InvalidRequest: if device_spec cannot be read
    """
    made = documents.written(offered.export(host.conf), functions.export(host))
    if those := reserved.read(host.journal):
        made['reserved'] = reservations.written(those)
    known = host.journal.desired()
    kept = json.loads(known.document).get('vgpus') if known else None
    if kept:
        made['vgpus'] = kept
    return made

# SPDX-License-Identifier: Apache-2.0

"""What a recovery did, in rows and in lines."""

from __future__ import annotations

from typing import NamedTuple

from os_acc import objects

RELEASED = 'released'
PREPARED = 'prepared again'
FAILED = 'failed'
BUSY = 'skipped: another process holds its lock'
UNREADABLE = 'unreadable'


class Row(NamedTuple):
    """What a recovery did with a VAN, or with an instance.

    :ivar van: None: the row is about the instance
    """

    van: objects.VAN | None
    instance_uuid: str
    result: str
    error: str | None


def rows(report: objects.RecoveryReport) -> list[Row]:
    """List what a recovery did."""
    made = [
        Row(van, van.instance_uuid, result, van.error)
        for result, vans in (
            (RELEASED, report.released),
            (PREPARED, report.restored),
            (FAILED, report.failed),
        )
        for van in vans
    ]
    made += [Row(None, uuid, BUSY, None) for uuid in report.busy]
    for result, errors in (
        (UNREADABLE, report.unreadable),
        (FAILED, report.errors),
    ):
        made += [Row(None, u, result, err) for u, err in errors.items()]
    return made


def lines(report: objects.RecoveryReport) -> list[str]:
    """Say what a recovery did, in a line for each VAN or instance."""
    made = []
    for row in rows(report):
        text = f'instance {row.instance_uuid}'
        if row.van is not None:
            text = f'VAN {row.van.uuid} of {text}'
            if row.van.handle is not None:
                text += f' ({row.van.handle.identity})'
        text += f' {row.result}'
        made.append(f'{text}: {row.error}' if row.error else text)
    return made

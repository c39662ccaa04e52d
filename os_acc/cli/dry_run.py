# SPDX-License-Identifier: Apache-2.0
"""--dry-run of plug and unplug: what would be done."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from collections.abc import Iterable
import contextlib
import dataclasses
from typing import Any

import os_acc
from os_acc import host
from os_acc import objects
from os_acc.cli import answers
from os_acc.cli import base
from os_acc.cli import listing
from os_acc.operations import planned as planned_module
from os_acc.operations import preview

#: The columns of plug --dry-run.
COLUMNS = (
    listing.Column('uuid', 'VAN'),
    listing.Column('would'),
    listing.Column('driver'),
    listing.Column('plugin', long=True),
    listing.Column('device'),
    listing.Column('state', long=True),
    listing.Column('obstacle'),
)


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add the option --dry-run."""
    parser.add_argument(
        '--dry-run',
        action='store_true',
        help='only show what would be done with each VAN, by which driver and '
        'on which device. Nothing is changed, and no journal is created. The '
        'exit code is 1 if there is an obstacle',
    )


def look(
    plan: Callable[[host.Host], list[planned_module.Planned]],
    say: Callable[[str], object],
) -> list[planned_module.Planned]:
    """Make a preview on a Host that changes nothing.

    :param say: gets a line for each instance that recovery would look at first
    """
    with contextlib.closing(
        host.Host.open(os_acc.CONF, read_only=True, owner=base.OWNER)
    ) as opened:
        planned = plan(opened)
        for instance in preview.unsettled(opened):
            say(
                f'Recovery would first look at instance {instance} (os-acc '
                'recover)'
            )
    return planned


def blocked(planned: Iterable[planned_module.Planned]) -> bool:
    """Whether something would fail."""
    return any(each.obstacle is not None for each in planned)


def table(planned: Iterable[planned_module.Planned]) -> listing.Table:
    """Make the columns and rows of a preview."""
    return [column.key for column in COLUMNS], [
        (
            each.van,
            each.action,
            each.driver,
            each.plugin,
            _device(each),
            each.state,
            each.obstacle,
        )
        for each in planned
    ]


def lines(planned: Iterable[planned_module.Planned]) -> list[str]:
    """Say in a line for each VAN what would be done."""
    return [
        f'would {each.action} VAN {each.van}: driver {each.driver}, plugin '
        f'{each.plugin}, device {_device(each) or "none"}, state {each.state}'
        + (f'; obstacle: {each.obstacle}' if each.obstacle else '')
        for each in planned
    ]


def answer(
    info: objects.InstanceInfo, planned: Iterable[planned_module.Planned]
) -> dict[str, Any]:
    """Make the answer in JSON."""
    return {
        'instance': answers.instance(info),
        'dry_run': True,
        'vans': [dataclasses.asdict(each) for each in planned],
    }


def _device(planned: planned_module.Planned) -> str | None:
    """Name the handle and the device, or the devices to choose from."""
    devices = ' or '.join(planned.devices)
    if planned.handle is None:
        return devices or None
    return f'{planned.handle} of {devices}' if devices else planned.handle

# SPDX-License-Identifier: Apache-2.0

"""Requests by selectors: which device is wanted, without an ARQ."""

from __future__ import annotations

import argparse
import re

from os_acc import exception
from os_acc import objects
from os_acc.state import instance_names

#: The most accelerators of one instance that selectors may ask for.
MOST = 256

# As Placement has them: placement/schemas/resource_class.py and trait.py.
_NAME = re.compile(r'[A-Z0-9_]{1,255}')


def add_resource_class(
    parser: argparse._ActionsContainer, required: bool = False
) -> None:
    """Add the option that says which class of device is wanted."""
    parser.add_argument(
        '--resource-class',
        metavar='CLASS',
        required=required,
        help='the resource class of the wanted devices, as device list shows '
        'it',
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that go with --resource-class."""
    parser.add_argument(
        '--trait',
        action='append',
        metavar='TRAIT',
        help='with --resource-class: a trait that the devices must have; may '
        'be repeated',
    )
    parser.add_argument(
        '--count',
        type=count,
        metavar='N',
        help='with --resource-class: how many devices are wanted (default: 1)',
    )


def count(text: str) -> int:
    """Read a number of devices: 1 to MOST."""
    value = int(text) if text.isdecimal() else 0
    if not 1 <= value <= MOST:
        raise argparse.ArgumentTypeError(f'{text!r}: expected 1 to {MOST}')
    return value


def requests(
    instance: str,
    resource_class: str,
    traits: list[str] | None = None,
    number: int | None = None,
    function: str | None = None,
) -> list[objects.AcceleratorRequest]:
    """Make the requests of an instance.

    Their UUIDs depend on the instance and the position alone. So a repeated
    plug asks for the same VANs, and os-acc refuses it if it asks for other
    devices than the first one.
    """
    _check('resource class', resource_class)
    for trait in traits or []:
        _check('trait', trait)
    return [
        objects.AcceleratorRequest(
            uuid=instance_names.request_uuid(instance, position),
            resource_class=resource_class,
            traits=list(dict.fromkeys(traits or [])),
            function_id=function,
        )
        for position in range(number or 1)
    ]


def check_count(instance: str, number: int, vans: objects.VANList) -> None:
    """Check that an instance does not have more than is asked for."""
    later = {
        instance_names.request_uuid(instance, position)
        for position in range(number, MOST)
    }
    more = [van.uuid for van in vans if van.uuid in later]
    if more:
        raise exception.InvalidRequest(
            subject=f'instance {instance}',
            field='count',
            value=number,
            expected=f'at least {number + len(more)}, as many as it has. '
            f'Unplug the others first: os-acc unplug {instance} '
            + ' '.join(f'--van {uuid}' for uuid in more),
        )


def _check(field: str, value: str) -> None:
    if not _NAME.fullmatch(value):
        raise exception.InvalidRequest(
            subject='selector',
            field=field,
            value=value,
            expected='1 to 255 letters A-Z, digits and underscores',
        )

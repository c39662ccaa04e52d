# SPDX-License-Identifier: Apache-2.0

"""Reads the groups of device profiles of Cyborg's REST API v2.

An ARQ does not say which function its device must have. The group of the
device profile that the ARQ was made for does.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
import logging
from typing import Any
from typing import NoReturn

from os_acc import exception
from os_acc.texts import forms

LOG = logging.getLogger(__name__)

#: The keys of a group that os-acc uses.
FUNCTION = 'accel:function_id'
BITSTREAM = 'accel:bitstream_id'

#: The groups of each device profile, by the name of the profile.
Profiles = Mapping[str, Sequence[Mapping[str, Any]]]


def fill(request: Any, profiles: Profiles) -> None:
    """Set function_id and bitstream as the group of the ARQ says.

    A group that Cyborg cannot bind, if Cyborg programs from it, is logged.

    :param request: an AcceleratorRequest that was made from an ARQ
    :param profiles: see AcceleratorRequest.from_arqs
    :raises InvalidRequest: if profiles lacks the profile or the group of the
        ARQ, or if a value is invalid
    """
    group = _group(request, profiles)
    if (why := never_bound(group)) is not None:
        name = request.device_profile_name
        LOG.warning('ARQ %s, device profile %s: %s', request.uuid, name, why)
    for field, key in (('function_id', FUNCTION), ('bitstream', BITSTREAM)):
        try:
            setattr(request, field, group.get(key))
        except ValueError as err:
            _refuse(
                request,
                f'{key} of device profile {request.device_profile_name!r}',
                # The text of a bitstream may contain a password.
                type(group.get(key)).__name__
                if key == BITSTREAM
                else group.get(key),
                getattr(err, 'kwargs', {}).get('expected', str(err)),
            )


def _group(request: Any, profiles: Profiles) -> Mapping[str, Any]:
    """Find the group of the device profile that an ARQ is for."""
    name, number = request.device_profile_name, request.device_profile_group_id
    if name is None or name not in profiles:
        _refuse(
            request,
            'device_profile_name',
            name,
            'a device profile whose groups are given',
        )
    groups: object = profiles[name]
    if not isinstance(groups, Sequence) or not all(
        isinstance(group, Mapping) for group in groups
    ):
        _refuse(
            request,
            f'the groups of device profile {name!r}',
            # Not the groups: the name of a bitstream may have a password.
            type(groups).__name__,
            "a list of dicts ('groups' in Cyborg's answer)",
        )
    if number is None or number >= len(groups):
        _refuse(
            request,
            'device_profile_group_id',
            number,
            f'the number of a group of device profile {name!r}, which has '
            f'{len(groups)}',
        )
    group: Mapping[str, Any] = groups[number]
    return group


def _refuse(request: Any, field: str, value: Any, expected: str) -> NoReturn:
    raise exception.InvalidRequest(
        subject=f'ARQ {request.uuid}',
        field=field,
        value=value,
        expected=expected,
    )


def never_bound(group: Mapping[str, Any]) -> str | None:
    """Say why Cyborg never finishes binding a device profile's group.

    For the resource class FPGA, Cyborg builds a trait name from the function's
    ID, and leaves its hyphens in. Placement refuses that name, and
    the ARQ stays in state BindStarted (_update_placement in
    cyborg/objects/extarq/fpga_ext_arq.py of Cyborg 17).

    :param group: as Cyborg's API returns it
    :returns: a sentence; None: Cyborg has no such problem with the group
    """
    wanted = group.get('accel:function_id')
    if 'resources:FPGA' not in group or '-' not in str(wanted or ''):
        return None
    return (
        f'accel:function_id {wanted} has hyphens: with the resource '
        'class FPGA, Cyborg programs the device and then leaves the ARQ in '
        'state BindStarted, because Placement refuses the name of the '
        f'function trait. Write {forms.function_id(wanted)} in the device '
        'profile and in the properties of the image'
    )

# SPDX-License-Identifier: Apache-2.0
"""From the ARQs of an instance in Cyborg to requests that os_acc.plug takes.

Cyborg's ARQs do not say which function a device must have. The device profile
does, so its groups are read each time. This must not be left out: Cyborg
remembers which bitstream it believes to be in a device, and binds such a
device without programming it. The guest would get whatever is in the device.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import time
from typing import Any

from os_acc import exception
from os_acc import objects
from os_acc import progress
from os_acc.attach import plan
from os_acc.cyborg import api as api_module
from os_acc.objects import device_profile

#: Seconds to wait for a bind. Nova waits as long by default
#: (arq_binding_timeout in nova/conf/compute.py).
WAIT = 300.0

#: The step of the progress that is reported.
STEP = 'bind'

# The first pause between two questions, and the longest, in seconds.
_PAUSE = 0.25
_LONGEST_PAUSE = 5.0

# The states of an ARQ before its bind has ended (ARQ_PRE_BIND in
# cyborg/common/constants.py).
_BOUND = 'Bound'
_BINDING = ('Initial', 'BindStarted')

_MEANING = {
    'Initial': 'it is not bound yet; wait until it is',
    'BindStarted': 'its bind has not finished; wait until it has',
    'BindFailed': "its bind failed; the logs of Cyborg's conductor and agent "
    'say why',
    'Unbound': 'it was unbound',
    'UnbindFailed': "its unbind failed; the log of Cyborg's conductor says "
    'why',
    'Deleting': 'it is being deleted',
}


@dataclasses.dataclass(frozen=True)
class Bound:
    """The bound ARQs of an instance.

    :ivar requests: in the order in which Cyborg lists the ARQs
    :ivar project_id: the project that the ARQs belong to; None: unknown
    """

    requests: list[objects.AcceleratorRequest]
    project_id: str | None


def bound(
    api: api_module.API,
    instance_uuid: str,
    host_name: str,
    wait: float | None = None,
    callback: progress.Callback | None = None,
) -> Bound:
    """Read the ARQs of an instance, with the functions of their profiles.

    :param host_name: the name of this host, as in ``[os_acc] host``
    :param wait: how many seconds to wait until Cyborg has finished binding all
        ARQs. An ARQ belongs to no instance before its bind has started,
        so this also waits while the instance has no ARQ. None: do not wait
    :param callback: called with Progress objects whose step is STEP
    :raises ARQNotBound: if an ARQ is in another state than Bound
    :raises InvalidRequest: if the instance has no ARQ or not all ARQs of its
        device profiles, an ARQ is bound to another host, or an ARQ or a
        device profile has a wrong value
    :raises Timeout: if an ARQ is still being bound after the wait
    :raises RemoteServiceError: if Cyborg does not answer
    """
    if wait is None:
        arqs = api.arqs(instance_uuid)
    else:
        arqs = _wait(api, instance_uuid, wait, progress.Reporter(callback))
    if not arqs:
        raise exception.InvalidRequest(
            subject=f'instance {instance_uuid}',
            field='accelerator requests',
            value=[],
            expected='at least one ARQ that Cyborg has bound to the instance '
            '(a user without the role admin sees only the ARQs of its '
            'project)',
        )
    for arq in arqs:
        _check_state(api, arq)
    # The order of the errors: first the ARQs, then their profiles.
    for request in objects.AcceleratorRequest.from_arqs(arqs):
        plan.check_binding(request, instance_uuid, host_name)
    profiles = _profiles(api, arqs)
    if (missing := _missing(arqs, profiles)) is not None:
        raise exception.InvalidRequest(
            subject=f'instance {instance_uuid}',
            field='accelerator requests',
            value=[arq.get('uuid') for arq in arqs],
            expected=f'{missing}; wait until Cyborg has bound all of them',
        )
    project = arqs[0].get('project_id')
    return Bound(
        objects.AcceleratorRequest.from_arqs(arqs, profiles),
        None if project is None else str(project),
    )


def _profiles(
    api: api_module.API, arqs: Sequence[Mapping[str, Any]]
) -> dict[str, list[dict[str, str]]]:
    names = sorted({str(arq.get('device_profile_name')) for arq in arqs})
    return {name: api.profile_groups(name) for name in names}


def _missing(
    arqs: Sequence[Mapping[str, Any]],
    profiles: Mapping[str, Sequence[Mapping[str, str]]],
) -> str | None:
    """Say which ARQs the instance does not have yet; None: it has all.

    Cyborg binds the ARQs of an instance one after the other. Those that it has
    not started to bind belong to no instance yet.
    """
    found = collections.Counter(
        (
            str(arq.get('device_profile_name')),
            arq.get('device_profile_group_id'),
        )
        for arq in arqs
    )
    for name, groups in profiles.items():
        for number, group in enumerate(groups):
            wanted, there = _arqs_of(group), found[name, number]
            # Several ports may have the same profile.
            if wanted and (there == 0 or there % wanted):
                return (
                    f'{wanted} ARQs of group {number} of device profile '
                    f'{name!r}, or a multiple of it, instead of {there}'
                )
    return None


def _arqs_of(group: Mapping[str, str]) -> int:
    """Count the ARQs that Cyborg makes for a group of a device profile.

    See post() in cyborg/api/controllers/v2/arqs.py.

    :returns: 0 if the group does not say it
    """
    try:
        if group.get('trait:CUSTOM_FPGA_XILINX') == 'required':
            return 2 * int(group['resources:FPGA'])
        return sum(
            int(value)
            for key, value in group.items()
            if key.startswith('resources')
        )
    except (AttributeError, LookupError, TypeError, ValueError):
        return 0


def _check_state(api: api_module.API, arq: Mapping[str, Any]) -> None:
    """Refuse an ARQ that is not bound, with the reason if it is known."""
    state = arq.get('state')
    if isinstance(state, str) and state in _MEANING:
        raise exception.ARQNotBound(
            subject=f'ARQ {arq.get("uuid")}',
            field='state',
            value=state,
            expected=f"'Bound' ({_never_bound(api, arq) or _MEANING[state]})",
        )


def _never_bound(api: api_module.API, arq: Mapping[str, Any]) -> str | None:
    """Say why Cyborg never ends a bind, if the device profile shows it."""
    if arq.get('state') != 'BindStarted':
        return None
    try:
        groups = api.profile_groups(str(arq['device_profile_name']))
        return device_profile.never_bound(
            groups[arq['device_profile_group_id']]
        )
    except (
        exception.RemoteServiceError,
        AttributeError,
        LookupError,
        TypeError,
    ):
        return None  # the state is what the caller must be told


def _wait(
    api: api_module.API,
    instance_uuid: str,
    wait: float,
    tell: progress.Reporter,
) -> list[dict[str, Any]]:
    """Wait until no ARQ of the instance is being bound.

    :returns: its ARQs; empty if it had none all the time
    """

    def say(
        status: str, fraction: float | None = None, text: str | None = None
    ) -> None:
        tell(
            progress.Progress(
                instance_uuid, '', STEP, status, fraction, text, None
            )
        )

    deadline = time.monotonic() + wait
    pause = _PAUSE
    say(progress.STARTED)
    try:
        while True:
            arqs = api.arqs(instance_uuid)
            going = [arq for arq in arqs if arq.get('state') in _BINDING]
            missing = None
            if not going and all(arq.get('state') == _BOUND for arq in arqs):
                missing = _missing(arqs, _profiles(api, arqs))
            left = deadline - time.monotonic()
            if left <= 0 and going:
                raise exception.Timeout(
                    seconds=wait, what=_unfinished(api, instance_uuid, going)
                )
            if left <= 0 or (arqs and not going and missing is None):
                break
            done = len(arqs) - len(going)
            say(
                progress.RUNNING,
                done / len(arqs) if arqs else 0.0,
                f'{done} of {len(arqs)} ARQs are bound'
                if arqs
                else 'the instance has no ARQ yet',
            )
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, _LONGEST_PAUSE)
    except BaseException as err:
        say(progress.FAILED, text=exception.describe(err))
        raise
    say(progress.DONE, 1.0)
    return arqs


def _unfinished(
    api: api_module.API, instance_uuid: str, going: Sequence[Mapping[str, Any]]
) -> str:
    which = ', '.join(
        f'{arq.get("uuid")} ({_never_bound(api, arq) or arq["state"]})'
        for arq in going
    )
    return f'the bind of the ARQs of instance {instance_uuid}: {which}'

# SPDX-License-Identifier: Apache-2.0


"""Setting up the network port of a NIC's VF, as root.

A VF's MAC address, VLAN, trust and spoof check are set on its PF. The caller
names the VF only. The PF, its interface and the VF's number are looked up
here. So are the earlier settings: see Port.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import errno
import time
from typing import Any

from os_acc import exception
from os_acc.availability import functions as availability
from os_acc.deadlines import waiting
from os_acc.kernel import network
from os_acc.kernel import pci
from os_acc.kernel import sriov
from os_acc.privileged import arguments
from os_acc.privileged import context
from os_acc.privileged import device_users
from os_acc.privileged import function_notes
from os_acc.privileged import notes
from os_acc.privileged import offers
from os_acc.privileged import undo_log
from os_acc.privileged.pci import rtnetlink
from os_acc.texts import forms


@dataclasses.dataclass(frozen=True)
class Port:
    """The settings of a NIC's VF that were changed on its PF.

    :ivar ids: vendor:product
    :ivar ours: what was set, by the names of rtnetlink.SETTINGS
    :ivar before: what was there before, by the same names
    """

    ids: str
    ours: dict[str, Any]
    before: dict[str, Any]


ports = undo_log.Records('ports', Port)

# The pause between two attempts, while a VF has not come up yet.
_PAUSE = 0.1
# What PF drivers answer then: i40e_ndo_set_vf_mac() in i40e_virtchnl_pf.c,
# ice_check_vf_ready_for_cfg() in ice_vf_lib.c.
_NOT_YET = (errno.EAGAIN, errno.EBUSY)
# What libvirt sets if a driver does not accept zeros for "no MAC address":
# altZeroMAC in src/util/virnetdev.c.
_ALMOST_NO_MAC = '02:00:00:00:00:00'


@context.entry
def read_port(address: str, seconds: float) -> dict[str, Any]:
    """Read what is set for a VF on its PF.

    :returns: values by mac_address, vlan ([id, priority]), trusted and
        spoof_check; None for what the PF's driver does not tell
    """
    function = arguments.function(address)
    place = network.vf_port(function)
    now = waiting.at_most(
        lambda: _read(place),
        arguments.seconds(seconds),
        f'the settings of VF {address}',
    )
    return {name: now[name] for name in rtnetlink.SETTINGS}


@context.entry
def set_port(address: str, wanted: Mapping[str, Any], seconds: float) -> None:
    """Set up a VF's port on its PF, before a guest uses the VF.

    :param wanted: values by mac_address, vlan ([id, priority]), trusted and
        spoof_check; what is not in it is as set_new() has made it, or stays
    :raises DeviceInUseByHost: if the host uses the VF
    :raises DeviceError: if the PF's driver refuses, or does not tell the
        present value, so that it could not be restored
    :raises DeviceNotFound: if the PF has no network interface here
    :raises InvalidRequest: also if device_spec does not allow to trust this VF
    """
    function = arguments.function(address)
    changes = _checked('wanted', wanted)
    if changes.get('trusted') and not offers.entry(function).trusted:
        arguments.refuse(
            'wanted', changes, f'trusted for {address} in device_spec'
        )
    seconds = arguments.seconds(seconds)

    def act(deadline: waiting.Deadline) -> None:
        _make_anew(pci.get(address), deadline.left(0.5))
        if changes:
            _set(pci.get(address), changes, deadline.left(0.5))

    what = f'the port of VF {address} to be set up'
    function_notes.change(function, seconds, what, act)


@context.entry
@notes.undoes_own(returns=list[str]())
def restore_port(
    address: str, changed: Mapping[str, Any], seconds: float
) -> list[str]:
    """Restore what was set for a VF before set_port().

    The record says what set_port() has changed, and what was there before.
    Nothing else is changed. A value that set_port() has not set was set by
    somebody else, and stays. device_spec need not offer the VF any more.

    :param changed: the values that set_port() has set, as the caller knows
        them. They are used only without a record, to say which of them the VF
        still has
    :returns: a clause for each setting that is not restored
    :raises DeviceNotFound: if the PF has no network interface any more
    """
    function = arguments.there(address)
    changed = _checked('changed', changed)
    return function_notes.change(
        function,
        arguments.seconds(seconds),
        f'the port of VF {address} to be restored',
        lambda deadline: _restore(
            pci.get(address), changed, deadline.left(0.5)
        ),
    )


def _check_closed(function: pci.Function) -> None:
    """Check that no guest has a VF open: its port is not changed then.

    The guest may have other functions of its IOMMU group open.
    """
    device_users.wait_until_closed(
        function.path, f'VF {function.address}', 0, shares=True
    )


def _set(
    function: pci.Function, changes: dict[str, Any], seconds: float
) -> None:
    _check_closed(function)
    for obstacle in availability.host_obstacles(function, as_root=True):
        raise obstacle.error()
    place = network.vf_port(function)
    now = _read(place)
    for name in changes:
        if now[name] is None:
            raise _error(
                place,
                f"its PF's driver does not report {name}, so os-acc could not "
                'restore it: request the port without it',
            )
    if (
        'vlan' in changes
        and now['vlan'][0]
        and now['vlan_protocol'] != rtnetlink.IEEE_8021Q
    ):
        raise _error(
            place,
            f'VLAN {now["vlan"][0]} with the protocol '
            f'{now["vlan_protocol"]:#06x} is set for it, which os-acc could '
            'not restore: remove this VLAN first',
        )
    _remember(function, changes, now)
    if changes.get('trusted'):
        # It stays allowed for this VAN if device_spec is changed.
        function_notes.note_trusted(function)
    _change(place, changes, now, seconds)


def _change(
    place: network.VFPort,
    changes: dict[str, Any],
    now: dict[str, Any],
    seconds: float,
) -> None:
    """Make settings, and see that they were made."""
    for name, value in changes.items():
        if now[name] != value:
            _write(place, name, value, seconds)
    now = _read(place)
    for name, value in changes.items():
        if now[name] != value:
            raise _error(
                place,
                f'{name} is {now[name]} after it was set to {value}',
            )


def set_new(
    function: pci.Function, wanted: Mapping[str, Any], seconds: float
) -> None:
    """Set up a VF that was just made. Nothing of it is to be restored."""
    changes = _checked('vf_settings', wanted)
    place = network.vf_port(function)
    _change(place, changes, _read(place), seconds)


def _make_anew(function: pci.Function, seconds: float) -> None:
    """Make the settings of set_new() that a VF does not have any more.

    A trusted guest can change its MAC address, and others all of them. What a
    port has set is for _set() and _restore().
    """
    made = undo_log.vfs.read(function.parent)
    if (
        made is None
        or not made.settings
        or made.number != sriov.count(function.parent)
    ):
        return
    place = network.vf_port(function)
    now, known = _read(place), ports.of(function)
    ported = known.ours if known is not None else {}
    changes = {
        name: value
        for name, value in made.settings[place.number].items()
        if now[name] != value and name not in ported
    }
    if changes:
        _check_closed(function)
        _change(place, changes, now, seconds)


def _remember(
    function: pci.Function, changes: dict[str, Any], now: dict[str, Any]
) -> None:
    """Write the record of a VF whose port is about to be set up.

    If there is a record already, it says what was there before os-acc changed
    anything. That counts, unless somebody else has changed it since.
    """
    known = ports.of(function)
    before = {}
    for name in changes:
        if known is not None and now[name] == known.ours.get(name):
            before[name] = known.before[name]
        else:
            before[name] = now[name]
    if known is not None:
        changes = known.ours | changes
        before = known.before | before
    ports.write(function.address, Port(function.ids, changes, before))


def _restore(
    function: pci.Function, changed: dict[str, Any], seconds: float
) -> list[str]:
    known = ports.of(function)
    if known is not None:
        _check_closed(function)
    place = network.vf_port(function)
    now = _read(place)
    if known is None:
        return [
            f'{name} is {value}, and os-acc has no record that it has set it'
            for name, value in changed.items()
            if now[name] == value
        ]
    left = []
    for name in reversed(rtnetlink.SETTINGS):
        if name not in known.before or now[name] == known.before[name]:
            continue
        if now[name] == known.ours[name]:
            _write(place, name, known.before[name], seconds)
        else:
            left.append(f'{name} was set to {now[name]} by somebody else')
    ports.delete(function.address)
    return left


def _read(place: network.VFPort) -> dict[str, Any]:
    try:
        return rtnetlink.read_vf(place.index, place.number)
    except OSError as err:
        raise _error(
            place, f'its settings cannot be read: {exception.describe(err)}'
        ) from err


def _write(
    place: network.VFPort, name: str, value: Any, seconds: float
) -> None:
    """Change a setting; try again while the VF has not come up."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            rtnetlink.write_vf(place.index, place.number, name, value)
            return
        except OSError as err:
            if value == forms.NO_MAC and err.errno == errno.EINVAL:
                value = _ALMOST_NO_MAC
                continue
            if err.errno not in _NOT_YET or time.monotonic() >= deadline:
                raise _error(
                    place,
                    f'{name} cannot be set to {value}: '
                    f'{exception.describe(err)}',
                ) from err
        time.sleep(_PAUSE)


def _error(place: network.VFPort, reason: str) -> exception.DeviceError:
    return exception.DeviceError(
        device=f'VF {place.number} of PF {place.pf} ({place.interface})',
        reason=reason,
    )


def _checked(field: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Check settings.

    :returns: the settings in the order in which they are to be made
    """
    if not isinstance(values, Mapping) or set(values) - set(
        rtnetlink.SETTINGS
    ):
        arguments.refuse(
            field, values, f'only {", ".join(rtnetlink.SETTINGS)}'
        )
    found = {}
    for name in rtnetlink.SETTINGS:
        if name not in values:
            continue
        value = values[name]
        if name == 'mac_address':
            _check_mac(f'{field}.{name}', value)
        elif name == 'vlan':
            value = _vlan(f'{field}.{name}', value)
        elif not isinstance(value, bool):
            arguments.refuse(f'{field}.{name}', value, 'True or False')
        found[name] = value
    return found


def _check_mac(field: str, value: Any) -> None:
    if (
        not isinstance(value, str)
        or value != value.lower()
        or not forms.is_unicast_mac(value)
    ):
        arguments.refuse(
            field, value, 'a unicast MAC address, in lower case, not zero'
        )


def _vlan(field: str, value: Any) -> list[int]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        arguments.refuse(field, value, 'the id and the priority of a VLAN')
    return [
        arguments.whole(value[0], f'{field} (id)', forms.HIGHEST_VLAN),
        arguments.whole(
            value[1], f'{field} (priority)', forms.HIGHEST_VLAN_PRIORITY
        ),
    ]

# SPDX-License-Identifier: Apache-2.0

"""The signs that the host uses a network interface."""

from __future__ import annotations

from os_acc.availability.host_signs import sign
from os_acc.availability.host_signs import snapshot
from os_acc.kernel import network
from os_acc.kernel import sysfs
from os_acc.refusals import reasons
from os_acc.refusals import refusals

Reason = reasons.Reason
Snapshot = snapshot.Snapshot

_IFF_UP = 0x1  # include/uapi/linux/if.h


def _in_another(host: Snapshot, name: str) -> Reason | None:
    master = sysfs.link(f'{host.interfaces[name]}/master')
    if master is None:
        return None
    return refusals.IN_INTERFACE.say(name=name, master=master)


def _carries(host: Snapshot, name: str) -> Reason | None:
    for entry in sysfs.names(host.interfaces[name]):
        if entry.startswith('upper_'):
            upper = entry.removeprefix('upper_')
            return refusals.CARRIES_INTERFACE.say(name=name, upper=upper)
    return None


def _is_up(host: Snapshot, name: str) -> Reason | None:
    if int(network.read(name, 'flags') or '0', 0) & _IFF_UP:
        return refusals.INTERFACE_UP.say(name=name)
    return None


SIGNS = (
    sign.InterfaceSign(
        '/sys/class/net/NAME/master',
        'It is in a bridge, a bond, a VRF or Open vSwitch.',
        'Linux 3.14, for a bond 2.6',
        _in_another,
    ),
    sign.InterfaceSign(
        '/sys/class/net/NAME/upper_OTHER',
        'Another interface, such as a VLAN or a macvlan, is set up on it.',
        'Linux 3.14',
        _carries,
    ),
    sign.InterfaceSign(
        '/sys/class/net/NAME/flags',
        'It is up. Whatever has a route, an address or a connection through '
        'it needs that: iSCSI, NVMe over TCP and RDMA, NFS, and their '
        'targets.',
        'Linux 2.6.12',
        _is_up,
    ),
)

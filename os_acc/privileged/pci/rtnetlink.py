# SPDX-License-Identifier: Apache-2.0


"""The settings of VFs that are made on a PF: read and written by rtnetlink(7).

pyroute2 is needed for NICs only (the extra ``nic``), so it is imported where
it is used.
"""

from __future__ import annotations

from collections.abc import Callable
import errno
import os
from typing import Any

from os_acc import exception

#: The protocol of a VLAN tag: ETH_P_8021Q of include/uapi/linux/if_ether.h
IEEE_8021Q = 0x8100

#: The settings, by the names of objects.PortBinding.
SETTINGS = ('mac_address', 'vlan', 'trusted', 'spoof_check')

_WITH_VFS = 1  # RTEXT_FILTER_VF of include/uapi/linux/rtnetlink.h
_UNKNOWN = 0xFFFFFFFF  # preset by rtnl_fill_vfinfo() in net/core/rtnetlink.c


def read_vf(interface: int, number: int) -> dict[str, Any]:
    """Read the settings of a VF.

    :param interface: the number (ifindex) of the PF's interface
    :returns: values by SETTINGS and vlan_protocol; vlan is a list of id and
        priority; None if the PF's driver does not tell
    :raises OSError: what the kernel answered; ENODEV if there is no such
        interface or VF
    """
    links = _ask(
        lambda ip: ip.link('get', index=interface, ext_mask=_WITH_VFS)
    )
    infos = (
        info
        for link in links
        for listed in link.get_attrs('IFLA_VFINFO_LIST')
        for info in listed.get_attrs('IFLA_VF_INFO')
    )
    for info in infos:
        mac = info.get_attr('IFLA_VF_MAC')
        if mac is None or mac['vf'] != number:
            continue
        vlan = info.get_attr('IFLA_VF_VLAN')
        return {
            'mac_address': mac['mac'].lower(),
            'vlan': None if vlan is None else [vlan['vlan'], vlan['qos']],
            'vlan_protocol': _protocol(info),
            'trusted': _flag(info.get_attr('IFLA_VF_TRUST'), 'trust'),
            'spoof_check': _flag(
                info.get_attr('IFLA_VF_SPOOFCHK'), 'spoofchk'
            ),
        }
    raise OSError(errno.ENODEV, f'interface {interface} has no VF {number}')


def write_vf(interface: int, number: int, name: str, value: Any) -> None:
    """Change one setting of a VF.

    :param value: for vlan a list of id and priority, both 0 for none
    """
    change: dict[str, Any]
    if name == 'mac_address':
        change = {'mac': value}
    elif name == 'vlan':
        change = {'vlan': {'vlan': value[0], 'qos': value[1]}}
    else:
        key = {'trusted': 'trust', 'spoof_check': 'spoofchk'}[name]
        change = {key: int(value)}
    change['vf'] = number
    _ask(lambda ip: ip.link('set', index=interface, vf=change))


def _ask(act: Callable[[Any], Any]) -> list[Any]:
    try:
        import pyroute2
        from pyroute2.netlink import exceptions
    except ImportError as err:
        raise exception.PrivilegeError(
            reason="the settings of a NIC's VF need the Python package "
            'pyroute2, which is not installed: install os-acc[nic]'
        ) from err
    try:
        with pyroute2.IPRoute() as ip:
            return list(act(ip) or ())
    except exceptions.NetlinkError as err:
        raise OSError(err.code, os.strerror(err.code)) from err


def _flag(attribute: Any, key: str) -> bool | None:
    if attribute is None or attribute[key] == _UNKNOWN:
        return None
    return bool(attribute[key])


def _protocol(info: Any) -> int:
    """The protocol of the VLAN, which only the list of VLANs has."""
    for listed in info.get_attrs('IFLA_VF_VLAN_LIST'):
        for vlan in listed.get_attrs('IFLA_VF_VLAN_INFO'):
            return int(vlan['proto'])
    return IEEE_8021Q

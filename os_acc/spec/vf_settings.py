# SPDX-License-Identifier: Apache-2.0

"""What the VFs of a NIC have while no network port is set up on them.

It is the key vf_settings of an entry with num_vfs.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from typing import Any

from os_acc.spec import values as spec_values
from os_acc.texts import forms

Reader = Callable[[str, Any], Any]


@dataclasses.dataclass(frozen=True)
class VFSettings:
    """What the PF of a NIC sets for each of its VFs. None: nothing.

    :ivar mac_addresses: of the VFs, in the order of their numbers
    :ivar vlan: the id of the VLAN
    :ivar vlan_qos: the priority in its tag
    """

    mac_addresses: tuple[str, ...] = ()
    vlan: int | None = None
    vlan_qos: int | None = None
    trusted: bool | None = None
    spoof_check: bool | None = None

    def of_vf(self, number: int) -> dict[str, Any]:
        """What one VF has, as objects.PortBinding.settings().

        :param number: of the VF on its PF, from 0 on
        """
        vlan = None
        if self.vlan is not None:
            vlan = [self.vlan, self.vlan_qos or 0]
        macs = self.mac_addresses
        found = {
            'mac_address': macs[number] if number < len(macs) else None,
            'vlan': vlan,
            'trusted': self.trusted,
            'spoof_check': self.spoof_check,
        }
        return {k: v for k, v in found.items() if v is not None}


def read(key: str, value: Any) -> VFSettings:
    """Read the object that is the value of the key."""
    if not isinstance(value, dict) or not value:
        spec_values.refuse(key, value, f'an object with {", ".join(_READERS)}')
    spec_values.check_keys(key, value, _READERS)
    made = VFSettings(
        **{k: _READERS[k](f'{key}.{k}', v) for k, v in value.items()}
    )
    if made.vlan_qos is not None and not made.vlan:
        spec_values.refuse(
            f'{key}.vlan_qos', made.vlan_qos, 'no vlan_qos without a vlan'
        )
    return made


def check(
    settings: VFSettings | None, num_vfs: int | None, one_pf: bool
) -> None:
    """Check that the settings fit to the PFs and the VFs of their entry.

    :param one_pf: whether the entry names one PF only
    """
    if settings is None:
        return
    if num_vfs is None:
        expected = 'no vf_settings in an entry without num_vfs'
        given = dataclasses.asdict(settings)
        spec_values.refuse('vf_settings', given, expected)
    macs = settings.mac_addresses
    if macs and len(macs) != num_vfs:
        spec_values.refuse(
            'vf_settings.mac_addresses',
            ', '.join(macs),
            f'a MAC address for each of the {num_vfs} VFs',
        )
    if macs and not one_pf:
        spec_values.refuse(
            'vf_settings.mac_addresses',
            ', '.join(macs),
            'no mac_addresses in an entry that may name several PFs: set its '
            'address, without *, or devname',
        )


def _macs(key: str, value: Any) -> tuple[str, ...]:
    found = spec_values.texts(key, value)
    for each in found:
        if not forms.is_unicast_mac(each):
            spec_values.refuse(key, each, 'unicast MAC addresses')
    lower = tuple(each.lower() for each in found)
    if len({*lower}) != len(lower):
        spec_values.refuse(key, value, 'another MAC address for each VF')
    return lower


def _whole(most: int) -> Reader:
    def read(key: str, value: Any) -> int:
        if type(value) is not int or not 0 <= value <= most:
            spec_values.refuse(key, value, f'a number from 0 to {most}')
        return value

    return read


_READERS: dict[str, Reader] = {
    'mac_addresses': _macs,
    'vlan': _whole(forms.HIGHEST_VLAN),
    'vlan_qos': _whole(forms.HIGHEST_VLAN_PRIORITY),
    'trusted': spec_values.flag,
    'spoof_check': spec_values.flag,
}

# SPDX-License-Identifier: Apache-2.0


"""How a network port is to be set on the VF that serves it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from typing import NoReturn

from oslo_utils import strutils

from os_acc import exception
from os_acc.objects import base
from os_acc.objects import fields

# The types of ports whose device goes into the guest, by Neutron's names: a
# VF, and a whole PF. See nova/network/model.py.
_VF_TYPES = ('direct', 'accelerator-direct')
_PF_TYPES = ('direct-physical', 'accelerator-direct-physical')


@base.VersionedObjectRegistry.register
class PortBinding(base.VersionedObject):
    """What a network port needs from the PCI function that serves it.

    A driver sets mac_address, vlan, vlan_qos, trusted and spoof_check on the
    PF before the guest starts. None leaves a setting as it is.
    """

    VERSION = '1.0'

    mac_address: str | None = None
    vlan: int | None = None
    vlan_qos: int | None = None
    trusted: bool | None = None
    spoof_check: bool | None = None
    physical_network: str | None = None

    fields = {
        'mac_address': fields.MACAddressField(nullable=True),
        # The VLAN that the PF adds to and removes from the VF's frames
        # (802.1Q); 0 for none.
        'vlan': fields.VLANField(nullable=True),
        # The priority (PCP) in the tag of this VLAN. Unset, it is 0.
        'vlan_qos': fields.VLANPriorityField(nullable=True),
        # Whether the guest may change the VF's MAC address and use
        # promiscuous mode. Only a device whose entry of device_spec has
        # trusted set serves a port that asks for it.
        'trusted': fields.FlagField(nullable=True),
        # Whether the card drops frames that the guest sends from another MAC
        # address.
        'spoof_check': fields.FlagField(nullable=True),
        # The physical network that the function must be on.
        'physical_network': fields.NameField(nullable=True),
    }

    @classmethod
    def from_neutron(cls, port: Mapping[str, Any]) -> PortBinding:
        """Make a binding from a port of Neutron's REST API (v2.0).

        The VLAN is ``vlan`` of ``binding:vif_details``, which Neutron's SR-IOV
        mechanism driver sets; a port that Open vSwitch switches has none.
        ``trusted`` and ``physical_network`` are in ``binding:profile``.
        ``port_security_enabled`` decides the spoof check, unless Open vSwitch
        switches the port (the capability ``switchdev`` in the profile): then
        it does not let such frames pass. A port of a whole PF only has a
        physical network, because there is no PF that could set the others.

        :param port: ``port`` in Neutron's response, as an administrator gets
            it; unknown keys are ignored
        :raises InvalidRequest: if the port is of a type that no VF or PF
            serves, or a value is malformed; the error names port, field and
            value
        """
        source = _Port(port)
        made = cls()
        profile = source.part('binding:profile')
        if source.is_of_vf():
            details = source.part('binding:vif_details')
            source.copy(made, 'mac_address', port, 'mac_address', needed=True)
            source.copy(made, 'vlan', details, 'binding:vif_details.vlan')
            if not source.is_switched_by_card(profile):
                source.copy(made, 'spoof_check', port, 'port_security_enabled')
            source.copy(made, 'trusted', profile, 'binding:profile.trusted')
        source.copy(
            made,
            'physical_network',
            profile,
            'binding:profile.physical_network',
        )
        return made

    def settings(self) -> dict[str, Any]:
        """What is to be set on the PF, by field; empty if nothing is.

        :returns: the values that are not None; that of vlan is a list of the
            VLAN's id and priority
        :raises InvalidRequest: if vlan_qos is set without a VLAN
        """
        if self.vlan_qos and not self.vlan:
            raise exception.InvalidRequest(
                subject='PortBinding',
                field='vlan_qos',
                value=self.vlan_qos,
                expected='none without a vlan of 1 to 4094',
            )
        found = {
            name: value
            for name in ('mac_address', 'vlan', 'trusted', 'spoof_check')
            if (value := getattr(self, name)) is not None
        }
        if 'vlan' in found:
            found['vlan'] = [self.vlan, self.vlan_qos or 0]
        return found


class _Port:
    """A port of Neutron that is being read."""

    def __init__(self, port: Any) -> None:
        self.name = 'port'
        if not isinstance(port, Mapping):
            self.refuse('port', port, 'a dict')
        self.name = f'port {port.get("id")!s:.80}'
        self.port = port

    def refuse(self, field: str, value: Any, expected: str) -> NoReturn:
        raise exception.InvalidRequest(
            subject=self.name, field=field, value=value, expected=expected
        )

    def is_of_vf(self) -> bool:
        key = 'binding:vnic_type'
        kind = self.port.get(key)
        if kind in _PF_TYPES:
            return False
        if kind not in _VF_TYPES:
            self.refuse(
                key, kind, 'one of ' + ', '.join((*_VF_TYPES, *_PF_TYPES))
            )
        return True

    def is_switched_by_card(self, profile: Mapping[str, Any]) -> bool:
        """Whether Open vSwitch switches the port, in the card."""
        capabilities = profile.get('capabilities') or []
        if not isinstance(capabilities, list | tuple):
            self.refuse('binding:profile.capabilities', capabilities, 'a list')
        return 'switchdev' in capabilities

    def part(self, key: str) -> Mapping[str, Any]:
        """A dict in the port; empty if it is absent."""
        value = self.port.get(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.refuse(key, value, 'a dict')
        return value

    def copy(
        self,
        target: PortBinding,
        name: str,
        values: Mapping[str, Any],
        field: str,
        needed: bool = False,
    ) -> None:
        """Set a field of the target.

        :param name: the target's field
        :param values: the dict that has the value
        :param field: the name of the value in the port, for the error
        :param needed: whether the value must be there
        """
        value = values.get(field.rpartition('.')[2])
        if value is None:
            if needed:
                self.refuse(field, value, 'a value')
            return
        try:
            setattr(target, name, _READ.get(name, _same)(value))
        except exception.InvalidRequest as err:
            self.refuse(field, value, err.kwargs['expected'])
        except ValueError as err:
            self.refuse(field, value, str(err))


def _same(value: Any) -> Any:
    return value


def _flag(value: Any) -> Any:
    """In a profile, true is written in several ways: Nova reads them alike."""
    if isinstance(value, str):
        return strutils.bool_from_string(value, strict=True)
    return value


def _number(value: Any) -> Any:
    """In the details of a VIF, Neutron writes the VLAN as a text."""
    if isinstance(value, str) and value.isdecimal():
        return int(value)
    return value


_READ = {'trusted': _flag, 'vlan': _number}

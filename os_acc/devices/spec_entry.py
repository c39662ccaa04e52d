# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""One entry of device_spec: its keys, and which devices it names."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from typing import Any

from os_acc.devices import host_parts
from os_acc.devices import pci
from os_acc.devices import reset
from os_acc.devices import spec_address
from os_acc.devices import spec_commands
from os_acc.devices import spec_values
from os_acc.devices import sysfs

BIND_OS_ACC, BIND_LIBVIRT, BIND_NONE = 'os-acc', 'libvirt', 'none'
BINDS = (BIND_OS_ACC, BIND_LIBVIRT, BIND_NONE)

#: What a function is bound to between two guests: a VFIO driver, or the
#: driver that it had before os-acc took it.
BETWEEN_VFIO, BETWEEN_HOST = 'vfio', 'host'

#: The ways to program a device: a vendor's command, the kernel's interface for
#: DFL cards, its FPGA managers, and AMD's tools with user images.
PROGRAMMER_COMMAND = 'command'
PROGRAMMER_DFL = 'dfl'
PROGRAMMER_FPGA_MANAGER = 'fpga_manager'
PROGRAMMER_AMD = 'amd'
PROGRAMMERS = (
    PROGRAMMER_COMMAND,
    PROGRAMMER_DFL,
    PROGRAMMER_FPGA_MANAGER,
    PROGRAMMER_AMD,
)

#: What must happen after programming before the function can be used:
#: nothing; the PCI device leaves the bus and comes back; the host is switched
#: off and on, and until then the device has its old function.
PARTIAL, REENUMERATE, COLD_REBOOT = 'partial', 'reenumerate', 'cold_reboot'
ACTIVATIONS = (PARTIAL, REENUMERATE, COLD_REBOOT)


@dataclasses.dataclass(frozen=True)
class Spec:
    """One entry of the option.

    The fields from address to one_time_use are Nova's keys.

    :ivar address: which devices it names, if devname is None
    :ivar devname: a network interface. The entry names the PCI function that
        has it and, if that is a PF, its VFs
    :ivar vendor_id: 4 hex digits, as product_id; None: any
    :ivar resource_class: replaces the one that os-acc would use; normalised
    :ivar traits: in addition to those that os-acc sets; normalised
    :ivar physical_network: Neutron's name of the network that the device is
        connected to; None: none, or an overlay
    :ivar trusted: whether ports that request a trusted VF may have it
    :ivar live_migratable: whether a guest can be migrated live with it
    :ivar one_time_use: whether it is reserved after its release, until the
        operator frees it
    :ivar bind: who binds a function to VFIO; None: as the driver's option
    :ivar vfio_driver: the VFIO driver to bind it to; None: the one that the
        kernel's module aliases name
    :ivar between_tenants: BETWEEN_VFIO or BETWEEN_HOST; None: not set
    :ivar companions: whether the other functions of a GPU in its IOMMU group,
        such as audio and USB, go to the guest with it
    :ivar command_empties: whether cleaning_command empties the functions, if
        they store data
    :ivar num_vfs: how many VFs os-acc creates on a PF; None: none
    :ivar reset: one of reset.MODES; None: as the driver's option
    :ivar mdev_types: the mdev types that may be made; empty: all
    :ivar vgpu_type: the vGPU type, by id or name, that its VFs get
    :ivar max_instances: how many vGPUs of the type one card can have; None: as
        the vendor's software says
    :ivar programming: single or dynamic, as in objects.Device
    :ivar programmer: how it is programmed: one of PROGRAMMERS; None: it is
        not programmed
    :ivar activation: what must happen after programming before the function
        can be used, one of ACTIVATIONS; None: as the programmer says
    :ivar program: the command that programs a device, see
        privileged.programming
    :ivar check: the command that checks which function a device contains
    :ivar clear: the command that removes the function from a device
    :ivar progress: a regular expression whose group is the percentage in the
        output of a command, see spec_commands.progress()
    :ivar function_file: a glob below the device's folder in sysfs, for the
        file that contains the id of the device's function
    :ivar persistent: whether a device keeps its function over a reboot of the
        host
    :ivar region_type: the region type that bitstreams must be made for
    :ivar deny: the devices that it names are not offered, whatever the other
        entries say
    :ivar source: where the entry is: the option or file, and its number
    """

    address: spec_address.Address = spec_address.ANY
    devname: str | None = None
    vendor_id: str | None = None
    product_id: str | None = None
    resource_class: str | None = None
    traits: tuple[str, ...] = ()
    physical_network: str | None = None
    trusted: bool | None = None
    live_migratable: bool | None = None
    one_time_use: bool | None = None
    bind: str | None = None
    vfio_driver: str | None = None
    between_tenants: str | None = None
    companions: bool = False
    command_empties: bool = False
    num_vfs: int | None = None
    reset: str | None = None
    mdev_types: tuple[str, ...] = ()
    vgpu_type: str | None = None
    max_instances: int | None = None
    programming: str = 'single'
    programmer: str | None = None
    activation: str | None = None
    program: tuple[str, ...] = ()
    check: tuple[str, ...] = ()
    clear: tuple[str, ...] = ()
    progress: str | None = None
    function_file: str | None = None
    persistent: bool = False
    region_type: str | None = None
    deny: bool = False
    source: str = ''

    def matches(self, function: pci.Function) -> bool:
        """Whether the entry names a PCI function.

        As in Nova, the address or devname of a PF stands for its VFs too, and
        the ids are those of the function itself. The keys that are about the
        VFs of a PF name the VFs of each PF that the entry names, because VFs
        may have another product id than their PF. An entry that denies a PF
        denies its VFs too. An entry that names every device does not name
        parts of the host, see the module host_parts.
        """
        if self._names(function):
            return True
        if not (
            self.num_vfs or self.vgpu_type or self.programmer or self.deny
        ):
            return False
        parent = function.physfn
        pf = pci.find(parent) if parent is not None else None
        return pf is not None and self._names(pf)

    def matches_parent(self, name: str) -> bool:
        """Whether it names a parent of mdevs that is no PCI function."""
        return (
            self.devname is None
            and self.vendor_id is None
            and self.product_id is None
            and self.address.names_parent(name)
        )

    def allows_mdev(self, kind: str) -> bool:
        """Whether mdevs of a type may be made on the parents it names."""
        return not self.mdev_types or kind in self.mdev_types

    @property
    def names_any(self) -> bool:
        """Whether it names devices of any ids and on any bus."""
        return (
            self.vendor_id is None
            and self.product_id is None
            and self.devname is None
            and self.address.is_open
        )

    def _names(self, function: pci.Function) -> bool:
        # A denial of every device is meant for all.
        if self.names_any and not self.deny and host_parts.what(function):
            return False
        if self.vendor_id not in (None, function.vendor_id):
            return False
        if self.product_id not in (None, function.product_id):
            return False
        if self.devname is None:
            return self.address.names(function)
        return self._interface_owner() in (function.address, function.physfn)

    def names_interface_of(self, function: pci.Function) -> bool:
        """Whether it names a function by the function's own interface.

        The function loses the interface when it is bound to VFIO, and then
        the entry no longer names it.
        """
        return self._interface_owner() == function.address

    def _interface_owner(self) -> str:
        """The address of the function with the interface; empty if none."""
        if self.devname is None:
            return ''
        path = f'{sysfs.SYS}/class/net/{self.devname}/device'
        return sysfs.link(path) or ''


def _managed(key: str, value: Any) -> str:
    """Read who binds a function to VFIO, as Nova says it.

    With ``managed: no``, Nova expects that the operator has bound it already.
    """
    return BIND_LIBVIRT if spec_values.flag(key, value) else BIND_NONE


def _remote_managed(key: str, value: Any) -> None:
    if spec_values.flag(key, value):
        spec_values.refuse(
            key,
            value,
            'false: os-acc does not attach VFs that a SmartNIC DPU manages; '
            "leave them to Nova's [pci] device_spec",
        )


Reader = Callable[[str, Any], Any]

# Nova's keys without the ids. null means the same as leaving the key out.
_NOVA: dict[str, Reader] = {
    'address': spec_address.read,
    'devname': spec_values.interface,
    'resource_class': spec_values.resource_class,
    'traits': spec_values.traits,
    'physical_network': spec_values.text,
    'trusted': spec_values.flag,
    'live_migratable': spec_values.flag,
    'one_time_use': spec_values.flag,
    'managed': _managed,
    'remote_managed': _remote_managed,
}

_KEYS: dict[str, Reader] = _NOVA | {
    'vendor_id': spec_values.pci_id,
    'product_id': spec_values.pci_id,
    'bind': spec_values.one_of(*BINDS),
    'vfio_driver': spec_values.kernel_driver,
    'between_tenants': spec_values.one_of(BETWEEN_VFIO, BETWEEN_HOST),
    'companions': spec_values.flag,
    'command_empties': spec_values.flag,
    'num_vfs': spec_values.count,
    'reset': spec_values.one_of(*reset.MODES),
    'mdev_types': spec_values.texts,
    'vgpu_type': spec_values.text,
    'max_instances': spec_values.count,
    'programming': spec_values.one_of('single', 'dynamic'),
    'programmer': spec_values.one_of(*PROGRAMMERS),
    'activation': spec_values.one_of(*ACTIVATIONS),
    'program': spec_commands.program,
    'check': spec_commands.check,
    'clear': spec_commands.clear,
    'progress': spec_commands.progress,
    'function_file': spec_values.glob_below,
    'persistent': spec_values.flag,
    'region_type': spec_values.text,
    'deny': spec_values.flag,
}

# An entry with one of these keys offers parts of devices only.
_PARTS = ('vgpu_type', 'mdev_types')
# The keys that apply to every entry.
_ALWAYS = frozenset(
    {
        'address',
        'devname',
        'vendor_id',
        'product_id',
        'resource_class',
        'traits',
        'max_instances',
        'deny',
        'remote_managed',
    }
)
# The keys that apply only to entries whose devices are programmed.
_PROGRAMMING = frozenset(
    {
        'programming',
        'activation',
        'check',
        'clear',
        'progress',
        'function_file',
        'persistent',
        'region_type',
    }
)
# The keys that have no effect with a programmer.
_OF_COMMANDS = frozenset({'program', 'check', 'clear', 'progress'})
_NOT_WITH = {
    PROGRAMMER_COMMAND: frozenset[str](),
    PROGRAMMER_DFL: _OF_COMMANDS,
    PROGRAMMER_FPGA_MANAGER: _OF_COMMANDS | {'function_file'},
    PROGRAMMER_AMD: _OF_COMMANDS | {'function_file', 'activation'},
}
# The keys that apply, by what an entry is for.
_FOR_PARTS = _ALWAYS | frozenset(_PARTS)
_FOR_PROGRAMMING = frozenset(_KEYS) - frozenset(_PARTS)
_FOR_OTHERS = frozenset(_KEYS) - _PROGRAMMING


def _check_applies(item: dict[str, Any], spec: Spec) -> None:
    """Check that no key is set that has no effect in this entry.

    :raises InvalidRequest: if there is one
    """
    parts = [key for key in _PARTS if getattr(spec, key)]
    if parts:
        applying = _FOR_PARTS
    elif spec.programmer is not None:
        applying = _FOR_PROGRAMMING
    else:
        applying = _FOR_OTHERS
    for key, value in item.items():
        field = 'bind' if key == 'managed' else key
        now = getattr(spec, field, None)
        if key in applying or not now or now == getattr(Spec, field):
            continue
        if not parts:
            why = f'no {key} in an entry without program or programmer'
        elif key == 'one_time_use':
            why = (
                f'no one_time_use in an entry with {parts[0]}: only whole '
                'functions and VFs can be reserved after their release'
            )
        else:
            why = (
                f'no {key} in an entry with {parts[0]}: it applies to whole '
                'functions and VFs only'
            )
        spec_values.refuse(key, value, why)


def read(item: dict[str, Any]) -> Spec:
    """Read one entry.

    :param item: the JSON object
    :raises InvalidRequest: if a key or value is invalid, or a key has no
        effect beside the others; the error names it
    """
    values: dict[str, Any] = {}
    for key, value in item.items():
        if key not in _KEYS:
            spec_values.refuse(
                'key', key, f'one of {", ".join(sorted(_KEYS))}'
            )
        if value is not None or key not in _NOVA:
            values[key] = _KEYS[key](key, value)
    if values.get('devname') is not None and 'address' in values:
        spec_values.refuse(
            'devname',
            item['devname'],
            'no devname if there is an address: they exclude each other',
        )
    values.pop('remote_managed', None)
    bind = values.pop('managed', None)
    values.setdefault('bind', bind)
    if 'program' in values:
        values.setdefault('programmer', PROGRAMMER_COMMAND)
    spec = Spec(**values)
    _check_programmer(item, spec)
    _check_applies(item, spec)
    return spec


def _check_programmer(item: dict[str, Any], spec: Spec) -> None:
    """Check that the keys fit to how the devices are programmed.

    :raises InvalidRequest: if one does not
    """
    if spec.programmer is None:
        return
    if spec.programmer == PROGRAMMER_COMMAND and not spec.program:
        spec_values.refuse(
            'program', None, 'a command, because the programmer is command'
        )
    if spec.check and spec.activation not in (None, PARTIAL):
        spec_values.refuse(
            'check',
            item['check'],
            f'no check if the activation is {spec.activation}: it would run '
            'before the function can be used',
        )
    for key in sorted(_NOT_WITH[spec.programmer] & item.keys()):
        spec_values.refuse(
            key,
            item[key],
            f'no {key} in an entry with the programmer {spec.programmer}',
        )
    if spec.programming != 'single' and spec.programmer in (
        PROGRAMMER_AMD,
        PROGRAMMER_FPGA_MANAGER,
    ):
        spec_values.refuse(
            'programming',
            spec.programming,
            f'single if the programmer is {spec.programmer}: it programs the '
            'card as a whole',
        )

# SPDX-License-Identifier: Apache-2.0

"""One entry of device_spec: what it says, and which devices it names."""

from __future__ import annotations

import dataclasses
import json
from typing import Any
from typing import NamedTuple

from os_acc import exception
from os_acc.kernel import host_parts
from os_acc.kernel import pci
from os_acc.kernel import sriov
from os_acc.kernel import sysfs
from os_acc.kinds.idxd import entry as spec_idxd
from os_acc.kinds.nvme_of import entry as spec_nvme_of
from os_acc.spec import address as spec_address
from os_acc.spec import edits as spec_edits
from os_acc.spec import vf_settings as spec_vf_settings

BIND_OS_ACC, BIND_LIBVIRT, BIND_NONE = 'os-acc', 'libvirt', 'none'
BINDS = (BIND_OS_ACC, BIND_LIBVIRT, BIND_NONE)

#: os-acc binds it to host_driver, for a service of the host itself. No entry
#: says this: it depends on who gets the function.
BIND_HOST = 'host'

#: What a function is bound to between two guests: a VFIO driver, or the
#: driver that it had before os-acc took it.
BETWEEN_VFIO, BETWEEN_HOST = 'vfio', 'host'

#: The ways to program a device: a vendor's command, the kernel's interface for
#: DFL cards, and AMD's tools with user images.
PROGRAMMER_COMMAND = 'command'
PROGRAMMER_DFL = 'dfl'
PROGRAMMER_AMD = 'amd'
PROGRAMMERS = (PROGRAMMER_COMMAND, PROGRAMMER_DFL, PROGRAMMER_AMD)

#: What must happen after programming before the function can be used:
#: nothing; the PCI device leaves the bus and comes back; the host is switched
#: off and on, and until then the device has its old function.
PARTIAL, REENUMERATE, COLD_REBOOT = 'partial', 'reenumerate', 'cold_reboot'
ACTIVATIONS = (PARTIAL, REENUMERATE, COLD_REBOOT)


class OfKind(NamedTuple):
    """What an entry says that offers devices of one kind only.

    :ivar kind: the kind, whose module ``entry`` reads such entries
    :ivar settings: what it has read of the keys that only this kind has
    """

    kind: str
    settings: Any


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
    :ivar host_driver: the kernel driver to bind it to for a service of the
        host itself; None: as for a guest
    :ivar between_tenants: BETWEEN_VFIO or BETWEEN_HOST; None: not set
    :ivar companions: whether the other functions of a GPU in its IOMMU group,
        such as audio and USB, go to the guest with it
    :ivar command_empties: whether cleaning_command empties the functions, if
        they store data
    :ivar num_vfs: how many VFs os-acc creates on a PF; None: none
    :ivar vf_settings: what the VFs of a NIC have while no port is set up on
        them; None: what their PF's driver gives them
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
    :ivar function_file: a glob below the device's directory in sysfs, for the
        file that contains the id of the device's function
    :ivar persistent: whether a device keeps its function over a reboot of the
        host
    :ivar region_type: the region type that bitstreams must be made for
    :ivar devices: globs of the device files that it names, each of which is
        an accelerator. It then names no PCI function and no parent of mdevs
    :ivar companion_files: globs of the files that are given out together with
        each of them
    :ivar shared: how many VANs may have one at once, or
        spec_device_files.ANY_NUMBER; None: one only
    :ivar owner: the user, by name or number, that a file belongs to while a
        VAN has it; None: it is not changed, as group and mode
    :ivar permissions: what a container may do with the files
    :ivar keeps_data: whether a device that stores data is given out although
        it is not emptied
    :ivar env: variables of the environment that a container gets with it, see
        spec_edits
    :ivar mounts: the files of the host that a container gets with it
    :ivar hooks: what the container runtime runs for it
    :ivar of_kind: set if the entry has the key of one kind, and offers nothing
        else of its devices
    :ivar nvme_of: the namespaces that it names; it then names nothing else
    :ivar deny: the devices that it names are not offered, whatever the other
        entries say
    :ivar was: the ids of the device that the entry was written to deny,
        vendor:product; they do not count, see doctor.entries
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
    host_driver: str | None = None
    between_tenants: str | None = None
    companions: bool = False
    command_empties: bool = False
    num_vfs: int | None = None
    vf_settings: spec_vf_settings.VFSettings | None = None
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
    devices: tuple[str, ...] = ()
    companion_files: tuple[str, ...] = ()
    shared: int | None = None
    owner: str | None = None
    group: str | None = None
    mode: int | None = None
    permissions: str = 'rw'
    keeps_data: bool = False
    env: tuple[str, ...] = ()
    mounts: tuple[spec_edits.Mount, ...] = ()
    hooks: tuple[spec_edits.Hook, ...] = ()
    of_kind: OfKind | None = None
    nvme_of: spec_nvme_of.Target | None = None
    deny: bool = False
    was: str | None = None
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
            self.nvme_of is None
            and self.devname is None
            and self.vendor_id is None
            and self.product_id is None
            and self.address.names_parent(name)
        )

    def matches_namespace(self, wwn: str) -> bool:
        """Whether it names a namespace of an NVMe-oF target.

        An entry that denies may name it by its address. No other entry can:
        it would not say where the namespace comes from.
        """
        if self.nvme_of is not None:
            return wwn in self.nvme_of.namespaces
        return self.deny and self.matches_parent(wwn)

    def allows_mdev(self, kind: str) -> bool:
        """Whether mdevs of a type may be made on the parents it names."""
        return not self.mdev_types or kind in self.mdev_types

    @property
    def edits(self) -> spec_edits.Edits:
        """What a container gets with one of its devices."""
        return spec_edits.Edits(self.env, self.mounts, self.hooks)

    @property
    def queues(self) -> spec_idxd.Queues | None:
        """How the work queues of the device are set up."""
        found: spec_idxd.Queues | None = self.settings_of('idxd')
        return found

    def settings_of(self, kind: str) -> Any:
        """The settings for one kind; None: the entry is not of that kind."""
        if self.of_kind is None or self.of_kind.kind != kind:
            return None
        return self.of_kind.settings

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
        if self.nvme_of is not None:
            return False
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


# The entries of device_spec that offer one device, as os-acc writes them.
#
# A place is not a device: after a card was added or moved, another device may
# be at an address. So the entries have the ids of the device beside its
# address.


Entry = dict[str, Any]


def entries(name: str) -> list[Entry]:
    """The entries that offer a device; the first one is its own.

    The ids of an entry are those of the function itself. So a PF whose VFs
    have another product id has a second entry for them.

    :param name: a PCI address, or the name of a parent of mdevs, which has no
        ids
    """
    function = _find(name)
    if function is None:
        return [{'address': name}]
    products = [function.product_id]
    vf_product = sriov.vf_product_id(name) if function.is_pf else None
    if vf_product not in (None, *products):
        products.append(vf_product or '')
    return [
        {'address': name, **_ids(function.vendor_id, product)}
        for product in products
    ]


def ids_of(name: str) -> Entry:
    """The keys with the ids of the device at an address; empty if unknown."""
    function = _find(name)
    if function is None:
        return {}
    return _ids(function.vendor_id, function.product_id)


def line(entry: Entry) -> str:
    """The line of a configuration file that adds an entry."""
    return f'device_spec = {json.dumps(entry)}'


def _ids(vendor: str, product: str) -> Entry:
    return {'vendor_id': vendor, 'product_id': product}


def _find(name: str) -> pci.Function | None:
    """The function at an address; None: there is none, or it is unreadable."""
    try:
        return pci.find(name) if pci.is_address(name) else None
    except (OSError, exception.DeviceError):
        return None

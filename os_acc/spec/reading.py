# SPDX-License-Identifier: Apache-2.0

"""Reading one entry of device_spec: its keys, and which go together."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
import functools
import types
from typing import Any

from os_acc import kinds
from os_acc.kernel import reset
from os_acc.kinds.devfile import entry as spec_device_files
from os_acc.kinds.nvme_of import entry as spec_nvme_of
from os_acc.spec import address as spec_address
from os_acc.spec import commands as spec_commands
from os_acc.spec import edits as spec_edits
from os_acc.spec import entry as spec_entry
from os_acc.spec import values as spec_values
from os_acc.spec import vf_settings as spec_vf_settings


def _managed(key: str, value: Any) -> str:
    """Read who binds a function to VFIO, as Nova says it.

    With ``managed: no``, Nova expects that the operator has bound it already.
    """
    return (
        spec_entry.BIND_LIBVIRT
        if spec_values.flag(key, value)
        else spec_entry.BIND_NONE
    )


def _remote_managed(key: str, value: Any) -> None:
    if spec_values.flag(key, value):
        spec_values.refuse(
            key,
            value,
            'false: os-acc does not attach VFs that a SmartNIC DPU manages; '
            "leave them to Nova's [pci] device_spec",
        )


def _mdev_types(key: str, value: Any) -> tuple[str, ...]:
    found = spec_values.texts(key, value)
    if not found:
        # It would count as no mdev_types, and offer the whole device.
        spec_values.refuse(key, value, 'at least one mdev type')
    return found


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

_KEYS: dict[str, Reader] = (
    _NOVA
    | {
        'vendor_id': spec_values.pci_id,
        'product_id': spec_values.pci_id,
        'bind': spec_values.one_of(*spec_entry.BINDS),
        'vfio_driver': spec_values.kernel_driver,
        'host_driver': spec_values.host_driver,
        'between_tenants': spec_values.one_of(
            spec_entry.BETWEEN_VFIO, spec_entry.BETWEEN_HOST
        ),
        'companions': spec_values.flag,
        'command_empties': spec_values.flag,
        'num_vfs': spec_values.count,
        'vf_settings': spec_vf_settings.read,
        'reset': spec_values.one_of(*reset.MODES),
        'mdev_types': _mdev_types,
        'vgpu_type': spec_values.text,
        'max_instances': spec_values.count,
        'programming': spec_values.one_of('single', 'dynamic'),
        'programmer': spec_values.one_of(*spec_entry.PROGRAMMERS),
        'activation': spec_values.one_of(*spec_entry.ACTIVATIONS),
        'program': spec_commands.program,
        'check': spec_commands.check,
        'clear': spec_commands.clear,
        'progress': spec_commands.progress,
        'function_file': spec_values.glob_below,
        'persistent': spec_values.flag,
        'region_type': spec_values.text,
        'env': spec_edits.env,
        'mounts': spec_edits.mounts,
        'hooks': spec_edits.hooks,
        'nvme_of': spec_nvme_of.read,
        'deny': spec_values.flag,
        'was': spec_values.ids,
    }
    | {name: key.read for name, key in spec_device_files.KEYS.items()}
)

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
        'env',
        'mounts',
        'hooks',
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
    spec_entry.PROGRAMMER_COMMAND: frozenset({'host_driver'}),
    spec_entry.PROGRAMMER_DFL: _OF_COMMANDS | {'host_driver'},
    spec_entry.PROGRAMMER_AMD: _OF_COMMANDS
    | {'host_driver', 'function_file', 'activation'},
}
# The keys that apply, by what an entry is for.
_FOR_PARTS = _ALWAYS | frozenset(_PARTS)
_FOR_FUNCTIONS = frozenset(_KEYS) - spec_device_files.KEYS.keys()
_FOR_PROGRAMMING = _FOR_FUNCTIONS - frozenset(_PARTS)
_FOR_OTHERS = _FOR_FUNCTIONS - _PROGRAMMING
_FOR_NAMESPACES = frozenset(
    {'nvme_of', 'resource_class', 'traits', 'env', 'mounts', 'hooks', 'deny'}
)


def _check_applies(item: dict[str, Any], spec: spec_entry.Spec) -> None:
    """Check that no key is set that has no effect in this entry."""
    parts = [key for key in _PARTS if getattr(spec, key)]
    if spec.nvme_of is not None:
        for key in sorted(item.keys() - _FOR_NAMESPACES):
            spec_values.refuse(
                key,
                item[key],
                f'no {key} in an entry with nvme_of: it names no device of '
                'this host',
            )
        return
    if parts:
        applying = _FOR_PARTS
    elif spec.programmer is not None:
        applying = _FOR_PROGRAMMING
    else:
        applying = _FOR_OTHERS
    for key, value in item.items():
        field = 'bind' if key == 'managed' else key
        now = getattr(spec, field, None)
        if (
            key in applying
            or not now
            or now == getattr(spec_entry.Spec, field)
        ):
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


@functools.cache
def _of_kinds() -> Mapping[str, types.ModuleType]:
    """What reads the entries with a key that only one kind has.

    Such a module ``entry`` has: KEY, whose presence makes an entry one of the
    kind; KEYS, all keys that no other entry has; CLASSES, the resource classes
    if such an entry sets none; OFFERS, the devices in words; and read(), which
    gives Spec.of_kind.settings and the other values of Spec.
    """
    return {
        kind: entry
        for kind, entry in kinds.having('entry').items()
        if hasattr(entry, 'KEY')
    }


def read(item: dict[str, Any]) -> spec_entry.Spec:
    """Read one entry.

    :raises InvalidRequest: if a key or value is invalid, or a key has no
        effect beside the others; the error names it
    """
    for kind, entry in _of_kinds().items():
        if entry.KEY in item:
            settings, values = entry.read(item, _KEYS)
            of_kind = spec_entry.OfKind(kind, settings)
            return spec_entry.Spec(of_kind=of_kind, **values)
    values = {}
    for key, value in item.items():
        _check_known(key, value)
        if value is not None or key not in _NOVA:
            values[key] = _KEYS[key](key, value)
    if values.get('devname') is not None and 'address' in values:
        spec_values.refuse(
            'devname',
            item['devname'],
            'no devname if there is an address: they exclude each other',
        )
    spec_device_files.check(item)
    if 'devices' in item:
        values['address'] = spec_address.NONE
        return spec_entry.Spec(**spec_device_files.fields(values))
    values.pop('remote_managed', None)
    bind = values.pop('managed', None)
    values.setdefault('bind', bind)
    if 'program' in values:
        values.setdefault('programmer', spec_entry.PROGRAMMER_COMMAND)
    spec = spec_entry.Spec(**values)
    if spec.was is not None and not spec.deny:
        spec_values.refuse(
            'was',
            spec.was,
            'no key "was" in an entry without deny: set vendor_id and '
            'product_id',
        )
    one_pf = bool(spec.address.complete or spec.devname)
    spec_vf_settings.check(spec.vf_settings, spec.num_vfs, one_pf)
    _check_programmer(item, spec)
    _check_applies(item, spec)
    return spec


def _check_known(key: str, value: Any) -> None:
    """Check that an entry without the key of one kind can have a key."""
    entries = _of_kinds().values()
    for entry in entries:
        if key in entry.KEYS:
            spec_values.refuse(
                key, value, f'no {key} in an entry without {entry.KEY}'
            )
    if key not in _KEYS:
        known = [*_KEYS, *(entry.KEY for entry in entries)]
        spec_values.refuse_key(key, known)


def _check_programmer(item: dict[str, Any], spec: spec_entry.Spec) -> None:
    """Check that the keys fit to how the devices are programmed."""
    if spec.programmer is None:
        return
    if spec.programmer == spec_entry.PROGRAMMER_COMMAND and not spec.program:
        spec_values.refuse(
            'program', None, 'a command, because the programmer is command'
        )
    if spec.check and spec.activation not in (None, spec_entry.PARTIAL):
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
    if (
        spec.programming != 'single'
        and spec.programmer == spec_entry.PROGRAMMER_AMD
    ):
        spec_values.refuse(
            'programming',
            spec.programming,
            f'single if the programmer is {spec.programmer}: it programs the '
            'card as a whole',
        )

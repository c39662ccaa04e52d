# SPDX-License-Identifier: Apache-2.0

"""The keys of an entry of device_spec that offers work queues of idxd.

Such an entry has the key ``idxd``, with the PCI address of a device of Intel
DSA or IAA. It says how os-acc sets up the work queues of that device.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from typing import Any

from os_acc.kernel import pci
from os_acc.spec import address as spec_address
from os_acc.spec import values as spec_values

DEDICATED, SHARED = 'dedicated', 'shared'
MODES = (DEDICATED, SHARED)

# IDXD_MAX_PRIORITY in drivers/dma/idxd/idxd.h
_HIGHEST_PRIORITY = 15
_LARGEST = 2**32


@dataclasses.dataclass(frozen=True)
class Queues:
    """How the work queues of a device are set up.

    :ivar wq_mode: DEDICATED: one process at a time can have the queue open;
        SHARED: several can
    :ivar wq_size: how many entries each queue has; None: the queues share the
        entries of the device evenly
    :ivar wq_count: how many queues are set up; None: as many as the device can
        have with this size
    :ivar wq_groups: how many groups the queues and the engines of the device
        are distributed to
    :ivar priority: of each queue relative to the others of its group, 1 to 15
    :ivar threshold: how many entries of a shared queue an unprivileged program
        can fill; None: all
    :ivar max_batch_size: descriptors in a batch; None: as the kernel sets it
    :ivar max_transfer_size: bytes of one operation; None: as the kernel sets
        it
    """

    wq_mode: str = DEDICATED
    wq_size: int | None = None
    wq_count: int | None = None
    wq_groups: int = 1
    priority: int = 10
    threshold: int | None = None
    max_batch_size: int | None = None
    max_transfer_size: int | None = None


def _number(most: int, what: str) -> Callable[[str, Any], int]:
    def read(key: str, value: Any) -> int:
        if type(value) is not int or not 1 <= value <= most:
            spec_values.refuse(key, value, f'{what}, 1 to {most}')
        return int(value)

    return read


_power = _number(_LARGEST, 'a power of two')


def _power_of_two(key: str, value: Any) -> int:
    # The kernel would round another number up.
    number = _power(key, value)
    if number & (number - 1):
        spec_values.refuse(key, value, f'a power of two, 1 to {_LARGEST}')
    return number


_READERS: dict[str, Callable[[str, Any], Any]] = {
    'wq_mode': spec_values.one_of(*MODES),
    'wq_size': _number(65535, 'a number of entries'),
    'wq_count': _number(256, 'a number of work queues'),
    'wq_groups': _number(64, 'a number of groups'),
    'priority': _number(_HIGHEST_PRIORITY, 'a priority'),
    'threshold': _number(65535, 'a number of entries'),
    'max_batch_size': _power_of_two,
    'max_transfer_size': _power_of_two,
}

#: Its presence makes an entry one for work queues.
KEY = 'idxd'
#: The keys of such an entry, without those that every entry can have.
KEYS = frozenset({KEY, *_READERS})
#: What such an entry offers.
OFFERS = 'work queues'
#: The resource classes if it sets none.
CLASSES = ('CUSTOM_DSA', 'CUSTOM_IAA')


def read(
    item: dict[str, Any], common: dict[str, Callable[[str, Any], Any]]
) -> tuple[Queues, dict[str, Any]]:
    """Read an entry with the key idxd.

    :param item: the JSON object
    :param common: the readers of the keys that every entry can have
    :returns: the settings, and the other values of spec_entry.Spec
    """
    values: dict[str, Any] = {'address': _address(item['idxd'])}
    settings: dict[str, Any] = {}
    for key, value in item.items():
        if key in _READERS:
            settings[key] = _READERS[key](key, value)
        elif key in spec_values.OF_EACH_KIND:
            values[key] = common[key](key, value)
        elif key != 'idxd':
            spec_values.refuse_key(
                key, KEYS | spec_values.OF_EACH_KIND, ', in an entry with idxd'
            )
    queues = Queues(**settings)
    if queues.threshold is not None:
        if queues.wq_mode != SHARED:
            spec_values.refuse(
                'threshold',
                queues.threshold,
                'no threshold unless wq_mode is shared',
            )
        if queues.threshold > (queues.wq_size or queues.threshold):
            spec_values.refuse(
                'threshold',
                queues.threshold,
                f'at most wq_size, {queues.wq_size}',
            )
    if queues.wq_count is not None and queues.wq_groups > queues.wq_count:
        spec_values.refuse(
            'wq_groups',
            queues.wq_groups,
            f'at most wq_count, {queues.wq_count}',
        )
    return queues, values


def _address(value: Any) -> spec_address.Address:
    parts = pci.parse(value) if type(value) is str else None
    if parts is None:
        spec_values.refuse(
            'idxd', value, 'the PCI address of one device, dddd:bb:ss.f'
        )
    return spec_address.Address(pci.join(*parts))


def of_note(values: object) -> Queues | None:
    """Restore the settings from what dataclasses.asdict() has made of them.

    :returns: None if they are not such values
    """
    try:
        return Queues(**values) if isinstance(values, dict) else None
    except TypeError:
        return None

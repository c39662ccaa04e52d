# SPDX-License-Identifier: Apache-2.0

"""The refusals of NVMe drives that os-acc itself cannot erase.

They are known once the function is bound to VFIO, at each plug. If a drive is
refused, it is bound to its driver again. See refusals.
"""

from __future__ import annotations

import functools

from os_acc.refusals.reasons import Category
from os_acc.refusals.reasons import Refusal
from os_acc.refusals.refusals import SET_COMMAND

_unsuitable = functools.partial(Refusal, Category.UNSUITABLE)

_TO_USE_IT = '. To use it, {remedy}'
_CANNOT = '{drive} cannot be erased: '

NO_GROUP_FILE = _unsuitable(
    'it has no file of an IOMMU group below /dev/vfio, which the built-in '
    'NVMe cleaning needs. On a kernel without CONFIG_VFIO_GROUP, {remedy}',
    'The kernel was built without VFIO groups.',
    SET_COMMAND,
)
GROUP_NOT_VIABLE = _unsuitable(
    'another function of IOMMU group {group} is bound to a driver of the host',
    'To erase a drive, os-acc must open its IOMMU group.',
    'unbind that function from its driver, or ' + SET_COMMAND,
)
NOT_TYPE_1 = _unsuitable(
    'its IOMMU is not of VFIO type 1',
    'The built-in NVMe cleaning does not support other IOMMUs, such as on '
    'Power.',
    SET_COMMAND,
)
OFFLINE = _unsuitable(
    'it does not answer. If it is a VF, its secondary controller is offline: '
    '{remedy}',
    'A guest could not use it either.',
    'give it queues and bring it online, see nvme-virt-mgmt(1)',
)
PAGE_SIZE = _unsuitable(
    'it cannot use pages of 4 KiB',
    'The built-in NVMe cleaning uses no others.',
    SET_COMMAND,
)
NO_ERASE = _unsuitable(
    _CANNOT + 'it supports neither Format NVM nor a block erase or '
    'cryptographic erase by Sanitize' + _TO_USE_IT,
    'The drive has no command that erases.',
    SET_COMMAND,
)
SANITIZE_ONLY = _unsuitable(
    _CANNOT + 'it does not support Format NVM, and Sanitize would erase the '
    'namespaces of other controllers, too' + _TO_USE_IT,
    'Other controllers of the NVM subsystem, such as other VFs, must keep '
    'their data.',
    SET_COMMAND,
)
PERSISTENT_MEMORY = _unsuitable(
    _CANNOT
    + 'Format NVM does not erase its Persistent Memory Region'
    + _TO_USE_IT,
    'A guest could have written to that region.',
    SET_COMMAND,
)
ERASES_ALL = _unsuitable(
    _CANNOT + 'a secure erase of one of its namespaces also erases those of '
    'other controllers' + _TO_USE_IT,
    'Other controllers of the NVM subsystem must keep their data.',
    SET_COMMAND,
)
MANAGES_NAMESPACES = _unsuitable(
    _CANNOT + 'a guest could attach the namespaces of other controllers to it '
    '(Namespace Management is supported)' + _TO_USE_IT,
    'The guest could read or erase what others have stored.',
    'disable Namespace Management for the secondary controller, if the drive '
    'can, or ' + SET_COMMAND,
)
SHARED_NAMESPACE = _unsuitable(
    _CANNOT
    + 'namespace {nsid} is also attached to controllers {others}'
    + _TO_USE_IT,
    'Other controllers use the same data.',
    'detach it from the others, or ' + SET_COMMAND,
)

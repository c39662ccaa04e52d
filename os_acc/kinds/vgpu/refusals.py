# SPDX-License-Identifier: Apache-2.0

"""The refusals of vGPUs of NVIDIA cards without mediated devices.

See refusals.
"""

from __future__ import annotations

from os_acc.refusals.reasons import Category
from os_acc.refusals.reasons import Refusal

NO_VGPU_TYPE = Refusal(
    Category.NOT_OFFERED,
    '[os_acc] device_spec has no vgpu_type for it',
    'Its entry has neither vgpu_type nor bind = none.',
    'set vgpu_type to the ID or the name of the type; or bind to none, if the '
    'types are already set',
)
VGPU_TYPE_UNSET = Refusal(
    Category.UNSUITABLE,
    'no vGPU type is set on it, and [os_acc] device_spec has no vgpu_type for '
    'it',
    'bind is none: the operator sets the types.',
    'set the type in its file nvidia/current_vgpu_type, or set vgpu_type',
)
NO_VGPU_FILE = Refusal(
    Category.NOT_OFFERED,
    'it has no file nvidia/current_vgpu_type: {remedy}',
    "NVIDIA's driver does not know the VF.",
    'install the vGPU manager and run sriov-manage',
)
OTHER_VGPU_TYPE = Refusal(
    Category.OPEN,
    'vGPU type {present} is already set on it, not {wanted}',
    'Somebody else has set it.',
    'if no guest needs it, write 0 to its file nvidia/current_vgpu_type; or '
    'set vgpu_type to {present}',
)
VGPU_TYPES = Refusal(
    Category.NOT_OFFERED,
    'the VF can have these types: {types}',
    'vgpu_type is wrong, or the vGPUs of the other VFs leave too little '
    'capacity. In that case the list may be empty.',
    'set vgpu_type to one of them, or release vGPUs of the card',
)
VGPUS_FULL = Refusal(
    Category.NO_CAPACITY,
    'its card is full: it can have at most {places} vGPUs of this type',
    'max_instances, or the vGPU manager, limits their number.',
    'release a vGPU of the card, or correct max_instances',
)
NO_ROOM = Refusal(
    Category.NO_CAPACITY,
    'the vGPUs of the card leave no capacity for one more of its type',
    'This is reported only in the inventory.',
    'release a vGPU of the card, or correct max_instances',
)

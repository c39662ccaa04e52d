# SPDX-License-Identifier: Apache-2.0

"""The refusals of what entries of device_spec offer only in part.

See refusals, and entry_refusals.
"""

from __future__ import annotations

from os_acc.refusals.reasons import Category
from os_acc.refusals.reasons import Refusal

FOR_PARTS_ONLY = Refusal(
    Category.NOT_OFFERED,
    '[os_acc] device_spec offers {parts} of it only, and never the whole '
    'function',
    'Its entry has num_vfs, mdev_types, vgpu_type, max_instances, idxd, or '
    'programming = dynamic, and the whole function is wanted.',
    'request one of these parts, or offer another function',
)
NO_MDEVS_OFFERED = Refusal(
    Category.NOT_OFFERED,
    '[os_acc] device_spec offers {parts} of it only, and no mediated devices',
    'Its entry has num_vfs, vgpu_type or idxd, and the request wants a '
    'mediated device.',
    'request what the entry offers, or replace the entry with one that has '
    'mdev_types',
)
NO_SRIOV = Refusal(
    Category.UNSUITABLE,
    'num_vfs is set, but it does not support SR-IOV now: it has no file '
    'sriov_totalvfs',
    'The VFs of a function are requested. SR-IOV is off in its firmware, as '
    'after a reset to factory defaults, or the kernel lacks CONFIG_PCI_IOV.',
    'enable SR-IOV in the firmware and the card; or, to offer the whole '
    'function instead, remove num_vfs',
)
NUM_VFS = Refusal(
    Category.UNSUITABLE,
    'num_vfs is {wanted}, but it can have only {possible} VFs',
    'The VFs of a PF are requested, and it has none yet.',
    'lower num_vfs, or raise the number in the firmware',
)
NO_PORTS = Refusal(
    Category.UNSUITABLE,
    'vf_settings is set, but it is no network card',
    'VFs with settings of a network port are requested, and the PF has none '
    'yet.',
    'remove vf_settings',
)
VFS_NOT_TOLD = Refusal(
    Category.UNSUITABLE,
    'the kernel does not show the addresses of its VFs: sriov_offset or '
    'sriov_stride is 0',
    'The VFs of a PF are requested, it has none yet, and it shows these '
    'numbers only while it has VFs.',
    'make the VFs: write num_vfs to sriov_numvfs of the PF',
)
VF_IN_THE_WAY = Refusal(
    Category.UNSUITABLE,
    'one of its VFs would be at {other}, where another function is',
    'The VFs of a PF are requested, it has none yet, and sriov_offset or '
    'sriov_stride changes when it has some.',
    'make the VFs: write num_vfs to sriov_numvfs of the PF',
)
PF_IN_GROUP = Refusal(
    Category.GROUP_HOST_USE,
    'its IOMMU group {group} also contains its PF {pf}, which is bound to '
    '{driver}',
    'VFIO gives a group to one guest as a whole: the owner of the VF could '
    'open the PF.',
    "bind the PF to the host's driver or to none, or move the card to a slot "
    'whose VFs have IOMMU groups of their own',
)
FOR_VGPU = Refusal(
    Category.UNSUITABLE,
    "it is a VF that NVIDIA's driver keeps for a vGPU ({state}), not a whole "
    'GPU: {remedy}',
    'The driver pci is to assign it, with or without a vGPU type.',
    'the driver nvidia_vgpu assigns it if device_spec sets vgpu_type for it',
)

# SPDX-License-Identifier: Apache-2.0

"""The refusals of work queues of Intel DSA and IAA. See refusals."""

from __future__ import annotations

from os_acc.refusals.reasons import Category
from os_acc.refusals.reasons import Refusal

NOT_FOR_QUEUES = Refusal(
    Category.NOT_OFFERED,
    '[os_acc] device_spec does not offer its work queues: {remedy}',
    'No entry with idxd names it, or another entry names it first.',
    'add an entry such as {entry}, before any other one that names it',
)
NO_IDXD = Refusal(
    Category.UNSUITABLE,
    'it is bound to {driver}, and not to the kernel driver idxd: {remedy}',
    'Its entry has idxd. The module is not loaded, the function is not a DSA '
    'or IAA, or it is bound to VFIO.',
    'load the module (modprobe idxd; CONFIG_INTEL_IDXD), and bind it to idxd',
)
NO_PASID = Refusal(
    Category.UNSUITABLE,
    'pasid_enabled of {device} is 0, so the kernel enables neither shared nor '
    'other work queues for programs: {remedy}',
    'Without an IOMMU that translates for each process (SVA), a program with '
    'a work queue could access all memory of the host. Old kernels would '
    'enable a dedicated queue nevertheless; os-acc does not.',
    'enable VT-d in the firmware, boot with intel_iommu=on,sm_on, and load '
    'idxd with sva=1',
)
NOT_CONFIGURABLE = Refusal(
    Category.UNSUITABLE,
    '{device} is not configurable: the firmware or a hypervisor has fixed '
    'its work queues, so os-acc cannot set them up: {remedy}',
    'Its file configurable contains 0.',
    'enable its work queues by hand, and offer their device files instead',
)
NOT_ENOUGH = Refusal(
    Category.UNSUITABLE,
    'its entry of device_spec wants {wanted}, and {device} has {present}',
    'wq_count, wq_size or wq_groups is too large for the device.',
    'lower wq_count, wq_size or wq_groups',
)
HALTED = Refusal(
    Category.UNHEALTHY,
    'the state of {device} is {state}: {remedy}',
    'The hardware has stopped after an error.',
    'check its file errors and the kernel log, then reset the function or '
    'reboot the host',
)
ENABLED_BY_OTHERS = Refusal(
    Category.HOST_USE,
    'somebody else has enabled {device}, and the sizes of its work queues '
    'cannot be set until it is disabled: {remedy}',
    'The kernel or an operator uses it, for example by accel-config.',
    'run accel-config disable-device {device}, or offer its enabled work '
    'queues as device files instead',
)
CONFIGURED_BY_OTHERS = Refusal(
    Category.HOST_USE,
    'somebody else has begun to configure {device}: {what}. {remedy}',
    'Some of its work queues or engines are set up, and it is not enabled. '
    'From Linux 6.8 on, the kernel sets up each IAA for its own compression.',
    'To clear that, enable and disable it once, or reload the module idxd; '
    'then leave it alone',
)
QUEUE_OF_OTHERS = Refusal(
    Category.HOST_USE,
    'somebody else has configured {queue}: {what}',
    'An operator has set up a work queue of a device that os-acc has enabled.',
    'run accel-config disable-wq, or request another work queue',
)
QUEUE_GIVEN = Refusal(
    Category.ALLOCATED,
    'os-acc has set it up for VAN {van}',
    'The VAN is of this journal or of another one: each state_path has its '
    'own.',
    'request another work queue, or release the VAN with the journal that has '
    'it',
)
NO_QUEUE = Refusal(
    Category.NO_CAPACITY,
    '{device} has no work queue {number} for os-acc: it has set up {count}',
    'The request names a work queue, or device_spec has changed since the '
    'device was enabled.',
    'request another work queue, or release all of the device',
)
QUEUES_IN_USE = Refusal(
    Category.HOST_USE,
    '{device} is enabled for work queues ({queues})',
    'The whole function is requested, and it is enabled. A VAN, the kernel, '
    'or a program may use its work queues.',
    'if nobody needs them, accel-config disable-device {device}; or take it '
    'out of work_queues of the document of os-acc apply',
)
FILE_GIVEN = Refusal(
    Category.ALLOCATED,
    '{who} has the device file of its work queue {number}',
    'An entry of device_spec with devices offers the file, and a VAN has it.',
    'release that VAN, or request a work queue of another device',
)

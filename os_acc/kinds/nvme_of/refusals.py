# SPDX-License-Identifier: Apache-2.0

"""The refusals of namespaces of NVMe-oF targets. See refusals."""

from __future__ import annotations

from os_acc.refusals.reasons import Category
from os_acc.refusals.reasons import Refusal

NOT_NAMED = Refusal(
    Category.NOT_OFFERED,
    '[os_acc] device_spec does not name it',
    'No entry with nvme_of has the namespace, or one with deny has it.',
    'add its UUID to the namespaces of an entry with nvme_of',
)
LOCAL = Refusal(
    Category.UNSUITABLE,
    'block device {name} with this name belongs to the controller {controller}'
    ' of this host ({transport}), not to a remote target: {remedy}',
    'An NVMe drive of this host, or a copy of one, has the same UUID.',
    'remove the namespace from the entry; a local drive is offered by its PCI '
    'address',
)
OTHER_TARGET = Refusal(
    Category.UNSUITABLE,
    'block device {name} with this name comes from the subsystem {nqn}, not '
    'from that of its entry: {remedy}',
    'Two targets export a namespace with the same UUID.',
    'correct the NQN of the entry, or give each namespace its own UUID',
)
TWICE = Refusal(
    Category.UNSUITABLE,
    'it appears more than once, as the block devices {names}, and a guest '
    'would get an arbitrary one: {remedy}',
    "Several connections lead to it, and the kernel's native multipathing is "
    'off.',
    'boot with nvme_core.multipath=Y, or end the other connections',
)
GIVEN = Refusal(
    Category.ALLOCATED,
    'instance {instance} has it, according to the record of the privileged '
    'daemon',
    'A VAN had it, and was not released: the journal was lost, or belongs to '
    'another state_path.',
    'release that instance: os-acc unplug {instance}; if no VAN is left, plug '
    'and unplug it for that instance',
)

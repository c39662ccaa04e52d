# SPDX-License-Identifier: Apache-2.0

"""The refusals of accelerators of the class accel. See refusals."""

from __future__ import annotations

from os_acc.refusals.reasons import Category
from os_acc.refusals.reasons import Refusal

NOT_FOR_NPU = Refusal(
    Category.NOT_OFFERED,
    '[os_acc] device_spec does not offer its device file as an NPU: {remedy}',
    'No entry with npu names it, or another entry names it first.',
    'add an entry such as {entry}, before any other one that names it',
)
NPU_NO_PCI = Refusal(
    Category.UNSUITABLE,
    '{device} is not a PCI function, and os-acc resets an NPU between two '
    'tenants by binding its PCI function again: {remedy}',
    'Its entry has npu. The device is part of the processor, such as the NPU '
    'of an ARM board with the driver rocket.',
    'if the next tenant may get it without a reset, offer its file with '
    '"devices": "{path}"',
)
NPU_VF = Refusal(
    Category.UNSUITABLE,
    'it is a VF of {pf}, and os-acc assigns NPUs as whole devices: {remedy}',
    'Its entry has npu.',
    'offer the VF without npu, for VFIO',
)
NPU_NO_DRIVER = Refusal(
    Category.UNSUITABLE,
    'it is bound to {driver}, which creates no file below /dev/accel: '
    '{remedy}',
    'Its entry has npu. The module is not loaded, the function is not an NPU, '
    'its driver has failed to start it, or it is bound to VFIO.',
    'load the module of its vendor (ivpu, amdxdna, habanalabs, qaic), and '
    'check the kernel log for its errors',
)
NPU_NO_ACCOUNT = Refusal(
    Category.UNSUITABLE,
    'the {kind} {name} of its entry of device_spec does not exist on this '
    'host',
    'owner or group of npu does not exist.',
    'add the {kind}, or correct the entry',
)

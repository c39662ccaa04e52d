# SPDX-License-Identifier: Apache-2.0

"""What a refusal of a device consists of. See refusals."""

from __future__ import annotations

import dataclasses
import enum


class Category(enum.Enum):
    """Why a device cannot be taken. The value describes the category."""

    NOT_OFFERED = '[os_acc] device_spec does not offer the device for this use'
    UNSUITABLE = 'no guest can use the device, or not as it is set up'
    NO_IOMMU_GROUP = 'VFIO needs an IOMMU'
    HAS_VFS = 'the device is a PF whose VFs can be assigned instead'
    RESERVED = 'the device is for others, or reserved until it is freed'
    UNHEALTHY = 'the device has failed, or waits for a reboot of the host'
    ALLOCATED = 'a VAN has the device, a part of it, or its whole PF'
    HOST_USE = 'the host itself uses the device'
    GROUP_HOST_USE = 'the host uses another member of its IOMMU group'
    GROUP_ALLOCATED = 'another instance has a member of its IOMMU group'
    OPEN = 'a guest or another process has the device, or it is set up for one'
    NO_CAPACITY = 'the other parts of the device leave no capacity'


@dataclasses.dataclass(frozen=True)
class Reason:
    """Why one device cannot be taken, in words."""

    category: Category
    text: str  # a whole clause, such as 'it is a PF that has 2 VFs'
    remedy: str  # what the operator can do about it


@dataclasses.dataclass(frozen=True)
class Refusal:
    """A rule by which devices are refused.

    Text and remedy name their values in braces. If the text has ``{remedy}``,
    the error itself says what to do.
    """

    category: Category
    text: str  # what the error says, a whole clause
    when: str  # when the rule applies, and what else an operator should know
    remedy: str  # what the operator can do about it, an order or a clause

    def reason(self, **values: object) -> Reason:
        """Apply the rule to a device.

        :param values: the values that text and remedy name
        """
        remedy = self.remedy.format(**values)
        text = self.text.format(**values, remedy=remedy)
        return Reason(self.category, text, remedy)

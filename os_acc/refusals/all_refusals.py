# SPDX-License-Identifier: Apache-2.0

"""All refusals of devices, for the documentation."""

from __future__ import annotations

from os_acc import kinds
from os_acc.refusals import entry_refusals
from os_acc.refusals import host_refusals
from os_acc.refusals import nvme_refusals
from os_acc.refusals import offer_refusals
from os_acc.refusals import reasons
from os_acc.refusals import refusals
from os_acc.refusals import report_refusals

MODULES = (
    refusals,
    report_refusals,
    entry_refusals,
    offer_refusals,
    host_refusals,
    nvme_refusals,
    *kinds.having('refusals').values(),
)


def table() -> dict[reasons.Category, list[reasons.Refusal]]:
    """All refusals, by category."""
    every = [
        each
        for module in MODULES
        for each in vars(module).values()
        if isinstance(each, reasons.Refusal)
    ]
    return {
        category: [each for each in every if each.category is category]
        for category in reasons.Category
    }

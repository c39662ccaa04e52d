# SPDX-License-Identifier: Apache-2.0

"""Whether a PCI function may belong to a chip that can be programmed."""

from __future__ import annotations

from os_acc.kernel import chip
from os_acc.kernel import pci
from os_acc.spec import device_spec


def is_fpga(function: pci.Function, spec: device_spec.Spec | None) -> bool:
    """Whether a function may belong to a chip that can be programmed.

    This reads nothing, so that it can be asked of thousands of functions.

    :param spec: the entry of device_spec for the function
    """
    if spec is not None and spec.programmer is not None:
        return True
    return function.base_class == chip.CLASS_ACCELERATOR and bool(
        chip.FPGA_IDS.fullmatch(function.ids)
    )

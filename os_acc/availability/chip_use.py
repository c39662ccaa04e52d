# SPDX-License-Identifier: Apache-2.0

"""Which other functions of an FPGA have owners, when one of them is wanted.

A PF of an FPGA can give access to its configuration: the management function
of a card does, and no kernel tells which PFs do. So the PFs of one FPGA are
given to one instance only, and while an instance has one, no other instance
gets a VF of another PF. VFs of one FPGA may have different owners.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence

from os_acc.claims import allocated
from os_acc.kernel import chip
from os_acc.kernel import pci
from os_acc.kinds.fpga import ids as fpga_ids
from os_acc.refusals import reasons
from os_acc.refusals import refusals
from os_acc.spec import device_spec


def is_shared(
    function: pci.Function,
    spec: device_spec.Spec | None,
    holders: allocated.Holders,
) -> bool:
    """Whether a function may be one of several of an FPGA.

    :param spec: the entry of device_spec for it
    """
    return fpga_ids.is_fpga(function, spec) or holders.is_programmed(
        function.parent
    )


def beside(
    function: pci.Function,
    spec: device_spec.Spec | None,
    holders: allocated.Holders,
) -> Sequence[allocated.Holder]:
    """The VANs on the other PFs of a function's FPGA, and on their VFs.

    The answer is the same for all VFs of a PF.
    """
    if not holders or not is_shared(function, spec, holders):
        return ()
    own = function.parent
    return [
        each
        for address in chip.parents(function)
        if address != own
        for each in holders.on(address)
    ]


def obstacles(
    function: pci.Function,
    spec: device_spec.Spec | None,
    taker: allocated.Taker,
    holders: allocated.Holders,
    others: Sequence[allocated.Holder] | None = None,
) -> Iterator[reasons.Reason]:
    """Say which VANs on other PFs of its FPGA are in the way of a function.

    :param spec: the entry of device_spec for it
    :param others: what beside() says of it, or of a VF of the same PF; None:
        it is called here
    """
    if others is None:
        others = beside(function, spec, holders)
    for other in others:
        if other.instance_uuid != taker.instance_uuid and (
            has_pf(other) or not function.is_vf
        ):
            yield refusals.CHIP_TAKEN.say(
                instance=other.instance_uuid,
                what=other.handle,
                van=other.van_uuid,
            )


def has_pf(holder: allocated.Holder) -> bool:
    """Whether a VAN has a function that is no VF, or a file of one."""
    function = allocated.function_in(holder.handle)
    return function is not None and function == holder.device

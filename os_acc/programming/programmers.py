# SPDX-License-Identifier: Apache-2.0

"""Chooses the programmer of a device by its entry of device_spec."""

from __future__ import annotations

from os_acc import exception
from os_acc.programming import amd
from os_acc.programming import command
from os_acc.programming import dfl
from os_acc.programming import programmer
from os_acc.spec import device_spec


def make(
    device: str, region: str, spec: device_spec.Spec
) -> programmer.Programmer:
    """Make the programmer of a device, or of a region of it."""
    if spec.programmer == device_spec.PROGRAMMER_COMMAND:
        return command.CommandProgrammer(device, region, spec)
    if spec.programmer == device_spec.PROGRAMMER_DFL:
        return dfl.DflProgrammer(device, region)
    if spec.programmer == device_spec.PROGRAMMER_AMD:
        return amd.AMDProgrammer(device)
    raise exception.DeviceError(
        device=device,
        reason=f'os-acc has no programmer {spec.programmer!r}',
    )

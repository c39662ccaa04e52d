# SPDX-License-Identifier: Apache-2.0

"""The programmer of cards that have an FPGA manager of the kernel."""

from __future__ import annotations

from oslo_config import cfg

from os_acc import exception
from os_acc import progress
from os_acc.kernel import fpga_manager
from os_acc.kernel import pci
from os_acc.programming import bitstreams
from os_acc.programming import programmer
from os_acc.spec import device_spec

CONF = cfg.CONF


class FPGAManagerProgrammer(programmer.Programmer):
    """Programs through the kernel, without a tool of the vendor.

    The mainline kernel does not allow this: see kernel.fpga_manager.
    """

    def __init__(self, device: str, spec: device_spec.Spec) -> None:
        super().__init__(device)
        self._spec = spec

    def check(self, file: bitstreams.Bitstream | None) -> None:
        from os_acc.privileged import fpga_manager as privileged

        with fpga_manager.told(self.device):
            privileged.check(self.device, self.needed(file).path)

    def program(
        self,
        file: bitstreams.Bitstream | None,
        function_id: str | None,
        report: progress.Report,
    ) -> str:
        from os_acc.privileged import fpga_manager as privileged

        file = self.needed(file)
        report(None, 'programming')
        with fpga_manager.told(self.device):
            privileged.program(
                self.device,
                file.path,
                file.sha256,
                CONF.os_acc.program_timeout,
            )
        return self._spec.activation or device_spec.PARTIAL

    def look(self) -> str | None:
        """'' if the FPGA has no power, so that it has lost its function."""
        function = pci.find(self.device)
        if function is None:
            return None
        found = fpga_manager.managers(function)
        off = found and all(
            each.state == fpga_manager.POWER_OFF for each in found
        )
        return '' if off else None

    def fault(self) -> str | None:
        try:
            function = pci.get(self.device)
            manager = fpga_manager.the_manager(function)
            manager.way(fpga_manager.regions(function))
        except exception.ExceptionBase as err:
            return str(err)
        return None

    def clear(self) -> None:
        from os_acc.privileged import fpga_manager as privileged

        with fpga_manager.told(self.device):
            privileged.clear(self.device, CONF.os_acc.program_timeout)

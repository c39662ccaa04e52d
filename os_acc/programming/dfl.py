# SPDX-License-Identifier: Apache-2.0

"""Programs Intel's and other DFL cards through the kernel.

No tool of a vendor is needed. A region of the device is a port of the card.
The images are GBS files: see bitstream_gbs.
"""

from __future__ import annotations

import logging
import os

from oslo_config import cfg

from os_acc import exception
from os_acc import progress
from os_acc.bitstreams import gbs as bitstream_gbs
from os_acc.journal import programs
from os_acc.kernel import dfl
from os_acc.programming import bitstreams
from os_acc.programming import programmer
from os_acc.spec import device_spec

LOG = logging.getLogger(__name__)
CONF = cfg.CONF


class DflProgrammer(programmer.Programmer):
    """Programs a port of a DFL card.

    :param region: the number of the port, or programs.WHOLE for a card that
        has one port
    """

    def __init__(self, device: str, region: str) -> None:
        super().__init__(device)
        self._region = region
        self._port = 0 if region == programs.WHOLE else int(region)
        self._label = programs.label(device, region)

    def check(self, file: bitstreams.Bitstream | None) -> None:
        from os_acc.privileged.fpga import dfl as privileged

        privileged.check(
            self.device,
            self._region,
            self.needed(file).path,
            CONF.os_acc.device_timeout,
        )

    def program(
        self,
        file: bitstreams.Bitstream | None,
        function_id: str | None,
        report: progress.Report,
    ) -> str:
        from os_acc.privileged.fpga import dfl as privileged

        file = self.needed(file)
        # An id that is no UUID would be refused as a wrong argument.
        self._read(file).check_has(function_id, os.path.basename(file.path))
        report(None, 'programming')
        with programmer.told(self.device):
            privileged.program(
                self.device,
                self._region,
                file.path,
                file.sha256,
                function_id,
                CONF.os_acc.program_timeout,
            )
        return device_spec.PARTIAL

    def look(self) -> str | None:
        """Read the function that the port has, if the PF has the port."""
        card = dfl.find(self.device)
        port = card.port(self._port) if card is not None else None
        if port is None:
            return None
        return '' if port.in_reset else port.afu_id

    @property
    def can_clear(self) -> bool:
        return False

    def clear(self) -> None:
        raise exception.DeviceError(
            device=self._label,
            reason='a port of a DFL card cannot be cleared. Set '
            '[os_acc_fpga] at_unplug to keep',
        )

    def function_of(self, file: bitstreams.Bitstream) -> str | None:
        return self._read(file).functions[0]

    def heal(self) -> bool:
        from os_acc.privileged.fpga import dfl as privileged

        healed = privileged.heal(
            self.device, self._region, CONF.os_acc.device_timeout
        )
        if healed:
            LOG.info('%s: its PF was bound again and works', self._label)
        return healed

    @staticmethod
    def _read(file: bitstreams.Bitstream) -> bitstream_gbs.Image:
        with open(file.path, 'rb') as opened:
            return bitstream_gbs.read(opened, os.path.basename(file.path))

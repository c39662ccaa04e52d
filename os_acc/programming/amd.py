# SPDX-License-Identifier: Apache-2.0

"""The programmer of AMD's cards: it loads user images with XRT's tools."""

from __future__ import annotations

import os

from oslo_config import cfg

from os_acc import exception
from os_acc import progress
from os_acc.deadlines import waiting
from os_acc.kernel import pci
from os_acc.kernel import xrt
from os_acc.programming import bitstreams
from os_acc.programming import programmer
from os_acc.spec import device_spec
from os_acc.texts import forms

CONF = cfg.CONF


class AMDProgrammer(programmer.Programmer):
    """Loads a user image, a file with the extension .xclbin.

    The image replaces the user partition of the whole card. What the card has
    is what the journal says: the driver knows an image by its UUID only, and a
    request may give its function another name.
    """

    def function_of(self, file: bitstreams.Bitstream) -> str | None:
        """The image's UUID."""
        return _image(file).uuid

    def check(self, file: bitstreams.Bitstream | None) -> None:
        from os_acc.privileged.fpga import amd

        amd.check(self.device, self.needed(file).path)

    def program(
        self,
        file: bitstreams.Bitstream | None,
        function_id: str | None,
        report: progress.Report,
    ) -> str:
        from os_acc.privileged.fpga import amd

        file = self.needed(file)
        # Read before: its errors mean that nothing was changed.
        wanted = _image(file).uuid
        report(None, 'programming')
        with programmer.told(self.device):
            amd.program(
                self.device,
                file.path,
                file.sha256,
                CONF.os_acc.program_timeout,
            )
        self._check_seen(wanted)
        return device_spec.PARTIAL

    def fault(self) -> str | None:
        try:
            card = xrt.card(pci.get(self.device))
            xrt.tool(card, CONF.os_acc.xrt_path)
        except exception.ExceptionBase as err:
            return str(err)
        return None

    @property
    def can_clear(self) -> bool:
        return False

    def clear(self) -> None:
        raise exception.DeviceError(
            device=self.device,
            reason="XRT's tools cannot remove a user image. Set "
            '[os_acc_fpga] at_unplug to keep',
        )

    def _check_seen(self, wanted: str) -> None:
        """Check the card's image, if the user function's driver can tell."""
        card = xrt.card(pci.get(self.device))
        if card.management is not None:
            return
        seen = waiting.until(
            card.loaded,
            CONF.os_acc.device_timeout,
            f'the kernel to show user image {wanted} in {self.device}',
        )
        if not forms.same_function(seen, wanted):
            raise exception.DeviceError(
                device=self.device,
                reason=f'user image {wanted} was loaded, but it has {seen}',
            )


def _image(file: bitstreams.Bitstream) -> xrt.UserImage:
    name = os.path.basename(file.path)
    try:
        with open(file.path, 'rb') as opened:
            return xrt.read(opened, name)
    except OSError as err:
        raise exception.BitstreamError(
            bitstream=name, reason=err.strerror or str(err)
        ) from err

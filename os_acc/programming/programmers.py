# SPDX-License-Identifier: Apache-2.0

"""The programmers, and the one of a device by its entry of device_spec."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import glob
import logging
import os

from oslo_config import cfg

from os_acc import exception
from os_acc import progress
from os_acc.bitstreams import gbs as bitstream_gbs
from os_acc.deadlines import waiting
from os_acc.journal import programs
from os_acc.kernel import dfl as kernel_dfl
from os_acc.kernel import pci
from os_acc.kernel import sysfs
from os_acc.kernel import xrt
from os_acc.programming import bitstreams
from os_acc.programming import programmer
from os_acc.spec import device_spec
from os_acc.texts import forms

LOG = logging.getLogger(__name__)
CONF = cfg.CONF

# Seconds between two queries for the progress of a command.
_REPORT_EVERY = 1.0


def make(
    device: str, region: str, spec: device_spec.Spec
) -> programmer.Programmer:
    """Make the programmer of a device, or of a region of it."""
    if spec.programmer == device_spec.PROGRAMMER_COMMAND:
        return CommandProgrammer(device, region, spec)
    if spec.programmer == device_spec.PROGRAMMER_DFL:
        return DflProgrammer(device, region)
    if spec.programmer == device_spec.PROGRAMMER_AMD:
        return AMDProgrammer(device)
    raise exception.DeviceError(
        device=device,
        reason=f'os-acc has no programmer {spec.programmer!r}',
    )


class CommandProgrammer(programmer.Programmer):
    """Runs the commands of an entry of device_spec, as root.

    :param region: a region of the device, or programs.WHOLE
    """

    def __init__(
        self, device: str, region: str, spec: device_spec.Spec
    ) -> None:
        super().__init__(device)
        self._region, self._spec = region, spec
        self._label = programs.label(device, region)

    def check(self, file: bitstreams.Bitstream | None) -> None:
        from os_acc.privileged.fpga import command

        command.check(self.device, self._region, self.needed(file).path)

    def program(
        self,
        file: bitstreams.Bitstream | None,
        function_id: str | None,
        report: progress.Report,
    ) -> str:
        from os_acc.privileged.fpga import command

        file = self.needed(file)
        report(None, 'programming')
        with programmer.told(self.device):
            with self._percent_reported(report):
                reboot = command.program(
                    self.device,
                    self._region,
                    file.path,
                    file.sha256,
                    function_id,
                    CONF.os_acc.program_timeout,
                )
            if reboot:
                # The command knows better than device_spec.
                return device_spec.COLD_REBOOT
            activation = self._spec.activation or device_spec.PARTIAL
            if function_id is not None and activation == device_spec.PARTIAL:
                self._check_seen(function_id)
        return activation

    @contextlib.contextmanager
    def _percent_reported(self, report: progress.Report) -> Iterator[None]:
        """Report the progress that the command shows, while the block runs.

        The call to the privileged half blocks, so another thread queries it.
        """
        if self._spec.progress is None:
            yield
            return
        from os_acc.privileged.fpga import command

        def ask() -> tuple[float, str] | None:
            now = command.percent(self.device, self._region)
            return None if now is None else (now / 100, 'programming')

        with progress.asked(ask, report, _REPORT_EVERY):
            yield

    def look(self) -> str | None:
        """Read the function's id from function_file, if there is one."""
        pattern = self._spec.function_file
        if pattern is None or self._region != programs.WHOLE:
            return None
        paths = glob.glob(f'{pci.directory(self.device)}/{pattern}')
        if len(paths) != 1:
            return None
        return sysfs.read(paths[0]) or ''

    @property
    def can_clear(self) -> bool:
        return bool(self._spec.clear)

    def clear(self) -> None:
        from os_acc.privileged.fpga import command

        with programmer.told(self.device):
            command.clear(
                self.device, self._region, CONF.os_acc.program_timeout
            )

    def _check_seen(self, function_id: str) -> None:
        """Check that the kernel sees the function that was programmed."""
        if self._spec.function_file is None or self._region != programs.WHOLE:
            return
        # The file that shows the function may appear after the command's end.
        awaited = (
            f'the kernel to show function {function_id} in {self._label} '
            'after programming'
        )
        programmer.check_seen(self.look, self._label, function_id, awaited)


class DflProgrammer(programmer.Programmer):
    """Programs a port of Intel's and other DFL cards through the kernel.

    No tool of a vendor is needed. The images are GBS files: see bitstream_gbs.

    :param region: the number of the port, or programs.WHOLE for a card that
        has one port
    """

    def __init__(self, device: str, region: str) -> None:
        super().__init__(device)
        self._region = region
        self._port = 0 if region == programs.WHOLE else int(region)
        self._label = programs.label(device, region)

    def check(self, file: bitstreams.Bitstream | None) -> None:
        from os_acc.privileged.fpga import dfl

        dfl.check(
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
        from os_acc.privileged.fpga import dfl

        file = self.needed(file)
        # An id that is no UUID would be refused as a wrong argument.
        self._read(file).check_has(function_id, os.path.basename(file.path))
        report(None, 'programming')
        with programmer.told(self.device):
            dfl.program(
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
        card = kernel_dfl.find(self.device)
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
        from os_acc.privileged.fpga import dfl

        healed = dfl.heal(
            self.device, self._region, CONF.os_acc.device_timeout
        )
        if healed:
            LOG.info('%s: its PF was bound again and works', self._label)
        return healed

    @staticmethod
    def _read(file: bitstreams.Bitstream) -> bitstream_gbs.Image:
        with open(file.path, 'rb') as opened:
            return bitstream_gbs.read(opened, os.path.basename(file.path))


class AMDProgrammer(programmer.Programmer):
    """Loads user images, files with the extension .xclbin, by XRT's tools.

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

# SPDX-License-Identifier: Apache-2.0

"""The programmer that runs a command of the device's vendor."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import glob

from oslo_config import cfg

from os_acc import exception
from os_acc import progress
from os_acc.deadlines import waiting
from os_acc.journal import programs
from os_acc.kernel import pci
from os_acc.kernel import sysfs
from os_acc.programming import bitstreams
from os_acc.programming import programmer
from os_acc.spec import device_spec
from os_acc.texts import forms

CONF = cfg.CONF

# Seconds between two queries for the progress of a programming.
_REPORT_EVERY = 1.0


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
        from os_acc.privileged.fpga import command as privileged

        privileged.check(self.device, self._region, self.needed(file).path)

    def program(
        self,
        file: bitstreams.Bitstream | None,
        function_id: str | None,
        report: progress.Report,
    ) -> str:
        from os_acc.privileged.fpga import command as privileged

        file = self.needed(file)
        report(None, 'programming')
        with programmer.told(self.device):
            with self._percent_reported(report):
                reboot = privileged.program(
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
        from os_acc.privileged.fpga import command as privileged

        def ask() -> tuple[float, str] | None:
            now = privileged.percent(self.device, self._region)
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
        from os_acc.privileged.fpga import command as privileged

        with programmer.told(self.device):
            privileged.clear(
                self.device, self._region, CONF.os_acc.program_timeout
            )

    def _check_seen(self, function_id: str) -> None:
        """Check that the kernel sees the function that was programmed."""
        if self._spec.function_file is None or self._region != programs.WHOLE:
            return
        # The file that shows the function may appear after the command's end.
        seen = waiting.until(
            self.look,
            CONF.os_acc.device_timeout,
            f'the kernel to show function {function_id} in {self._label} '
            'after programming',
        )
        if not forms.same_function(seen, function_id):
            raise exception.DeviceError(
                device=self._label,
                reason=f'it was programmed with {function_id}, but has {seen}',
            )

# SPDX-License-Identifier: Apache-2.0

"""Programs a device that does not exist."""

from __future__ import annotations

from collections.abc import Callable

from os_acc import programming
from os_acc import progress
from os_acc.kinds.fake.driver import hardware as fake_hardware
from os_acc.programming import bitstreams
from os_acc.spec import device_spec


class Programmer(programming.Programmer):
    """Writes the function into the file that stands for the hardware.

    :param step: takes the time of a programming, and fails, as the options say
    """

    @property
    def can_clear(self) -> bool:
        return True

    def __init__(
        self,
        device: str,
        name: str,
        hardware: fake_hardware.Hardware,
        step: Callable[[progress.Report], None],
    ) -> None:
        super().__init__(device)
        self._name, self._hardware, self._step = name, hardware, step

    def program(
        self,
        file: bitstreams.Bitstream | None,
        function_id: str | None,
        report: progress.Report,
    ) -> str:
        self._step(report)
        digest = file.sha256 if file is not None else None
        self._hardware.program(self._name, function_id or f'sha256-{digest}')
        return device_spec.PARTIAL

    def clear(self) -> None:
        self._hardware.program(self._name, '')

    def look(self) -> str:
        return self._hardware.function_of(self._name) or ''

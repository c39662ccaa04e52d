# SPDX-License-Identifier: Apache-2.0

"""The contract of programmers: the ways in which a device is programmed."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib

from oslo_config import cfg

from os_acc import exception
from os_acc import progress
from os_acc.deadlines import waiting
from os_acc.kernel import fpga_manager
from os_acc.kernel import pci
from os_acc.programming import bitstreams
from os_acc.texts import forms

CONF = cfg.CONF


class Programmer:
    """Programs, looks at and clears one slot, and does nothing else.

    Whether a slot may be programmed is not a programmer's business: slots.Slot
    decides it, and holds the slot's lock around each call.

    :ivar device: the device's address, for messages
    """

    def __init__(self, device: str) -> None:
        self.device = device

    @property
    def can_clear(self) -> bool:
        """Whether clear() can remove a function from a device of this kind."""
        return True

    @property
    def time_limit(self) -> float:
        """Seconds after which program() has ended; others wait that long."""
        limit: float = CONF.os_acc.program_timeout
        return limit

    def function_of(self, file: bitstreams.Bitstream) -> str | None:
        """Read from a bitstream which function it has.

        :returns: None if the bitstream does not say it
        :raises BitstreamError: if it is not a bitstream for this programmer
        """
        return None

    def needed(
        self, file: bitstreams.Bitstream | None
    ) -> bitstreams.Bitstream:
        """Return the bitstream, for a device that cannot do without one.

        :raises DeviceError: if there is none
        """
        if file is None:
            raise exception.DeviceError(
                device=self.device, reason='a bitstream is needed'
            )
        return file

    def check(self, file: bitstreams.Bitstream | None) -> None:
        """Check that programming can begin. Changes nothing.

        :param file: the bitstream; None: the device needs none
        :raises BitstreamError: if the device cannot be programmed with it
        :raises DeviceError: if the device cannot be programmed
        """

    def program(
        self,
        file: bitstreams.Bitstream | None,
        function_id: str | None,
        report: progress.Report,
    ) -> str:
        """Program the slot, and check the result as far as it can be seen.

        :param function_id: the function that the slot must have afterwards;
            None: unknown
        :param report: called with a fraction or None, and a text
        :returns: one of device_spec.ACTIVATIONS
        :raises BitstreamError: if nothing was changed, because the bitstream
            does not fit
        :raises Exception: any other error means that the programming failed,
            and that the slot may contain anything
        """
        raise exception.DeviceError(
            device=self.device, reason='nothing can program it'
        )

    def look(self) -> str | None:
        """Read the function from the hardware.

        :returns: '' for none; None if the hardware cannot tell, so that the
            journal's record counts
        """
        return None

    def clear(self) -> None:
        """Remove the function.

        :raises DeviceError: if that failed, or is impossible
        """
        raise exception.DeviceError(
            device=self.device, reason='nothing can clear it'
        )

    def fault(self) -> str | None:
        """Say why the device could not be programmed now, for the doctor.

        This needs no privilege, and does not look at who uses the device.

        :returns: None if nothing is wrong
        """
        return None

    def heal(self) -> bool:
        """Make the device usable again after its programming has failed.

        The slot's lock is held, and nobody uses the chip.

        :returns: whether the device is usable, with no function in it
        """
        return False


def check_seen(
    look: Callable[[], str | None],
    device: str,
    function_id: str,
    awaited: str,
) -> None:
    """Check that a device shows the function that it was programmed with.

    :param look: says which one it shows; None: none yet
    :param awaited: what is waited for, for the error
    """
    seen = waiting.until(look, CONF.os_acc.device_timeout, awaited)
    if not forms.same_function(seen, function_id):
        raise exception.DeviceError(
            device=device,
            reason=f'it was programmed with {function_id}, but has {seen}',
        )


@contextlib.contextmanager
def told(address: str) -> Iterator[None]:
    """Add the state of a card's FPGA managers to the errors of programming."""
    try:
        yield
    except (exception.DeviceError, exception.Timeout) as err:
        function = pci.find(address)
        found = fpga_manager.managers(function) if function is not None else []
        if not found:
            raise
        lines = '; '.join(each.line for each in found)
        raise type(err)(f'{err}. FPGA manager: {lines}') from err

# SPDX-License-Identifier: Apache-2.0

"""The ioctls of the management engine of a DFL card, as root.

Numbers and structures are those of include/uapi/linux/fpga-dfl.h of the
kernel. The kernel's side is in drivers/fpga: dfl-fme-pr.c programs a port,
dfl-fme-main.c and dfl.c release one and give it back.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import ctypes
import errno
import fcntl
import os
import struct

from os_acc import exception
from os_acc.kernel import device_files
from os_acc.kernel import dfl

# DFL_FPGA_FME_PORT_PR is _IO(0xB6, 0x80), though it takes a structure: argsz,
# flags, port_id, buffer_size and buffer_address.
_PROGRAM = 0xB680
_PROGRAM_ARGUMENT = struct.Struct('=IIIIQ')
# DFL_FPGA_FME_PORT_RELEASE and _ASSIGN: _IOW(0xB6, 0x81 and 0x82, int)
_RELEASE = 0x4004B681
_ASSIGN = 0x4004B682
_PORT_ARGUMENT = struct.Struct('=i')

_MOST = 0xFFFFFFFF  # buffer_size has 32 bits


def program(card: dfl.Card, port: int, data: bytearray, offset: int) -> None:
    """Program a port: partial reconfiguration.

    The call cannot be interrupted. The kernel waits up to 8 s for each of
    three answers of the card (PR_WAIT_TIMEOUT in dfl-fme-mgr.c).

    :param offset: where the data for the card begin in it
    :raises DeviceError: if the card or the kernel refuses. The port may then
        contain anything, and stays in reset until the card's driver is bound
        again
    """
    size = len(data) - offset
    if not 0 < size <= _MOST:
        # The kernel would answer 0 bytes with ENOMEM and a stack trace.
        raise exception.DeviceError(
            device=f'port {port} of {card.address}',
            reason=f'it cannot be programmed with {size} bytes',
        )
    buffer = (ctypes.c_char * len(data)).from_buffer(data)
    argument = _PROGRAM_ARGUMENT.pack(
        _PROGRAM_ARGUMENT.size,
        0,
        port,
        size,
        ctypes.addressof(buffer) + offset,
    )
    try:
        with _opened(card) as fd:
            fcntl.ioctl(fd, _PROGRAM, argument)
    except OSError as err:
        raise exception.DeviceError(
            device=f'port {port} of {card.address}', reason=_why(err)
        ) from err


def release(card: dfl.Card, port: int) -> None:
    """Take a port from the PF, so that a VF can get it."""
    try:
        _port_ioctl(card, _RELEASE, port)
    except OSError as err:
        # dfl_fpga_cdev_release_port() in dfl.c
        if err.errno == errno.EBUSY:
            raise exception.DeviceBusy(
                device=f'port {port} of {card.address}',
                reason='a program of the host has it open',
            ) from err
        raise _refused(card, port, 'released', err) from err


def assign(card: dfl.Card, port: int) -> None:
    """Give a released port back to the PF. The card must have no VFs.

    Does nothing if the PF has the port already. The kernel does not check
    that there are no VFs: the caller must.
    """
    try:
        _port_ioctl(card, _ASSIGN, port)
    except OSError as err:
        # dfl_fpga_cdev_assign_port() in dfl.c: it is not released
        if err.errno != errno.EBUSY:
            raise _refused(card, port, 'given back to the PF', err) from err


def _port_ioctl(card: dfl.Card, number: int, port: int) -> None:
    with _opened(card) as fd:
        fcntl.ioctl(fd, number, _PORT_ARGUMENT.pack(port))


@contextlib.contextmanager
def _opened(card: dfl.Card) -> Iterator[int]:
    """Open the management engine, if it is the device that sysfs shows."""
    fd = os.open(card.node, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        expected = device_files.read(card.node, card.fme)
        number = os.fstat(fd).st_rdev
        if expected is None or expected.number != device_files.Number(
            'c', os.major(number), os.minor(number)
        ):
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO), card.node)
        yield fd
    finally:
        os.close(fd)


def _why(err: OSError) -> str:
    """Say in plain words why the programming of a port has failed.

    The FPGA manager says more: see programming.manager_state.
    """
    if err.errno == errno.EIO:
        return 'the card refused the image'
    if err.errno == errno.ETIMEDOUT:
        return 'the card did not answer in time'
    if err.errno == errno.ENOMEM:
        return 'the kernel has no memory for the image'
    return f'the kernel did not program it: {err.strerror or err}'


def _refused(
    card: dfl.Card, port: int, what: str, err: OSError
) -> exception.DeviceError:
    return exception.DeviceError(
        device=f'port {port} of {card.address}',
        reason=f'it cannot be {what}: {err.strerror or err}',
    )

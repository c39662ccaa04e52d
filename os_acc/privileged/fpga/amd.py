# SPDX-License-Identifier: Apache-2.0

"""Loading a user image into an AMD card with XRT's tools, as root.

``xbmgmt program --device ADDRESS --user FILE`` loads it through the management
function (OO_UpdateXclbin.cpp in XRT's core/tools/xbmgmt2), ``xrt-smi`` or the
older ``xbutil`` with the same arguments through the user function
(SubCmdProgram.cpp in core/tools/xbutil2). With ``--user``, neither asks a
question. So ``--force``, which answers all questions with yes, is not given.
"""

from __future__ import annotations

import os
import re

from os_acc.kernel import pci
from os_acc.kernel import xrt
from os_acc.privileged import arguments
from os_acc.privileged import command
from os_acc.privileged import context
from os_acc.privileged import offers
from os_acc.privileged.fpga import root_copy
from os_acc.privileged.fpga import turn
from os_acc.spec import device_spec

_EXTENSION = '.xclbin'


@context.entry
def check(address: str, path: str) -> None:
    """Check that a user image can be loaded. This changes nothing.

    :raises DeviceBusy: if somebody has a function of the card open, or an
        earlier command for it has not ended
    :raises BitstreamError: if the image is in none of the allowed directories,
        is not a user image, or was linked for another shell
    :raises DeviceError: if XRT's tool or its drivers are missing
    """
    function = _function(address)
    card = xrt.card(function)
    _tool(card)
    turn.check_unused(function, '')
    with turn.taken(function, ''):
        pass
    with root_copy.opened(path) as (real, file):
        name = os.path.basename(real)
        card.check_fits(xrt.read(file, name), name)


@context.entry
def program(address: str, path: str, digest: str, seconds: float) -> None:
    """Load a user image.

    :param seconds: for XRT's tool
    :raises DeviceError: if the tool fails or does not end in time
    """
    function = _function(address)
    seconds = arguments.seconds(seconds)
    with turn.taken(function, '') as held:
        turn.check_unused(function, '')
        card = xrt.card(function)
        tool = _tool(card)
        with (
            root_copy.opened(path) as (real, file),
            root_copy.made(file, _copy_name(real), digest) as copy,
        ):
            # What is checked is the copy: nobody can change it any more.
            with open(copy.path, 'rb') as own:
                name = os.path.basename(real)
                card.check_fits(xrt.read(own, name), name)
            words = [tool, 'program', '--device', card.through]
            words += ['--user', copy.path]
            command.run(address, words, seconds, [*held, copy.lock])


def _function(address: str) -> pci.Function:
    function, _ = turn.device(address, '', device_spec.PROGRAMMER_AMD)
    return function


def _copy_name(path: str) -> str:
    """The name of the copy: it has the extension of user images.

    A downloaded image may have another name.
    """
    stem = os.path.splitext(os.path.basename(path))[0]
    return re.sub(r'[^\w.-]', '_', stem, flags=re.ASCII)[:200] + _EXTENSION


def _tool(card: xrt.Card) -> str:
    return xrt.tool(card, offers.configuration().os_acc.xrt_path)

# SPDX-License-Identifier: Apache-2.0

"""Which device numbers VANs were given in this boot of the host.

The kernel gives a number that is free again to another device. A container
that still has a device file with that number has that device then.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

from os_acc.availability import functions as availability
from os_acc.claims import allocated
from os_acc.kernel import device_file
from os_acc.kinds.devfile import refusals as file_refusals
from os_acc.refusals import reasons


class Given(NamedTuple):
    """A VAN of this boot that was given a device number.

    :ivar name: of the accelerator; empty if its driver does not say
    """

    van_uuid: str
    instance_uuid: str
    name: str
    path: str


Numbers = Mapping[device_file.Number, Sequence[Given]]


def obstacles(
    file: device_file.DeviceFile,
    name: str,
    taker: allocated.Taker,
    numbers: Numbers,
) -> Iterator[availability.Obstacle]:
    """Say which VANs were given the number of a file under another name.

    :param name: of the handle that has the file
    """
    for reason in given(file.number, name, taker, numbers):
        yield availability.Obstacle.of(f'device file {file.path}', reason)


def given(
    number: device_file.Number,
    name: str,
    taker: allocated.Taker,
    numbers: Numbers,
) -> Iterator[reasons.Reason]:
    """Say which VANs were given a number. See obstacles()."""
    for each in numbers.get(number, ()):
        if each.van_uuid != taker.van_uuid and each.name != name:
            yield file_refusals.FILE_NUMBER.say(
                instance=each.instance_uuid,
                number=f'{number.major}:{number.minor}',
                path=each.path,
                van=each.van_uuid,
            )

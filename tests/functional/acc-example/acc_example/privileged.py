# SPDX-License-Identifier: Apache-2.0

"""What runs as root: the files of the slots belong to root."""

import contextlib
import os

from acc_example import options
from os_acc import exception
from os_acc.privileged import privsep

CONTEXT = privsep.Context(f'{__name__}.CONTEXT', 'os_acc_example_privileged')


@CONTEXT.entry
def occupy(slot: str) -> None:
    """Make the file of a slot.

    :raises InvalidRequest: if there is no such slot
    """
    with open(_file(slot), 'w', encoding='utf-8'):
        pass


@CONTEXT.entry
def give_back(slot: str) -> None:
    """Remove the file of a slot, if it exists.

    :raises InvalidRequest: if there is no such slot
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_file(slot))


def _file(slot: str) -> str:
    # The caller can be any process of the service's user. So the names and
    # the directory come from root's configuration.
    values = CONTEXT.options(options.GROUP, options.OPTS)
    if slot not in values.slots:
        raise exception.InvalidRequest(
            subject='example', field='slot', value=slot, expected='a slot'
        )
    return os.path.join(values.directory, slot)

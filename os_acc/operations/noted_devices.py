# SPDX-License-Identifier: Apache-2.0

"""Which devices of VANs the privileged half has noted, by their names."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator

from os_acc import objects
from os_acc.kernel import file_place
from os_acc.kinds.pci.driver import companions
from os_acc.objects import van as states

# The handles, by the start of their identity, that the privileged half notes.
_NOTED = ('pci', 'mdev', 'file', 'block')


def of_plugged(vans: Iterable[objects.VAN]) -> list[tuple[objects.VAN, str]]:
    """The devices that plugged VANs have, with the companions of each."""
    plugged = [
        each
        for each in vans
        # The fake driver has no device.
        if each.state in states.WHOLE and each.driver != 'fake'
    ]
    own = {name: each for each in plugged for name in _names(each)}
    of_companions = {
        address: each
        for each in plugged
        for address in companions.addresses_of(each)
        if address not in own
    }
    return [(van, name) for name, van in (own | of_companions).items()]


def _names(van: objects.VAN) -> Iterator[str]:
    if van.handle is None:
        return
    kind, _, name = van.handle.identity.partition('/')
    if kind in _NOTED:
        # Only a device file has a share.
        yield file_place.with_share(*name.partition('/')[::2])

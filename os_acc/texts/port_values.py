# SPDX-License-Identifier: Apache-2.0

"""Which MAC addresses and VLANs a network port can have."""

from __future__ import annotations

import re

_MAC = re.compile('[0-9a-f]{2}(:[0-9a-f]{2}){5}', re.I)

#: The MAC address that a VF without one shows.
NO_MAC = '00:00:00:00:00:00'
#: Ids of IEEE 802.1Q: 4095 is reserved, and 0 means that there is no VLAN.
HIGHEST_VLAN = 4094
HIGHEST_VLAN_PRIORITY = 7


def is_mac(text: str) -> bool:
    """Whether a text is a MAC address: 6 bytes in hex, with colons."""
    return _MAC.fullmatch(text) is not None


def is_unicast_mac(text: str) -> bool:
    """Whether a text is a MAC address that an interface can have."""
    # The lowest bit of the first byte marks a group of interfaces.
    return is_mac(text) and text != NO_MAC and not int(text[:2], 16) & 1

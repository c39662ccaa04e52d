# SPDX-License-Identifier: Apache-2.0

"""The function that a guest gets is that of its device profile."""

from __future__ import annotations

import time

import hardware
import layout
import live
import nova_part
import vendor

from os_acc.cyborg import names

PROVIDER = names.deployable(layout.HOST, vendor.FPGA)
#: Seconds in which Placement has the trait after os-acc has programmed.
SOON = 2.0


def test_stale_function(cloud: live.Live, nova: nova_part.Nova) -> None:
    """Cyborg believes that AES is in, when SHA is.

    Cyborg remembers the last bitstream that it has programmed, and binds a
    profile with this bitstream without a look at the device.
    """
    images = {each: nova.upload(each, cloud.tool) for each in ('aes', 'sha')}
    groups = {
        each: nova_part.group(hardware.FPGA_CLASS, bitstream_id=image)
        for each, image in images.items()
    }
    first = nova.boot(groups['aes'])
    live.plug(first)
    assert cloud.tool.function() == 'aes'
    live.unplug(first)
    nova.delete(first)
    # An administrator programs the card.
    live.os_acc('device', 'program', vendor.FPGA, '--bitstream', images['sha'])
    expect_trait(nova, 'sha')
    assert cloud.tool.function() == 'sha'

    second = nova.boot(groups['aes'])
    assert cloud.tool.function() == 'sha'  # Cyborg has done nothing
    live.plug(second)

    assert cloud.tool.function() == 'aes'
    expect_trait(nova, 'aes')
    live.unplug(second)
    nova.delete(second)

    third = nova.boot(groups['sha'])
    live.plug(third)
    assert cloud.tool.function() == 'sha'
    expect_trait(nova, 'sha')


def expect_trait(nova: nova_part.Nova, function: str) -> None:
    """Check that Placement shows a function of the card at once, no other."""
    wanted = names.function_trait(function)
    end = time.monotonic() + SOON
    while True:
        found = {
            each
            for each in nova.traits(PROVIDER)
            if each.startswith(names.FUNCTION_PREFIX)
        }
        if found == {wanted}:
            return
        assert time.monotonic() < end, found
        time.sleep(0.1)

# SPDX-License-Identifier: Apache-2.0

"""The ways in which an accelerator moves to another host."""

#: The guest keeps running with the device.
LIVE = 'live'
#: The device is detached before, and another one attached after.
REPLUG = 'replug'
#: The guest is stopped.
COLD = 'cold'
#: The best way first.
WAYS = (LIVE, REPLUG, COLD)

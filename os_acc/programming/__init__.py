# SPDX-License-Identifier: Apache-2.0

"""Programming of devices: what a device contains, and who may change it.

This package exports what a driver needs. Its modules are: contents and slots
(the state of a device or region, and the rule for changing it), pending (who
uses a device besides the VANs), programmer and programmers (the contract of
the ways to program, and these), uses (what a VAN's driver_data says about its
use of a device), hooks (entry points that are called after programming) and
bitstreams (files to program).
"""

from os_acc.journal.programs import REGION
from os_acc.journal.programs import WHOLE
from os_acc.programming.contents import Wanted
from os_acc.programming.contents import common_function
from os_acc.programming.contents import functions
from os_acc.programming.contents import show
from os_acc.programming.programmer import Programmer
from os_acc.programming.slots import Slot
from os_acc.programming.uses import CHIP
from os_acc.programming.uses import chip_replaced
from os_acc.programming.uses import undecide

__all__ = [
    'CHIP',
    'REGION',
    'WHOLE',
    'Programmer',
    'Slot',
    'Wanted',
    'chip_replaced',
    'common_function',
    'functions',
    'show',
    'undecide',
]

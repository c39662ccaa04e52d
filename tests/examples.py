# SPDX-License-Identifier: Apache-2.0

"""How many examples hypothesis makes where each of them is costly.

Set OS_ACC_EXAMPLES to a number to make so many times as many.
"""

from __future__ import annotations

import os

_TIMES = int(os.environ.get('OS_ACC_EXAMPLES', '1'))


def costly(number: int) -> int:
    """Return the number of examples, for max_examples.

    :param number: how many examples the run of each change can afford
    """
    return number * _TIMES

# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

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

# SPDX-License-Identifier: Apache-2.0

"""Cyborg still has the faults that the bug reports describe.

If one of these tests fails with a newer Cyborg, the fault may be repaired.
Then the report goes, and what os-acc does because of it can be looked at.
"""

from __future__ import annotations

import os

import pytest
import upstream


@pytest.mark.parametrize('name', upstream.names('cyborg'))
def test_a_report(name: str) -> None:
    upstream.check(name, **os.environ)

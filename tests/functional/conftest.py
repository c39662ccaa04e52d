# SPDX-License-Identifier: Apache-2.0

"""The summary at the end of the functional tests."""

from __future__ import annotations

from summary import pytest_terminal_summary  # noqa: F401
from summary import report  # noqa: F401

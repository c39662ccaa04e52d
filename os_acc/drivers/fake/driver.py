# SPDX-License-Identifier: Apache-2.0

"""The earlier place of FakeDriver, for drivers that are derived from it."""

from __future__ import annotations

import warnings

from os_acc.kinds.fake.driver.driver import FakeDriver

__all__ = ['FakeDriver']

warnings.warn(
    'os_acc.drivers.fake.driver is now os_acc.kinds.fake.driver.driver',
    DeprecationWarning,
    stacklevel=2,
)

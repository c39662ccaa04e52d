# SPDX-License-Identifier: Apache-2.0

"""The built-in drivers: one file per device type."""

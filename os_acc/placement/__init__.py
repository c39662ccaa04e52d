# SPDX-License-Identifier: Apache-2.0

"""Accelerators without Cyborg: Placement's view of them, and flavors."""

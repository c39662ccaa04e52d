# SPDX-License-Identifier: Apache-2.0

"""Accelerators of the kernel's class accel, such as NPUs, as whole devices."""

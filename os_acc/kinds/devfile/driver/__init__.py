# SPDX-License-Identifier: Apache-2.0

"""The driver devfile: accelerators that are device files."""

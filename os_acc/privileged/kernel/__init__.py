# SPDX-License-Identifier: Apache-2.0

"""Writing to /sys and /dev as root: each file does one thing."""

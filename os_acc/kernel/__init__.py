# SPDX-License-Identifier: Apache-2.0

"""What /sys, /proc and /dev show of this host."""

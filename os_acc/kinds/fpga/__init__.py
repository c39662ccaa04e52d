# SPDX-License-Identifier: Apache-2.0

"""FPGAs: functions, regions, and what programs them."""

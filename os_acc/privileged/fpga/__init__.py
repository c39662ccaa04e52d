# SPDX-License-Identifier: Apache-2.0

"""Programming FPGAs, as root."""

# SPDX-License-Identifier: Apache-2.0

"""Who has which device, who excludes whom, and whether one may be taken."""

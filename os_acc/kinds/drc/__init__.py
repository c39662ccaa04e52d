# SPDX-License-Identifier: Apache-2.0

"""I/O slots of Power, by their DRC indexes."""

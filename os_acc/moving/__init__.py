# SPDX-License-Identifier: Apache-2.0

"""Moves instances between hosts: what os_acc.migration does."""

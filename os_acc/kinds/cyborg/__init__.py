# SPDX-License-Identifier: Apache-2.0

"""Devices that the drivers of OpenStack Cyborg find and program."""

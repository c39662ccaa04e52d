# SPDX-License-Identifier: Apache-2.0

"""PCI functions, as root: taken, given back, their VFs and their data."""

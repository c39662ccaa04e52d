# SPDX-License-Identifier: Apache-2.0

"""PCI functions: whole ones, and VFs."""

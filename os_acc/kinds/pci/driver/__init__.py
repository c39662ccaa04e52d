# SPDX-License-Identifier: Apache-2.0

"""The driver pci: PCI functions, PF or VF."""

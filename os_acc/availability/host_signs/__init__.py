# SPDX-License-Identifier: Apache-2.0

"""The signs by which a host shows that it uses one of its PCI functions."""

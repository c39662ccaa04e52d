# SPDX-License-Identifier: Apache-2.0

"""Namespaces of NVMe over Fabrics."""

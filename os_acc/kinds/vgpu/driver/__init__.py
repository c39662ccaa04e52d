# SPDX-License-Identifier: Apache-2.0

"""The driver nvidia_vgpu."""

# SPDX-License-Identifier: Apache-2.0

"""What the kernel shows of this host's devices, read without privilege."""

# SPDX-License-Identifier: Apache-2.0

"""The driver npu."""

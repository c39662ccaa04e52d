# SPDX-License-Identifier: Apache-2.0

"""Devices of the memory, for tests and the demo."""

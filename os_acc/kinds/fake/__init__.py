# SPDX-License-Identifier: Apache-2.0

"""Fake devices, for tests and the demo."""

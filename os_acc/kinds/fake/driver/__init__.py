# SPDX-License-Identifier: Apache-2.0

"""The driver fake: devices that do not exist, for tests and demos."""

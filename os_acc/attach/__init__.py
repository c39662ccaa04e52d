# SPDX-License-Identifier: Apache-2.0

"""The steps of plug and unplug: plan, prepare, plug and release."""

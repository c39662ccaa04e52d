# SPDX-License-Identifier: Apache-2.0

"""Waiting with a deadline, and acts that may outlive it."""

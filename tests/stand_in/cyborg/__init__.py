# SPDX-License-Identifier: Apache-2.0

"""Stands in for OpenStack Cyborg, in the helper process, in unit tests.

It has only what os_acc.kinds.cyborg.driver.helper uses of the real package.
The real one's turn is in tests/functional_cyborg.
"""

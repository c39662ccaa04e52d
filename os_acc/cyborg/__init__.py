# SPDX-License-Identifier: Apache-2.0
"""os-acc together with OpenStack Cyborg: Cyborg's API, and its agent.

os_acc.kinds.cyborg is something else: the driver that uses Cyborg's own
drivers.
"""

# SPDX-License-Identifier: Apache-2.0

"""The module that ``compute_driver = os_acc.LibvirtDriver`` names.

Nova looks for compute drivers only below nova.virt (load_compute_driver in
nova/virt/driver.py). The driver itself is in os_acc_nova.
"""

from os_acc_nova.driver import LibvirtDriver

__all__ = ('LibvirtDriver',)

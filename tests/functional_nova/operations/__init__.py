# SPDX-License-Identifier: Apache-2.0

"""Functional tests of the compute driver on Nova's ServersTestBase.

Nova's API, conductor, scheduler and compute services are real, and so are its
libvirt driver, os-acc and os-acc's drivers. Neutron, Glance and libvirt are
the stand-ins of Nova's own tests; Cyborg is that of cyborg.py, and the devices
are a generated sysfs. nova_tests.py runs these tests.
"""

# Under eventlet, this patches the standard library, so it must come first.
from nova.tests import functional

__all__ = ('functional',)

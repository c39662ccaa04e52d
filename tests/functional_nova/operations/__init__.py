# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Functional tests of the compute driver on Nova's ServersTestBase.

Nova's API, conductor, scheduler and compute services are real, and so are its
libvirt driver, os-acc and os-acc's drivers. Neutron, Glance and libvirt are
the stand-ins of Nova's own tests; Cyborg is that of cyborg.py, and the devices
are a generated sysfs. nova_tests.py runs these tests.
"""

# Under eventlet, this patches the standard library, so it must come first.
from nova.tests import functional

__all__ = ('functional',)

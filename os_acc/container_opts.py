# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""The options of the plugin cdi, in the group [os_acc_cdi].

The privileged half reads them too. So they are not in the plugin.
"""

from __future__ import annotations

from oslo_config import cfg
from oslo_config import types

GROUP = 'os_acc_cdi'

# oslo.config uses re.search(), so the patterns have anchors. The vendor is a
# DNS subdomain. Names of one letter are refused, because loaders before 0.5.4
# fail on them (validateVendorName() in pkg/cdi/qualified-device.go).
_LABEL = '[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?'
_KIND = (
    r'^(?=[A-Za-z])(?=[^/]{2,120}/)'
    rf'{_LABEL}(?:\.{_LABEL})*'
    r'/[A-Za-z][A-Za-z0-9_.-]{0,61}[A-Za-z0-9]$'
)
_PATH = r'^(?:/(?!\.{1,2}(?:/|$))[^/\s]+)+$'
_LARGEST_ID = 2**32 - 2

OPTS = (
    cfg.Opt(
        'spec_dir',
        type=types.String(regex=_PATH),
        default='/var/run/cdi',
        help='Folder of the CDI specs that os-acc writes, one for each '
        'accelerator. It must be one that the container runtimes of this host '
        'read. It is made if it does not exist; the folders above it must '
        'exist. Only root may be able to write in it.',
    ),
    cfg.Opt(
        'kind',
        type=types.String(regex=_KIND),
        default='os-acc.openstack.org/accelerator',
        help='The kind of the devices: a vendor, which is a DNS name, and a '
        'class. A container gets an accelerator by the name KIND=UUID of its '
        'VAN.',
    ),
    cfg.IntOpt(
        'device_uid',
        min=0,
        max=_LARGEST_ID,
        help='User id that owns the device files in the container. Unset: '
        'the user of the container.',
    ),
    cfg.IntOpt(
        'device_gid',
        min=0,
        max=_LARGEST_ID,
        help='Group id of the device files in the container. Unset: the '
        'group of the user of the container.',
    ),
    cfg.Opt(
        'device_mode',
        type=types.String(regex='^0?[0-7]{3}$'),
        help='Permissions of the device files in the container, in octal, '
        'such as 660. Unset: the runtime decides, mostly 666.',
    ),
    cfg.BoolOpt(
        'iommufd',
        default=False,
        help='Whether containers use PCI functions and mediated devices by '
        'iommufd: /dev/vfio/devices/vfioN and /dev/iommu. Otherwise they get '
        '/dev/vfio/GROUP and /dev/vfio/vfio, unless the kernel is built '
        'without groups.',
    ),
)

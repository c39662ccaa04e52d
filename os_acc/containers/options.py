# SPDX-License-Identifier: Apache-2.0

"""The options of the plugin cdi, in the group [os_acc_cdi].

The privileged half reads them too. So they are not in the plugin.
"""

from __future__ import annotations

import re
from typing import Any

from oslo_config import cfg
from oslo_config import types

GROUP = 'os_acc_cdi'

# The vendor is a DNS name. Names of one letter are refused, because loaders
# before 0.5.4 fail on them: ValidateVendorName() in
# pkg/cdi/qualified-device.go of the library of CDI.
_LABEL = '[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?'
_KIND = re.compile(
    r'(?=[A-Za-z])(?=[^/]{2,120}/)'
    rf'{_LABEL}(?:\.{_LABEL})*'
    '/[A-Za-z][A-Za-z0-9_.-]{0,61}[A-Za-z0-9]'
)
_PATH = re.compile(r'(?:/(?!\.{1,2}(?:/|\Z))[^/\s]+)+')
_MODE = re.compile('0?[0-7]{3}')
_LARGEST_ID = 2**32 - 2


class _Text(types.String):
    """A text of a certain form, with an error in plain words."""

    def __init__(self, form: re.Pattern[str], expected: str) -> None:
        super().__init__()
        self._form = form
        self._expected = expected

    def __call__(self, value: Any) -> str:
        text: str = super().__call__(value)
        if not self._form.fullmatch(text):
            raise ValueError(f'it is {text!r}, expected {self._expected}')
        return text


OPTS = (
    cfg.Opt(
        'spec_dir',
        type=_Text(_PATH, 'the absolute path of a directory'),
        default='/var/run/cdi',
        help='Directory of the CDI specs that os-acc writes, one for each '
        'accelerator. It must be one that the container runtimes of this host '
        'read. It is created if it does not exist; the directories above it '
        'must exist. Only root may be able to write to it. It should be on a '
        'tmpfs: elsewhere, specs with the device numbers of the last boot '
        'remain until os-acc recover has run.',
    ),
    cfg.Opt(
        'kind',
        type=_Text(
            _KIND,
            'VENDOR/CLASS, such as vendor.com/fpga: a DNS name, and a word of '
            'letters, digits and _.-, each of at least two characters',
        ),
        default='os-acc.openstack.org/accelerator',
        help='The kind of the devices: a vendor, which is a DNS name, and a '
        'class. A container gets an accelerator by the name KIND=UUID, with '
        'the UUID of its VAN.',
    ),
    cfg.IntOpt(
        'device_uid',
        min=0,
        max=_LARGEST_ID,
        help='User ID that owns the device files in the container. Unset: the '
        'user of the container.',
    ),
    cfg.IntOpt(
        'device_gid',
        min=0,
        max=_LARGEST_ID,
        help='Group ID of the device files in the container. Unset: the group '
        'of the user of the container.',
    ),
    cfg.Opt(
        'device_mode',
        type=_Text(_MODE, 'three octal digits, such as 660'),
        help='Permissions of the device files in the container, in octal, '
        'such as 660. Unset: the runtime decides, usually 666.',
    ),
    cfg.BoolOpt(
        'iommufd',
        default=False,
        help='Whether containers use PCI functions and mediated devices '
        'through iommufd: /dev/vfio/devices/vfioN and /dev/iommu. Otherwise '
        'they get /dev/vfio/GROUP and /dev/vfio/vfio, unless the kernel is '
        'built without groups.',
    ),
)

# SPDX-License-Identifier: Apache-2.0

"""The options of the libvirt plugin, in the group [os_acc_libvirt]."""

from __future__ import annotations

from oslo_config import cfg
from oslo_config import types

# HANDLE=ADDRESS. oslo.config uses re.search(), so the pattern has anchors.
_GUEST_ADDRESS = (
    r'^[0-9a-f:.-]+=(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$'
)

#: The URI of libvirt if no option has one.
DEFAULT = 'qemu:///system'
#: The format of guest_config and of a MigrationMap.
FORMAT = 'libvirt-xml'

OPTS = (
    cfg.BoolOpt(
        'managed',
        default=True,
        help='Whether libvirt binds PCI functions to vfio-pci and back. A '
        'handle that sets managed itself overrides this.',
    ),
    cfg.StrOpt(
        'vfio_driver',
        default='',
        help='VFIO variant driver for PCI functions, written as <driver '
        "name='vfio' model='...'/>. Empty: libvirt chooses. Needs libvirt "
        '10.0; an older libvirt ignores it silently.',
    ),
    cfg.BoolOpt(
        'iommufd',
        help='Whether libvirt opens PCI functions through iommufd, written as '
        "<driver iommufd='...'/>. Needs libvirt 12.1. Unset: yes on a kernel "
        'without VFIO groups; on others libvirt decides.',
    ),
    cfg.BoolOpt(
        'rom_bar',
        help='Whether the guest sees the PCI ROM of a function. Unset: the '
        'hypervisor decides.',
    ),
    cfg.BoolOpt(
        'display',
        default=False,
        help="Whether vGPUs (vfio-pci mdevs) show on the guest's graphical "
        'console.',
    ),
    cfg.BoolOpt(
        'ramfb',
        default=False,
        help="Whether the graphical console also shows the guest's boot. "
        'Needs display.',
    ),
    cfg.ListOpt(
        'guest_addresses',
        default=[],
        item_type=types.String(regex=_GUEST_ADDRESS, ignore_case=True),
        help='The PCI addresses at which guests see particular devices: a '
        'list of HANDLE=ADDRESS. HANDLE is the PCI address or the mdev UUID '
        "on the host, ADDRESS the guest's PCI address.",
    ),
    cfg.StrOpt(
        'connection_uri',
        default='',
        sample_default='qemu:///system',
        help='Connection URI of the libvirt that runs the guests of this '
        'host. If this is empty, os-acc uses the option connection_uri of the '
        'group [libvirt], which nova.conf has, or else qemu:///system.',
    ),
    cfg.FloatOpt(
        'connect_timeout',
        default=30.0,
        min=0,
        help='Seconds to wait for libvirtd while it is down or restarting.',
    ),
    cfg.FloatOpt(
        'attach_timeout',
        default=120.0,
        min=1,
        help='Seconds that libvirt may take to attach one device.',
    ),
    cfg.IntOpt(
        'detach_attempts',
        default=8,
        min=1,
        help='How many times at most to ask a running guest to release a '
        'device.',
    ),
    cfg.FloatOpt(
        'detach_attempt_timeout',
        default=20.0,
        min=0.1,
        help='Seconds to wait for the guest the first time. Each further time '
        'the wait is twice as long, because a guest that is slow must not be '
        'asked again while it works on the request.',
    ),
    cfg.FloatOpt(
        'detach_timeout',
        default=160.0,
        min=0.1,
        help='Seconds for all attempts together. After that, unplug fails, '
        'and the guest keeps the device until unplug is called again.',
    ),
)

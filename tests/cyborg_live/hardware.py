# SPDX-License-Identifier: Apache-2.0

"""The hardware of the compute host, and os-acc's configuration for it."""

from __future__ import annotations

import json

import configuration
import layout
import shared_kernel
import vendor

#: The directory of the generated host.
DIRECTORY = layout.ROOT / 'host'
#: os-acc's configuration, for nova-compute's part and for Cyborg's agent.
CONF = layout.ETC / 'os-acc.conf'

#: What libvirt's test driver says of the guests of the host.
GUESTS = layout.ROOT / 'guests.xml'

#: A PF whose VFs os-acc makes at plug.
PF, PF_VFS, PF_CLASS = '0000:3d:00.0', 4, 'CUSTOM_QAT_VF'
#: A PF with many VFs.
MANY, MANY_VFS, MANY_CLASS = '0000:40:00.0', 50, 'CUSTOM_MANY_VF'
#: A PF whose VFs an administrator makes.
MADE, MADE_VFS, MADE_CLASS = '0000:50:00.0', 4, 'CUSTOM_MADE_VF'
GPU, GPU_CLASS = '0000:af:00.0', 'CUSTOM_WHOLE_GPU'
#: A parent of mediated devices.
VGPU, VGPU_TYPE, VGPU_CLASS = '0000:b0:00.0', 'nvidia-222', 'CUSTOM_VGPU_222'
#: Cyborg programs devices of the class FPGA only.
FPGA_CLASS = 'FPGA'

# The PF itself is not offered when it has no VFs.
_MADE_VFS = {'domain': '0000', 'bus': '50', 'slot': '00', 'function': '[1-4]'}
_QAT = '8086:4940'


def build() -> tuple[shared_kernel.SharedKernel, vendor.Vendor]:
    """Make the host and os-acc.conf."""
    kernel = shared_kernel.SharedKernel(DIRECTORY)
    with kernel.changed():
        kernel.add_function(PF, _QAT, 0x0B4000, 'qat', totalvfs=PF_VFS)
        kernel.add_function(MANY, _QAT, 0x0B4000, 'qat', totalvfs=MANY_VFS)
        kernel.add_function(MADE, _QAT, 0x0B4000, 'qat', totalvfs=MADE_VFS)
        add_gpu(kernel)
        path = kernel.add_function(VGPU, '10de:1eb8', 0x030200, 'nvidia')
        kernel.add_mdev_parent(path, {VGPU_TYPE: 1, 'nvidia-223': 2}, 4)
        kernel.add_function(
            vendor.FPGA, '8086:bcce', 0x120000, 'dfl-pci', totalvfs=1
        )
    kernel.set_vfs(MADE, MADE_VFS)
    tool = vendor.Vendor(layout.ROOT / 'vendor')
    set_guests()
    _configure(tool)
    return kernel, tool


def add_gpu(kernel: shared_kernel.SharedKernel) -> None:
    """Put the GPU into its slot."""
    kernel.add_function(GPU, '10de:2330', 0x030200, 'nvidia')


def set_guests(*instances: str) -> None:
    """Say which guests the host has.

    :param instances: the UUIDs of their instances
    """
    domains = ''.join(
        f'<domain type="test"><name>guest-{each}</name><uuid>{each}</uuid>'
        '<memory>1024</memory><os><type>hvm</type></os></domain>'
        for each in instances
    )
    GUESTS.write_text(f'<node>{domains}</node>')


def _configure(tool: vendor.Vendor) -> None:
    entries = (
        {'address': PF, 'num_vfs': PF_VFS, 'resource_class': PF_CLASS},
        {'address': MANY, 'num_vfs': MANY_VFS, 'resource_class': MANY_CLASS},
        {'address': _MADE_VFS, 'resource_class': MADE_CLASS},
        {'address': GPU, 'resource_class': GPU_CLASS},
        {
            'address': VGPU,
            'mdev_types': [VGPU_TYPE],
            'resource_class': VGPU_CLASS,
        },
        tool.spec(num_vfs=1),
    )
    configuration.write(
        CONF,
        {
            'DEFAULT': {'host': layout.HOST},
            'os_acc': {
                'plugin': 'libvirt',
                'state_path': layout.STATE / 'os-acc',
                'device_spec': [json.dumps(each) for each in entries],
                'release_timeout': 20,
            },
            'os_acc_placement': {'update_traits': 'true'},
            'placement': configuration.user('cyborg'),
            'os_acc_libvirt': {'connection_uri': f'test://{GUESTS}'},
            'os_acc_mdev': {'owner': 'cyborg'},
            'os_acc_bitstreams': {
                'allowed_folders': tool.bitstreams,
                'cloud': configuration.ADMIN_CLOUD,
            },
        },
    )

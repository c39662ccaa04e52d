# SPDX-License-Identifier: Apache-2.0

"""The simulated FPGA card of the lab: see dfl/dfl_card.c."""

from __future__ import annotations

import json
import pathlib
import struct
import subprocess
import uuid

import lab_devices

PF = lab_devices.DFL_PF
#: The interface that bitstreams must be built for.
INTERFACE = 'af84c9d3-e2b1-4f67-9c0d-51a7e8362bf4'
#: The function that the ports have after power-on.
BLANK = '0c56f2d1-a83b-4e95-b7d2-1e6f4a90c358'

# The drivers that the card needs; dfl-pci loads dfl, fpga-region, fpga-bridge
# and fpga-mgr. udev loads none of them, because their devices are made later.
_DRIVERS = (
    'dfl-fme-mgr',
    'dfl-fme-br',
    'dfl-fme-region',
    'dfl-fme',
    'dfl-afu',
    'dfl-pci',
)
_PCI = pathlib.Path('/sys/bus/pci')
_DEVICE = _PCI / 'devices' / PF
_PARAMETERS = pathlib.Path('/sys/module/dfl_card/parameters')


def up() -> None:
    """Turn the NVMe function into the card, and bind it to dfl-pci."""
    subprocess.run(['modprobe', '-a', *_DRIVERS], check=True, timeout=120)
    if (_DEVICE / 'driver').exists():
        (_DEVICE / 'driver/unbind').write_text(PF)
    subprocess.run(
        ['modprobe', 'dfl_card', f'function={PF}'], check=True, timeout=120
    )
    (_PCI / 'drivers_probe').write_text(PF)


def down() -> None:
    """Turn the card into the NVMe function again. It must have no VFs."""
    (_DEVICE / 'driver/unbind').write_text(PF)
    subprocess.run(['rmmod', 'dfl_card'], check=True, timeout=120)
    (_PCI / 'drivers_probe').write_text(PF)


def put(**values: object) -> None:
    """Set parameters of the card, such as error=2. See dfl_card.c."""
    for name, value in values.items():
        (_PARAMETERS / name).write_text(str(value))


def value(name: str) -> int:
    """Read a parameter of the card, such as programmed."""
    return int((_PARAMETERS / name).read_text())


def image(
    function_id: str, size: int = 5000, interface: str = INTERFACE
) -> bytes:
    """Make an image in OPAE's format GBS.

    :param size: of its payload after the two ids
    :param interface: the one that its metadata and its payload name
    """
    metadata = {
        'version': 1,
        'afu-image': {
            'magic-no': 488605312,
            'interface-uuid': interface,
            'accelerator-clusters': [
                {
                    'total-contexts': 1,
                    'name': 'lab',
                    'accelerator-type-uuid': function_id,
                }
            ],
        },
        'platform-name': 'LAB',
    }
    text = json.dumps(metadata).encode()
    return (
        b'XeonFPGA\xb7GBSv001'
        + struct.pack('<I', len(text))
        + text
        + payload(function_id, size, interface)
    )


def payload(function_id: str, size: int, interface: str) -> bytes:
    """Make what the card is programmed with."""
    return (
        uuid.UUID(function_id).bytes
        + uuid.UUID(interface).bytes
        + bytes(number * 7 & 0xFF for number in range(size))
    )

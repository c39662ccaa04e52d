# SPDX-License-Identifier: Apache-2.0

"""As cyborg.accelerator.drivers.gpu.utils."""

import os
import pathlib
import time

from cyborg import acts

SYS = pathlib.Path(os.environ['STAND_IN_SYS'])


def create_mdev_privileged(pci_addr, mdev_type, ah_uuid) -> None:
    acts.note(['create_mdev', pci_addr, mdev_type, ah_uuid])
    parent = SYS / f'class/mdev_bus/{pci_addr}'
    told = acts.told('create_mdev')
    if told.startswith('other '):
        # Somebody else is faster, with another type.
        _, mdev_type, number = told.split()
        (parent / f'mdev_supported_types/{mdev_type}/create').write_text(
            ah_uuid
        )
        while not (SYS / 'bus/mdev/devices' / ah_uuid).exists():
            time.sleep(0.01)
        raise OSError(int(number), os.strerror(int(number)))
    acts.act('create_mdev')
    (parent / f'mdev_supported_types/{mdev_type}/create').write_text(ah_uuid)

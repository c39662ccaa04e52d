# SPDX-License-Identifier: Apache-2.0

"""The VFIO driver that os-acc binds a function to."""

from __future__ import annotations

from os_acc import exception
from os_acc.kernel import modules
from os_acc.kernel import pci
from os_acc.spec import device_spec


def driver_for(function: pci.Function, spec: device_spec.Spec) -> str:
    """The module of the VFIO driver that os-acc binds a function to.

    It is the entry's vfio_driver if that is set. Otherwise it is what
    modules.alias says, which cannot be read in a container without the host's
    /lib/modules: then it is vfio-pci.

    :param spec: the entry of device_spec for it
    :raises InvalidRequest: if vfio_driver is not the name of a VFIO driver
    """
    chosen = spec.vfio_driver
    if chosen is None:
        return modules.vfio_driver(function.modalias)
    if not modules.is_name(chosen) or 'vfio' not in chosen:
        raise exception.InvalidRequest(
            subject='[os_acc] device_spec',
            field='vfio_driver',
            value=chosen,
            expected='the name of a VFIO driver, such as vfio-pci or '
            'mlx5_vfio_pci',
        )
    return chosen

# SPDX-License-Identifier: Apache-2.0
"""Makes Cyborg's objects from a report."""

from __future__ import annotations

from cyborg.common import constants
from cyborg.objects.driver_objects import driver_attach_handle
from cyborg.objects.driver_objects import driver_attribute
from cyborg.objects.driver_objects import driver_controlpath_id
from cyborg.objects.driver_objects import driver_deployable
from cyborg.objects.driver_objects import driver_device

from os_acc.cyborg import names
from os_acc.cyborg import report


def device(made: report.Device) -> driver_device.DriverDevice:
    return driver_device.DriverDevice(
        vendor=made.vendor,
        model=made.model,
        type=made.type,
        std_board_info=made.std_board_info,
        vendor_board_info=made.vendor_board_info,
        stub=False,
        controlpath_id=driver_controlpath_id.DriverControlPathID(
            cpid_type=constants.CPID_TYPE_PCI,
            cpid_info=report.control_path(made.address),
        ),
        deployable_list=[
            _deployable(each) for each in made.deployables.values()
        ],
    )


def _deployable(
    made: report.Deployable,
) -> driver_deployable.DriverDeployable:
    return driver_deployable.DriverDeployable(
        name=made.name,
        driver_name=names.DRIVER,
        num_accelerators=made.count,
        attribute_list=[
            _attribute('rc', made.resource_class),
            # Cyborg compares attributes by their keys. A new key of any other
            # name would become a trait too (drv_attr_make_diff in
            # cyborg/conductor/manager.py).
            *(_attribute(f'trait_{each}', each) for each in made.traits),
        ],
        attach_handle_list=[
            driver_attach_handle.DriverAttachHandle(
                attach_type=each.type, attach_info=each.info, in_use=False
            )
            for each in made.handles.values()
        ],
    )


def _attribute(key: str, value: str) -> driver_attribute.DriverAttribute:
    return driver_attribute.DriverAttribute(key=key, value=value)

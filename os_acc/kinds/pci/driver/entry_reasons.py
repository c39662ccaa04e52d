# SPDX-License-Identifier: Apache-2.0

"""Why entries of device_spec that could serve a request offer nothing."""

from __future__ import annotations

from collections.abc import Iterator
import logging

import os_resource_classes as resource_classes

from os_acc import driver
from os_acc import exception
from os_acc import kinds
from os_acc import objects
from os_acc.availability import nothing_offered
from os_acc.drivers import allocation
from os_acc.kinds.pci.driver import listing as pci_listing
from os_acc.spec import device_spec
from os_acc.spec import parts as spec_parts

LOG = logging.getLogger(__name__)

Part = spec_parts.Part


def refused(
    by: driver.DriverBase,
    specs: device_spec.Specs,
    request: objects.AcceleratorRequest,
) -> Iterator[exception.DeviceError]:
    """Say which entries of a request's resource class offer nothing, and why.

    Nothing is read before the first one is asked for.

    :param by: a driver, which is connected to the journal
    """
    try:
        found = nothing_offered.find(specs, allocation.holders(by))
    except Exception as err:
        # The caller has other reasons, which this error must not hide.
        LOG.warning('device_spec: %s', exception.describe(err))
        return
    for each in found:
        if _could_serve(each, request.resource_class):
            yield exception.DeviceError(
                device=each.obstacle.device, reason=each.reason
            )


def _could_serve(each: nothing_offered.Nothing, wanted: str | None) -> bool:
    """Whether an entry would offer a resource class, if it offered something.

    The class may depend on the device, so some entries without
    resource_class cannot be told.
    """
    spec = each.spec
    if spec.resource_class is not None:
        return spec.resource_class == wanted
    asked = spec_parts.asked_for(spec)
    if asked & {Part.VGPU, Part.MDEV}:
        return wanted == resource_classes.VGPU or wanted in {
            pci_listing.custom(f'MDEV_{kind}') for kind in spec.mdev_types
        }
    if Part.NAMESPACE in asked:
        return wanted == 'CUSTOM_NVME_OF'
    if spec.of_kind is not None:
        return wanted in kinds.module(spec.of_kind.kind, 'entry').CLASSES
    if each.function is not None:
        made = Part.VF in asked or None
        kind = pci_listing.kind_of(each.function, spec, vf=made)
        return kind.resource_class == wanted
    ids = f'{pci_listing.PREFIX}{spec.vendor_id}_{spec.product_id}'
    return ids.upper() == wanted

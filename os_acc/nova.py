# SPDX-License-Identifier: Apache-2.0
"""What a compute driver of Nova needs to call os_acc with Nova's own values.

This module does not import Nova. It takes Nova's objects as they are: the list
accel_info, an Instance, and the groups of device profiles.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import logging
from typing import TYPE_CHECKING
from typing import Any

import os_acc
from os_acc import exception
from os_acc import log
from os_acc import objects
from os_acc.objects import van as states

if TYPE_CHECKING:
    from lxml import etree

    from os_acc.placement import choice

LOG = logging.getLogger(__name__)


def instance_info(instance: Any) -> objects.InstanceInfo:
    """Make an InstanceInfo from Nova's Instance.

    :param instance: an object with the attributes uuid, name, project_id and
        image_ref, or an InstanceInfo, which is returned as it is
    :raises InvalidRequest: if a value is wrong
    """
    if isinstance(instance, objects.InstanceInfo):
        return instance
    return objects.InstanceInfo(
        uuid=instance.uuid,
        name=instance.name,
        project_id=instance.project_id,
        # '' if it was booted from a volume
        image_id=instance.image_ref or None,
    )


def requests(
    accel_info: Sequence[Mapping[str, Any]],
    port_arq_uuids: Mapping[str, str] | None = None,
    profile_groups: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
) -> list[objects.AcceleratorRequest]:
    """Make requests from the ARQs that Nova passes to its driver.

    :param accel_info: ARQs, as Cyborg's API returns them
    :param port_arq_uuids: the ARQs of network ports: the port's UUID by the
        UUID of its ARQ (vif['profile']['arq_uuid']). os-acc does the device
        half of such an ARQ; the guest gets the device through its interface,
        so devices() leaves it out. ARQs that are not in accel_info are ignored
    :param profile_groups: the groups of each device profile by its name, as
        Nova's get_device_profile_groups() returns them: then the functions
        and bitstreams that they name are programmed by os-acc. None: os-acc
        programs nothing, for example because Cyborg does
    :returns: the requests, in the order of the ARQs
    :raises ARQNotBound: if an ARQ is not Bound, such as after BindFailed
    :raises InvalidRequest: if a value is wrong, or profile_groups lacks the
        profile or the group of an ARQ
    """
    made = objects.AcceleratorRequest.from_arqs(accel_info, profile_groups)
    ports = {_uuid(arq): port for arq, port in (port_arq_uuids or {}).items()}
    for request in made:
        request.port_uuid = ports.get(request.uuid)
    return made


def allocated_requests(
    instance: Any,
    allocated: choice.Allocated,
    image_traits: Sequence[str],
    taken: Collection[str] = (),
) -> list[objects.AcceleratorRequest]:
    """Make requests from a flavor, for accelerators without Cyborg.

    The flavor requests them by ``resources:CUSTOM_...`` and ``trait:...``, and
    Placement has allocated them. See os_acc.placement.choice.

    :param instance: an object with the attributes uuid and flavor; the flavor
        has extra_specs
    :param allocated: what is allocated to the instance from the providers of
        this host's devices. Devices are discovered only if something is
        allocated
    :param image_traits: the traits that the image requires
    :param taken: the identities of free handles that must not be chosen,
        because other calls have chosen them
    :returns: the requests; empty if nothing is allocated. A repeated call
        gives them the same UUIDs
    :raises InvalidRequest: if the flavor contradicts the allocation, or
        requests a function for nothing that can be programmed
    :raises DeviceNotFound: if an allocated device is gone, or has no free
        handle left
    :raises DiscoveryFailed: if it is unknown whether the device exists
    """
    from os_acc.placement import choice
    from os_acc.placement import flavor
    from os_acc.placement import inventory

    if not allocated:
        return []
    asked = flavor.groups(instance.flavor.extra_specs, image_traits)
    try:
        devices = os_acc.get_devices()
    except exception.DiscoveryFailed as err:
        devices = err.devices
        if not allocated.keys() <= inventory.providers(devices).keys():
            raise
    return choice.requests(
        instance.uuid,
        asked,
        allocated,
        inventory.providers(devices),
        {van.uuid: van for van in os_acc.get_vans(instance.uuid)},
        taken,
    )


def _uuid(value: Any) -> str:
    return objects.AcceleratorRequest(uuid=value).uuid


@contextlib.contextmanager
def plugged(
    instance: Any,
    wanted: Sequence[objects.AcceleratorRequest],
    is_running: Callable[[], bool] | None = None,
) -> Iterator[objects.VANList]:
    """Plug accelerators (live=False) for a block that starts the guest.

    If the block fails, the accelerators that this call has plugged are
    unplugged, and the error of the block is raised. What the instance had
    before stays. A failing unplug is only logged: the VANs are in the journal
    in state error, and recover() tries again.

    :param instance: see instance_info()
    :param wanted: the requests; empty: nothing is plugged
    :param is_running: says after a failure of the block whether the guest runs
        despite it; its accelerators then stay plugged
    :returns: a context manager that yields the VANs
    :raises: as os_acc.plug
    """
    if not wanted:
        yield objects.VANList(objects=[])
        return
    info = instance_info(instance)
    before = {
        van.uuid
        for van in os_acc.get_vans(info)
        if van.state == states.PLUGGED
    }
    vans = os_acc.plug(info, wanted)
    try:
        yield vans
    except BaseException:
        new = [van for van in vans if van.uuid not in before]
        if new:
            _take_back(info, new, is_running)
        raise


def _take_back(
    info: objects.InstanceInfo,
    vans: Sequence[objects.VAN],
    is_running: Callable[[], bool] | None,
) -> None:
    """Unplug VANs whose guest could not be started. Raises no Exception."""
    logger = log.about(LOG, info.uuid)
    try:
        if is_running is not None and is_running():
            logger.warning(
                'the guest runs despite the failure: its %d accelerators stay '
                'plugged',
                len(vans),
            )
            return
        os_acc.unplug(info, vans)
    except Exception as err:
        logger.error(
            'its accelerators were not unplugged after the failure: %s',
            exception.describe(err),
        )


@dataclasses.dataclass(frozen=True)
class GuestDevice:
    """A device of the guest's definition, for Nova's LibvirtConfigGuest.

    :ivar van_uuid: UUID of the VAN
    :ivar xml: the VAN's guest_config, with its alias and driver
    """

    van_uuid: str
    xml: str

    def format_dom(self) -> etree._Element:
        """Return the element. Nova adds it to the domain's devices as it is.

        :raises InvalidRequest: if guest_config is not XML, for example because
            a plugin other than libvirt generated it
        """
        from lxml import etree

        try:
            return etree.fromstring(self.xml)
        except etree.XMLSyntaxError as err:
            raise exception.InvalidRequest(
                subject=f'VAN {self.van_uuid}',
                field='guest_config',
                value=self.xml,
                expected='XML of libvirt ([os_acc] plugin = libvirt)',
            ) from err

    def to_xml(self, pretty_print: bool = True) -> str:
        """Return the XML as text.

        :param pretty_print: ignored; Nova's own objects have it
        """
        return self.xml


def devices(
    vans: Sequence[objects.VAN] | objects.VANList,
    port_arq_uuids: Collection[str] = (),
) -> list[GuestDevice]:
    """List what VANs add to the guest's definition.

    :param vans: from plug(), replug() or get_vans()
    :param port_arq_uuids: see requests(); these VANs are left out, because the
        guest gets them through its network interfaces
    :returns: the devices in the order of the VANs, without VANs that add
        nothing
    """
    ports = {_uuid(arq) for arq in port_arq_uuids}
    return [
        GuestDevice(van.uuid, van.guest_config)
        for van in vans
        if van.guest_config is not None and van.uuid not in ports
    ]

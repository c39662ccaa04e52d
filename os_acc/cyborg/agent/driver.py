# SPDX-License-Identifier: Apache-2.0
"""The driver os_acc of the Cyborg agent: discover() and program().

The agent makes one object when it starts, and another one for each
programming (cyborg/agent/resource_tracker.py and manager.py). The options of
os-acc are read from the agent's own configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
import logging
import os
import re
import threading
from typing import Any

from cyborg.accelerator.drivers.fpga import base
from cyborg.common import constants
from cyborg.common import exception as cyborg_exception
from cyborg.conf import CONF
from cyborg.objects.driver_objects import driver_attach_handle
from cyborg.objects.driver_objects import driver_attribute
from cyborg.objects.driver_objects import driver_controlpath_id
from cyborg.objects.driver_objects import driver_deployable
from cyborg.objects.driver_objects import driver_device

import os_acc
from os_acc import exception
from os_acc import log
from os_acc.bitstreams import options as bitstream_opts
from os_acc.cyborg import api
from os_acc.cyborg import connections
from os_acc.cyborg import names
from os_acc.cyborg import report
from os_acc.cyborg import reporting

LOG = logging.getLogger(__name__)

#: The name of this process as an owner of VANs. The agent plugs none.
OWNER = 'cyborg-agent'

# The group of the agent's configuration with the credentials for OpenStack.
# The agent itself does not start without it.
_GROUP = 'placement'

# The agent names a bitstream's file by the UUID of the image.
_IMAGE = re.compile(
    r'([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}).*\.gbs', re.I
)

# os_acc is initialized again for programming, and must not be in use then.
_using = threading.Lock()


class OSAccDriver(base.FPGADriver):
    """Reports os-acc's devices, and programs them.

    Cyborg looks for the class that programs a device among the subclasses of
    its FPGADriver, by VENDOR, which is the deployable's driver_name.
    """

    VENDOR = names.DRIVER

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._reporter = reporting.Reporter(
            CONF.host,
            {CONF.host, CONF.agent.resource_provider_name},
            _connect,
            alone=set(CONF.agent.enabled_drivers) == {names.DRIVER},
        )

    def discover(self) -> list[driver_device.DriverDevice]:
        """List the devices of this host.

        :raises DiscoveryFailed: if one of os-acc's drivers failed. The agent
            then reports nothing, so that Cyborg deletes nothing
        """
        with _using:
            os_acc.initialize(read_only=True, owner=OWNER)
            conf = os_acc.CONF.os_acc
            devices = os_acc.get_devices()
            # Read afterwards, so that the VANs of all used handles are there.
            vans = reporting.arq_vans(conf.state_path, conf.journal_timeout)
            made = self._reporter.make(devices, vans)
        return [_device(each) for each in made.values()]

    def program(
        self, controlpath_id: Mapping[str, Any], image_path: str
    ) -> bool:
        """Program a device.

        :param controlpath_id: a dict with cpid_info, as discover() reports it
        :raises FPGAProgramError: if it is not programmed. The agent ignores a
            result of False; after an error the ARQ is BindFailed
        """
        try:
            address = report.controlled(controlpath_id['cpid_info'])
            bitstream = _bitstream(image_path)
            with _using:
                os_acc.initialize(owner=OWNER)
            done = os_acc.program_device(address, bitstream)
        except Exception as err:
            text = (
                f'{controlpath_id.get("cpid_info")}: not programmed with '
                f'{image_path}: {exception.describe(err)}'
            )
            log.error(LOG, err, '%s', text)
            # The conductor can rebuild an error of Cyborg's own, with text.
            raise cyborg_exception.FPGAProgramError(text) from err
        LOG.info(
            'Device %s %s %s',
            address,
            'was programmed with' if done else 'already has',
            bitstream,
        )
        return True


def _connect() -> api.API:
    return api.API(connections.by_group(connections.ACCELERATOR, CONF, _GROUP))


def _bitstream(image_path: str) -> str:
    """Name a bitstream for os_acc.program_device().

    :returns: the path, if its directory is allowed. Otherwise the UUID of the
        image: os-acc then gets it from Glance itself, and checks it
    """
    real = os.path.realpath(image_path)
    directories = os_acc.CONF[bitstream_opts.GROUP].allowed_folders
    for directory in directories:
        if real.startswith(os.path.realpath(directory).rstrip('/') + '/'):
            return image_path
    match = _IMAGE.fullmatch(os.path.basename(image_path))
    return match[1] if match else image_path


def _device(made: report.Device) -> driver_device.DriverDevice:
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

# SPDX-License-Identifier: Apache-2.0

"""What the author of a driver defines for the contract."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from os_acc import driver as driver_base
from os_acc import objects
from os_acc import plugin as plugin_base
from os_acc.claims import holder
from os_acc.kernel import device_files
from os_acc.testing import any_plugin
from os_acc.testing import contract_base
from os_acc.testing import rules
from os_acc.testing import service as service_module


class DriverHooks(contract_base.ContractBase):
    """make_driver(), requests() and look(), and what is optional."""

    def make_driver(self) -> driver_base.DriverBase:
        """Make the driver, as each new process does.

        The hardware is there before the first call. The author defines it,
        usually as ``return MyDriver.load('my')``.
        """
        raise NotImplementedError

    def make_plugin(self) -> plugin_base.PluginBase:
        """Make the plugin of the host. The default takes every handle."""
        return any_plugin.AnyPlugin.load('any')

    def foreign_handles(self) -> list[objects.AttachHandle]:
        """Return handles of devices that the driver does not have.

        The default returns one of each class of os-acc.
        """
        return [
            objects.TestHandle(name='no-such-device'),
            objects.PCIHandle(address='fffe:1f:1f.7'),
            objects.MdevHandle(
                uuid='0f6a7b8c-1111-4222-8333-444455556666',
                parent='no-such-device',
                type='no-such-type',
            ),
            objects.DRCHandle(drc_index=0x2FFFFFFF),
            objects.DeviceFileHandle(
                name='no-such-device',
                files=[
                    objects.DeviceFile(
                        path='/dev/no-such-device',
                        type='c',
                        major=4095,
                        minor=1048575,
                    )
                ],
            ),
        ]

    def hold(self, van: objects.VAN) -> Callable[[], None] | None:
        """Let a guest open the device of a VAN.

        The default skips the tests that need it.

        :returns: a function that closes the device; None if no guest can
            open this one
        """
        pytest.skip('hold() is not defined: no guest can open the device')

    def remove(self, van: objects.VAN) -> Callable[[], None]:
        """Remove the device of a VAN from the host, like a card that failed.

        The default skips the tests that need it.

        :returns: a function that puts back an untouched device
        """
        pytest.skip('remove() is not defined: the device cannot go away')

    def two_devices(
        self,
    ) -> tuple[objects.AcceleratorRequest, tuple[str, str]]:
        """Let the host have two free devices that serve one request.

        The default skips the test that needs it.

        :returns: the request, which names no handle, and the addresses of the
            two devices as get_devices() gives them
        """
        pytest.skip('two_devices() is not defined: there is only one')

    def device_number(self, path: str) -> str | None:
        """Return type and number that a device file has now.

        The kit asks it for the files of each DeviceFileHandle. The default
        looks at the file in the /dev of the Kernel or of this machine. Define
        it if something else represents the device file: creating a real one
        requires root.

        :param path: below /dev, as in the handle
        :returns: such as 'c 240:1'; None if there is no such device file
        """
        found = device_files.number_of(device_files.real_path(path))
        return None if found is None else device_files.text(found)

    def check_numbers(self, van: objects.VAN) -> None:
        """Check the device numbers in a VAN's handle."""
        if not isinstance(van.handle, objects.DeviceFileHandle):
            return
        for file in van.handle.files:
            said = f'{file.type} {file.major}:{file.minor}'
            now = self.device_number(file.path)
            if now != said:
                rules.NUMBERS.broken(
                    f'{file.path} is {said} in the handle, and '
                    f'device_number() of the test says {now}'
                )

    @staticmethod
    def undo_late(
        service: contract_base.Service, van: objects.VAN, rule: rules.Rule
    ) -> None:
        """Call unprepareVAN() itself, for a VAN that os-acc may not have.

        :param rule: is broken if it raises an error
        """
        driver = service.driver
        instance = service_module.instance(van.instance_uuid)
        who = holder.Holder(
            driver.journal.identity(),
            driver.journal.path,
            van.instance_uuid,
            van.uuid,
        )
        van.connect(lambda saved: None)
        try:
            with holder.acting_for(who):
                contract_base.answered(
                    lambda: driver.unprepareVAN(van, instance), rule
                )
        finally:
            van.connect(None)

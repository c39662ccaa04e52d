# SPDX-License-Identifier: Apache-2.0

"""A driver for slots. A file exists for each slot that is in use."""

import os

from acc_example import options
from acc_example import privileged
from os_acc import driver
from os_acc import exception
from os_acc import objects

DEVICE = 'example'
RESOURCE_CLASS = 'CUSTOM_EXAMPLE'


class ExampleDriver(driver.DriverBase):
    CONFIG_OPTS = options.OPTS
    handle_types = ('TestHandle',)

    def can_handle(self, request):
        return request.resource_class == RESOURCE_CLASS

    def get_devices(self):
        taken = {holder.handle for holder in self.handles()}
        return [
            objects.Device(
                address=DEVICE,
                driver=self.name,
                resource_class=RESOURCE_CLASS,
                handles_total=len(self.config.slots),
                handles_free=len(self._without(taken)),
            )
        ]

    def prepareVAN(self, van, request, instance_info):
        with self.lock(DEVICE):
            if van.handle is None:
                van.handle = objects.TestHandle(
                    name=self._choose(van, request)
                )
                van.device = DEVICE
                van.save()
            privileged.occupy(van.handle.name)

    def is_intact(self, van):
        return os.path.exists(
            os.path.join(self.config.directory, van.handle.name)
        )

    def unprepareVAN(self, van, instance_info):
        if van.handle is None:
            return  # no slot was chosen
        with self.lock(DEVICE):
            if not self.is_anothers(van):
                privileged.give_back(van.handle.name)

    def _choose(self, van, request):
        if request.resource_class not in (None, RESOURCE_CLASS):
            raise exception.DeviceNotFound(
                wanted=f'request {request.uuid}',
                reason=f'no slot is of {request.resource_class}',
            )
        free = self._without(self.handles_of_others(van))
        if request.handle is not None:
            wanted = request.handle.identity
            free = [name for name in free if _identity(name) == wanted]
        if not free:
            raise exception.DeviceNotFound(
                wanted=f'request {request.uuid}', reason='no free slot'
            )
        return free[0]

    def _without(self, taken):
        return [
            name for name in self.config.slots if _identity(name) not in taken
        ]


def _identity(slot):
    return objects.TestHandle(name=slot).identity

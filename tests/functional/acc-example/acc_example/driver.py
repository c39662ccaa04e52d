# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""A driver for slots. A file exists for each slot that is in use."""

import os

from oslo_config import cfg

from os_acc import driver
from os_acc import exception
from os_acc import objects

DEVICE = 'example'


class ExampleDriver(driver.DriverBase):
    CONFIG_OPTS = (
        cfg.ListOpt('slots', default=['slot0'], help='Names of the slots.'),
        cfg.StrOpt('folder', help='Where a slot in use is a file.'),
    )
    handle_types = ('TestHandle',)

    def can_handle(self, request):
        return request.resource_class == 'CUSTOM_EXAMPLE'

    def get_devices(self):
        return [
            objects.Device(
                address=DEVICE,
                driver=self.name,
                resource_class='CUSTOM_EXAMPLE',
                handles_total=len(self.config.slots),
                handles_free=len(self._free()),
            )
        ]

    def prepareVAN(self, van, request, instance_info):
        if van.handle is None:
            with self.lock(DEVICE):
                free = self._free()
                if not free:
                    raise exception.DeviceNotFound(
                        wanted=f'request {request.uuid}', reason='no free slot'
                    )
                van.handle = objects.TestHandle(name=free[0])
                van.device = DEVICE
                van.driver_data = {'file': self._file(free[0])}
                van.save()
        with open(van.driver_data['file'], 'w', encoding='utf-8') as file:
            file.write(van.uuid)

    def unprepareVAN(self, van, instance_info):
        path = van.driver_data.get('file')
        if path is not None and os.path.exists(path):
            os.unlink(path)

    def _free(self):
        taken = {van.handle.name for van in self.vans_on(DEVICE) if van.handle}
        return [slot for slot in self.config.slots if slot not in taken]

    def _file(self, slot):
        return os.path.join(self.config.folder, slot)

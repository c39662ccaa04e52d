# SPDX-License-Identifier: Apache-2.0

"""A small driver that keeps its contract, and hardware of files for it.

Each queue of the card has two files: ``enable``, and ``opened``, which a guest
sets. The directory ``numbers`` has the number of the queue's device file,
which is another one after each boot.
"""

from __future__ import annotations

import pathlib
import shutil
import uuid

import pytest

from os_acc import driver as driver_base
from os_acc import exception
from os_acc import objects
from os_acc import testing

CARD = 'card0'
RESOURCE_CLASS = 'CUSTOM_CARD_QUEUE'
TRAITS = ['CUSTOM_CARD_FAST']


class CardDriver(driver_base.DriverBase):
    """Gives out the queues of a card."""

    handle_types = ('TestHandle',)
    path: pathlib.Path

    def can_handle(self, request):
        if request.handle is not None:
            return self.has(request.handle)
        return request.resource_class is not None and self.serves_any(request)

    def serves_any(self, request):
        """Whether a queue of the card is what a request asks for."""
        return request.resource_class in (None, RESOURCE_CLASS) and set(
            request.traits
        ) <= set(TRAITS)

    def has(self, handle):
        return handle.obj_name() in self.handle_types and (
            handle.name in self.queues()
        )

    def get_devices(self):
        if not self.path.is_dir():
            return []
        return [
            objects.Device(
                address=CARD,
                driver=self.name,
                resource_class=RESOURCE_CLASS,
                traits=TRAITS,
                handles_total=len(self.queues()),
                handles_free=len(self.free()),
            )
        ]

    def prepareVAN(self, van, request, instance_info):
        if van.handle is None:
            self.choose(van, request)
        queue = self.queue(van)
        if not queue.is_dir():
            raise exception.DeviceNotFound(
                wanted=van.handle.name, reason='the card has no such queue'
            )
        if 'was' not in van.driver_data:
            van.driver_data['was'] = (queue / 'enable').read_text()
            van.save()
        (queue / 'enable').write_text(van.uuid)

    def is_intact(self, van):
        queue = self.queue(van)
        return queue.is_dir() and (queue / 'enable').read_text() == van.uuid

    def unprepareVAN(self, van, instance_info):
        if van.handle is None:
            return
        with self.lock(CARD):
            if not self.is_anothers(van):
                self.give_back(van)

    def give_back(self, van):
        queue = self.queue(van)
        if 'was' not in van.driver_data or not queue.is_dir():
            return
        if (queue / 'opened').read_text() == 'yes':
            raise exception.DeviceBusy(device=CARD, holder='a guest')
        (queue / 'enable').write_text(van.driver_data['was'])

    def choose(self, van, request):
        if request.handle is None:
            if not self.serves_any(request):
                raise self.none()
        elif not self.has(request.handle):
            raise self.none()
        with self.lock(CARD):
            free = self.free()
            if request.handle is not None:
                free = [request.handle.name]
            if not free:
                raise self.none()
            van.handle = self.handle(free[0])
            van.device = CARD
            van.save()

    def handle(self, name):
        return objects.TestHandle(name=name)

    @staticmethod
    def none():
        return exception.DeviceNotFound(wanted='queue', reason='none is free')

    def queues(self):
        if not self.path.is_dir():
            return []
        return sorted(each.name for each in self.path.iterdir())

    def free(self):
        taken = {van.handle.name for van in self.vans_on(CARD)}
        return [name for name in self.queues() if name not in taken]

    def queue(self, van):
        return self.path / van.handle.name


class FileDriver(CardDriver):
    """Gives out the device files of the queues."""

    handle_types = ('DeviceFileHandle',)

    def handle(self, name):
        text = (self.path.parent / 'numbers' / name).read_text()
        major, minor = text.split(':')
        file = objects.DeviceFile(
            path=f'/dev/{name}', type='c', major=int(major), minor=int(minor)
        )
        return objects.DeviceFileHandle(name=name, files=[file])

    def prepareVAN(self, van, request, instance_info):
        if van.handle is not None:
            van.handle = self.handle(van.handle.name)
            van.save()
        super().prepareVAN(van, request, instance_info)


class Hardware(testing.DriverContract):
    """The card. A subclass names the driver."""

    driver_class = CardDriver
    count = 1

    @pytest.fixture(autouse=True)
    def card(self, tmp_path):
        self.plug_in(tmp_path)

    def plug_in(self, directory):
        self.path, self.boots = directory / 'card', 0
        (directory / 'numbers').mkdir()
        for name in ('q0', 'q1'):
            (self.path / name).mkdir(parents=True)
        self.reboot()

    def make_driver(self):
        made = self.driver_class.load('card')
        made.path = self.path
        return made

    def requests(self):
        return [
            objects.AcceleratorRequest(
                uuid=str(uuid.uuid4()),
                resource_class=RESOURCE_CLASS,
                traits=TRAITS,
            )
            for _ in range(self.count)
        ]

    def look(self):
        return {
            str(file.relative_to(self.path)): file.read_text()
            for file in sorted(self.path.glob('*/*'))
        }

    def device_number(self, path):
        name = path.removeprefix('/dev/')
        return f'c {(self.path.parent / "numbers" / name).read_text()}'

    def reboot(self):
        self.boots += 1
        for queue in self.path.iterdir():
            number = self.path.parent / 'numbers' / queue.name
            number.write_text(f'240:{10 * self.boots + int(queue.name[1:])}')
            (queue / 'enable').write_text('no')
            (queue / 'opened').write_text('no')

    def hold(self, van):
        opened = self.path / van.handle.name / 'opened'
        opened.write_text('yes')
        return lambda: opened.write_text('no')

    def remove(self, van):
        queue = self.path / van.handle.name
        shutil.rmtree(queue)

        def put_back():
            queue.mkdir()
            (queue / 'enable').write_text('no')
            (queue / 'opened').write_text('no')

        return put_back


def run_check(driver, check, directory, patch, count=1, seconds=60.0):
    """Run a check of the kit on a driver of the card.

    :param count: of the requests
    :param seconds: how long a call of the driver may take
    """
    contract = Hardware()
    contract.driver_class, contract.count = driver, count
    contract.call_seconds = seconds
    contract.plug_in(directory)
    service = contract.start(directory, patch)
    try:
        getattr(contract, f'test_{check}')(service)
    finally:
        service.end()

# SPDX-License-Identifier: Apache-2.0

"""Checks of a driver: plug and unplug, requests, discovery."""

from __future__ import annotations

import functools
import itertools
from typing import Any
import warnings

import os_resource_classes
import os_traits

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc.placement import inventory
from os_acc.testing import contract_base
from os_acc.testing import driver_hooks
from os_acc.testing import rules
from os_acc.testing import service as service_module

Service = contract_base.Service

#: A resource class that no device has.
NO_CLASS = 'CUSTOM_OS_ACC_TESTING_NO_SUCH_DEVICE'
#: A trait that no device has.
NO_TRAIT = 'CUSTOM_OS_ACC_TESTING_NO_SUCH_TRAIT'

#: What is said if look() does not show what plug() does.
UNSEEN = (
    'look() returns the same before and after plug(). The contract then '
    'cannot see whether the driver undoes its changes. Let look() read what '
    'the driver changes, unless the driver changes nothing.'
)


class Basics(driver_hooks.DriverHooks):
    """What a driver does if nothing goes wrong."""

    def test_each_request_is_plugged_and_unplugged(
        self, service: Service
    ) -> None:
        before = self.look()
        seen = False
        for request in self.requests():
            instance, van = self.plugged(request, rules.SERVE)
            self._check_handle(service, van)
            seen = seen or self.look() != before
            self.unplug(instance, rules.UNDO)
            self.same(before, rules.UNDO, f'after unplug of {name(van)}')
        if not seen:
            warnings.warn(UNSEEN, stacklevel=1)

    def test_all_requests_are_plugged_together(self, service: Service) -> None:
        before = self.look()
        instance = service_module.instance()
        vans = self.plug(instance, self.requests(), rules.SERVE)
        for van in vans:
            self._check_handle(service, van)
        self.unplug(instance, rules.UNDO)
        self.same(before, rules.UNDO, 'after unplug of all')

    def test_a_request_may_name_the_driver(self, service: Service) -> None:
        for request in self.requests():
            request.driver = service.driver.name
            instance, _ = self.plugged(request, rules.SERVE)
            self.unplug(instance, rules.UNDO)

    def test_can_handle_claims_the_requests(self, service: Service) -> None:
        before = self.look()
        for request in self.requests():
            if request.driver is not None:
                continue
            ask = functools.partial(service.driver.can_handle, request)
            if contract_base.answered(ask, rules.CLAIM) is not True:
                rules.CLAIM.broken(f'it did not claim {asks(request)}')
            self.same(before, rules.CLAIM_LOOKS, 'after can_handle()')

    def test_plug_again_changes_nothing(self, service: Service) -> None:
        """The same VANs are given back, and their devices are intact."""
        instance, requests = service_module.instance(), self.requests()
        first = self.plug(instance, requests, rules.SERVE)
        before = self.look()
        for van in first:
            ask = functools.partial(service.driver.is_intact, van)
            if contract_base.answered(ask, rules.INTACT) is not True:
                rules.INTACT.broken(
                    f'right after plug, it is not True for {name(van)}'
                )
        self.same(before, rules.INTACT_LOOKS, 'after is_intact()')
        second = self.plug(instance, requests, rules.INTACT)
        self.same(before, rules.INTACT, 'after the second plug()')
        for old, new in zip(first, second, strict=True):
            check_same_handle(old, new)
        self.unplug(instance, rules.UNDO)

    def test_a_wrong_resource_class_is_refused(self, service: Service) -> None:
        for request in self.requests():
            self._check_refused(
                service_module.again(
                    request,
                    driver=service.driver.name,
                    handle=None,
                    resource_class=NO_CLASS,
                )
            )

    def test_a_foreign_trait_is_refused(self, service: Service) -> None:
        """Each trait of the request has to be served, or none is."""
        (request, *_) = self.requests()
        self._check_refused(
            service_module.again(
                request,
                driver=service.driver.name,
                handle=None,
                traits=[*request.traits, NO_TRAIT],
            )
        )

    def test_a_wrong_handle_is_refused(self, service: Service) -> None:
        (request, *_) = self.requests()
        for handle in self.foreign_handles():
            self._check_refused(
                service_module.again(
                    request, driver=service.driver.name, handle=handle
                )
            )

    def test_devices_are_described(self, service: Service) -> None:
        before = self.look()
        found = self._devices(service)
        self.same(before, rules.DEVICES_LOOK, 'after get_devices()')
        instance = service_module.instance()
        vans = self.plug(instance, self.requests(), rules.SERVE)
        with_vans = self.look()
        used = self._devices(service)
        self.same(with_vans, rules.DEVICES_LOOK, 'after get_devices()')
        self._check_used(found, used, vans)
        self.unplug(instance, rules.UNDO)
        again = self._devices(service)
        for old, new in zip(found, again, strict=True):
            if free_of(old) != free_of(new):
                rules.DEVICES.broken(
                    f'{old.address} has {old.handles_free} free handles '
                    f'before plug and {new.handles_free} after unplug'
                )

    def _check_handle(self, service: Service, van: objects.VAN) -> None:
        kind = type(van.handle).__name__
        if kind not in service.driver.handle_types:
            rules.HANDLE_TYPES.broken(
                f'it made a {kind}, and handle_types is '
                f'{service.driver.handle_types!r}'
            )
        self.check_numbers(van)

    def _check_refused(self, request: objects.AcceleratorRequest) -> None:
        before = self.look()
        instance = service_module.instance()
        cause: BaseException | None = None
        try:
            (van,) = os_acc.plug(instance, [request])
        except exception.PlugException as err:
            self.check_deadlines()
            cause = step_error(err)
        except exception.ExceptionBase as err:
            cause = err
        else:
            os_acc.unplug(instance)
            rules.REFUSE.broken(f'it gave {name(van)} for {asks(request)}')
        if not isinstance(cause, exception.ExceptionBase):
            rules.REFUSE.broken(
                f'for {asks(request)} it raised '
                f'{exception.describe(cause) if cause else None}'
            )
        self.same(before, rules.REFUSE_LOOKS, f'after {asks(request)}')
        if os_acc.get_vans(instance):
            rules.UNDO_NOTHING.broken(
                'the VAN of the refused request could not be released'
            )

    @staticmethod
    def _devices(service: Service) -> list[objects.Device]:
        """Ask the driver for its devices, and check each.

        :returns: the devices in the order of their addresses
        """
        try:
            found: Any = service.driver.get_devices()
        except rules.Broken:
            raise
        except Exception as err:
            rules.DEVICES.broken(f'it raised {exception.describe(err)}')
        if not isinstance(found, list):
            rules.DEVICES.broken(f'it returned a {type(found).__name__}')
        for device in found:
            for text in device_faults(device, service.driver.name):
                rules.DEVICES.broken(text)
        addresses = [device.address for device in found]
        for address, group in itertools.groupby(sorted(addresses)):
            if len(list(group)) > 1:
                rules.DEVICES.broken(f'{address} is listed twice')
        return sorted(found, key=lambda device: str(device.address))

    @staticmethod
    def _check_used(
        before: list[objects.Device],
        after: list[objects.Device],
        vans: list[objects.VAN],
    ) -> None:
        """Check what has changed in the list since VANs were plugged."""
        free = {device.address: device.handles_free for device in before}
        listed = {device.address for device in after}
        if not before:
            return  # a driver whose devices are found by another service
        for van in vans:
            if van.device is not None and van.device not in listed:
                rules.DEVICES.broken(
                    f'{name(van)} is on {van.device}, which is not listed'
                )
        for device in after:
            here = [van for van in vans if van.device == device.address]
            had = free.get(device.address, 0)
            if here and device.handles_free >= had:
                rules.DEVICES.broken(
                    f'{device.address} has {len(here)} VANs, and '
                    f'handles_free is {device.handles_free} as before'
                )
            for info in device.handles:
                for van in here:
                    check_holder(info, van)


def check_holder(info: objects.DeviceHandleInfo, van: objects.VAN) -> None:
    """Check what a list says of a handle that a VAN has."""
    assert van.handle is not None
    if info.handle.identity != van.handle.identity:
        return
    if info.state == 'free' or info.holder not in (None, van.uuid):
        rules.DEVICES.broken(
            f'the handle of {name(van)} is listed as {info.state!r}, with '
            f'holder {info.holder}'
        )


def device_faults(device: Any, driver: str) -> list[str]:
    """Return what is wrong with an object of get_devices()."""
    if not isinstance(device, objects.Device):
        return [f'it listed a {type(device).__name__}']
    found = []
    for field in ('address', 'driver', 'handles_total', 'handles_free'):
        try:
            getattr(device, field)
        except Exception:
            return [f'a device has no {field}']
    here = device.address
    if device.driver != driver:
        found.append(
            f'{here}: its driver is {device.driver!r}, not {driver!r}'
        )
    if not 0 <= device.handles_free <= device.handles_total:
        found.append(
            f'{here}: {device.handles_free} of {device.handles_total} '
            'handles are free'
        )
    if device.handles or device.mdev_types:
        numbers = (device.handles_total, device.handles_free)
        if numbers != device.counted():
            found.append(
                f'{here}: handles_total and handles_free are {numbers}, and '
                f'its lists say {device.counted()}'
            )
    found += [f'{here}: {text}' for text in name_faults(device)]
    return found


def name_faults(device: objects.Device) -> list[str]:
    """Return the names of a device that Placement would refuse."""
    found = []
    known = os_resource_classes.STANDARDS
    is_custom = inventory.CUSTOM.fullmatch
    wanted = device.resource_class
    if wanted and wanted not in known and not is_custom(wanted):
        found.append(f'Placement has no resource class {wanted!r}')
    found += [
        f'Placement has no trait {trait!r}'
        for trait in device.traits
        if trait not in os_traits.get_traits() and not is_custom(trait)
    ]
    for field in ('vendor_id', 'product_id'):
        text = getattr(device, field)
        if text and (len(text) != 4 or set(text) - set('0123456789abcdef')):
            found.append(f'{field} is {text!r}, not 4 hex digits')
    return found


def free_of(device: objects.Device) -> tuple[str, int]:
    return device.address, device.handles_free


def check_same_handle(old: objects.VAN, new: objects.VAN) -> None:
    """Check that a VAN has kept its handle."""
    identities = [each.handle and each.handle.identity for each in (old, new)]
    if identities[0] != identities[1]:
        rules.SAME_HANDLE.broken(f'{identities[0]} became {identities[1]}')


def step_error(err: BaseException) -> BaseException | None:
    """Return what the driver or plugin itself has raised."""
    cause = err.__cause__
    while isinstance(cause, exception.StepFailed):
        cause = cause.__cause__
    return cause


def name(van: objects.VAN) -> str:
    """Name a VAN by its handle."""
    return van.handle.identity if van.handle is not None else van.uuid


def asks(request: objects.AcceleratorRequest) -> str:
    """Say what a request asks for."""
    wanted = [f'resource class {request.resource_class}']
    if request.handle is not None:
        wanted = [f'handle {request.handle.identity}']
    if request.traits:
        wanted.append(f'traits {", ".join(request.traits)}')
    if request.driver is not None:
        wanted.append(f'driver={request.driver!r}')
    return f'a request for {", ".join(wanted)}'

# SPDX-License-Identifier: Apache-2.0

"""The functions that devices and regions shall hold, ahead of time.

os_acc.program_device() does it. What a device holds stays when the document
does not name it any more.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterator
import functools

from os_acc import exception
from os_acc import host as host_module
from os_acc import objects
from os_acc import progress
from os_acc.desired import documents
from os_acc.desired import regions
from os_acc.desired import steps
from os_acc.journal import programs
from os_acc.operations import device_programming
from os_acc.operations import discovery
from os_acc.programming import bitstreams
from os_acc.programming import place
from os_acc.programming import records
from os_acc.texts import forms

PART = 'functions'


def find(
    host: host_module.Host,
    document: documents.Document,
    callback: progress.Callback | None = None,
) -> Iterator[steps.Step]:
    """A step for each function of the document."""
    if not document.functions:
        return
    found, missing = regions.devices_of(host)
    devices = {each.address: each for each in found}
    named: dict[tuple[str, str], documents.Function] = {}
    for wanted in document.functions:
        device = devices.get(wanted.device)
        key = place.of(device, wanted.region) if device else (wanted.label, '')
        first = named.setdefault(key, wanted)
        if forms.same_function(first.function, wanted.function):
            fault = _fault(device, wanted.region, missing is None)
            yield _step(host, wanted, device, fault, callback)
        else:
            yield _contradiction(wanted, device, first)


def _step(
    host: host_module.Host,
    wanted: documents.Function,
    device: objects.Device | None,
    fault: str | None,
    callback: progress.Callback | None,
) -> steps.Step:
    """The step for a function."""
    now = _inside(device, wanted.region)
    before = now or 'none, or unknown'
    # Of a device that is not there, only its own address is known.
    addresses = {wanted.device} if device is None else place.addresses(device)
    try:
        if forms.same_function(now, wanted.function) and not _is_older(
            host, wanted, addresses
        ):
            return steps.Step(PART, wanted.label, before, before)
    except Exception as err:
        # Its bitstream cannot be read. The other functions do not need it.
        after = wanted.function
        return steps.hopeless(PART, wanted.label, before, after, err)
    return steps.Step(
        PART,
        wanted.label,
        before,
        wanted.function,
        functools.partial(
            device_programming.program_device,
            host,
            wanted.device,
            wanted.bitstream,
            wanted.function,
            wanted.region or None,
            callback,
        ),
        functools.partial(_users, host, wanted, addresses),
        fault,
        functools.partial(_programs, wanted),
    )


def _contradiction(
    wanted: documents.Function,
    device: objects.Device | None,
    first: documents.Function,
) -> steps.Step:
    """The step for a function that would replace one of the document.

    :param first: the entry for the same region, through another device
    """
    before = _inside(device, wanted.region) or 'none, or unknown'
    error = exception.InvalidRequest(
        subject=wanted.label,
        field='function',
        value=wanted.function,
        expected=f'{first.function}, because the entry of {first.label} is '
        'for the same region of the same chip',
    )
    return steps.hopeless(PART, wanted.label, before, wanted.function, error)


def export(host: host_module.Host) -> list[dict[str, str]]:
    """The functions that devices and regions hold now, as a document does.

    :raises DiscoveryFailed: if not all devices are known
    """
    return [
        {
            'device': device.address,
            **({'region': region} if region else {}),
            'function': function,
        }
        for device in discovery.devices(host)
        for region, function in device.functions.items()
        if function is not None
    ]


def _fault(
    device: objects.Device | None, region: str, complete: bool
) -> str | None:
    """Why a region cannot be programmed: it is not there.

    :param complete: whether all devices are known
    """
    if device is None:
        return 'no driver reports this device' if complete else None
    if not device.functions or region in device.functions:
        return None
    known = ', '.join(map(repr, sorted(device.functions)))
    return f'region is {region or None!r}, expected one of {known}'


def _inside(device: objects.Device | None, region: str) -> str | None:
    return device.functions.get(region) if device is not None else None


def _is_older(
    host: host_module.Host,
    wanted: documents.Function,
    addresses: Collection[str],
) -> bool:
    """Whether it was programmed from another bitstream than a given file."""
    with bitstreams.local(wanted.bitstream) as file:
        return file is not None and any(
            each.region == wanted.region
            and each.state == programs.PROGRAMMED
            and each.digest not in (None, file.sha256)
            for each in host.journal.programs()
            if each.device in addresses or each.address in addresses
        )


def _programs(wanted: documents.Function) -> bool:
    """Whether a function is programmed: the bitstream is read first.

    :raises InvalidRequest, BitstreamError: if a file of this host cannot be
    """
    with bitstreams.local(wanted.bitstream):
        return True


def _users(
    host: host_module.Host,
    wanted: documents.Function,
    addresses: Collection[str],
) -> list[str]:
    """Say which VANs would be in the way."""
    return [
        f'instance {van.instance_uuid} has {van.handle.identity} '
        f'(VAN {van.uuid})'
        for address in sorted(addresses)
        for van in host.journal.vans_on(address)
        if van.handle is not None
        and records.overlaps(
            wanted.region, van.driver_data.get(programs.REGION)
        )
    ]

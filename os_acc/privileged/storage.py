# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Functions that store data: emptied before anybody else sees the data.

A record says whether a function was emptied since a guest had it. Without a
record this is unknown: the host was rebooted, or the record was lost. Callers
hold the operation lock of the function.
"""

from __future__ import annotations

import logging

from oslo_config import cfg

from os_acc import exception
from os_acc.devices import pci
from os_acc.devices import storage
from os_acc.privileged import record
from os_acc.privileged.nvme import cleaning as nvme
from os_acc.privileged.nvme import function as nvme_function

LOG = logging.getLogger(__name__)

# What is being emptied in this process: the progress from 0 to 1 (None:
# unknown) and what is done, by address.
_progress: dict[str, tuple[float | None, str]] = {}


def hand_out(function: pci.Function) -> None:
    """Check that a function can be emptied, before a guest gets it.

    Does nothing for a function that stores no data.

    :param function: it is bound to VFIO
    :raises DeviceError, Timeout: if it cannot be emptied, or does not work
    """
    if not storage.is_storage(function):
        return
    if not storage.has_command():
        try:
            nvme.check(function.address, function.is_vf)
        except BaseException:
            # No guest has had it by os-acc, so there is nothing to empty.
            if _known(function) is None:
                mark_empty(function)
            raise
    record.storage.write(
        function.address, record.Storage(function.ids, empty=False)
    )


def empty(function: pci.Function) -> None:
    """Erase what a guest has written to a function.

    If there is no built-in way, cleaning_command has to do it.

    :param function: it is bound to VFIO, and nobody has it open
    :raises CleaningFailed: if the function is not empty afterwards, or there
        is no way to empty it
    :raises Timeout: if that took longer than storage_cleaning_timeout
    """
    if not storage.is_storage(function):
        return
    address, device = function.address, f'PCI function {function.address}'
    reason: object = 'os-acc itself can empty only NVMe drives'
    if mates := storage.group_mates(function):
        reason = f'it shares its IOMMU group with {", ".join(mates)}'
    elif storage.is_nvme(function):

        def tell(fraction: float | None, text: str) -> None:
            _progress[address] = fraction, text

        try:
            emptied = nvme.empty(
                address,
                function.is_vf,
                cfg.CONF.os_acc.storage_cleaning_timeout,
                tell,
            )
        except nvme_function.Unsupported as err:
            reason = err.kwargs['reason']
        except exception.DeviceError as err:
            raise exception.CleaningFailed(
                device=device, reason=f'not emptied: {err}'
            ) from err
        else:
            LOG.info('%s was emptied: %s', device, emptied)
            return
        finally:
            _progress.pop(address, None)
    if not storage.has_command():
        raise exception.CleaningFailed(
            device=device,
            reason=f'{reason}; [os_acc] cleaning_command is not set',
        )
    LOG.warning('%s is left to cleaning_command alone: %s', device, reason)


def progress(address: str) -> tuple[float | None, str] | None:
    """How far empty() is with a function; None if it is not at work."""
    return _progress.get(address)


def mark_empty(function: pci.Function) -> None:
    """Record that a function holds nothing of a guest."""
    if storage.is_storage(function):
        record.storage.write(
            function.address, record.Storage(function.ids, empty=True)
        )


def is_empty(function: pci.Function) -> bool:
    """Whether a function stores nothing of a guest, by the record."""
    if not storage.is_storage(function):
        return True
    known = _known(function)
    return known is not None and known.empty


def was_handed_out(function: pci.Function) -> bool:
    """Whether a guest has had it since it was last emptied in this boot."""
    known = _known(function)
    return known is not None and not known.empty


def check_empty(function: pci.Function) -> None:
    """Check that a driver of the host may see what a function stores.

    :raises CleaningFailed: if it may hold data of a guest
    """
    if not is_empty(function):
        raise exception.CleaningFailed(
            device=f'PCI function {function.address}',
            reason='it may hold the data of a guest, so it is not bound to a '
            'driver of the host before it was emptied',
        )


def _known(function: pci.Function) -> record.Storage | None:
    known = record.storage.read(function.address)
    return known if known is not None and known.ids == function.ids else None

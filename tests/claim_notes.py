# SPDX-License-Identifier: Apache-2.0

"""What the privileged half notes of a VAN, and whom it refuses by that."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
import contextlib
import uuid

import claim_vans

from os_acc import exception
from os_acc.claims import allocated
from os_acc.claims import holder
from os_acc.kernel import device_files
from os_acc.kernel import file_place
from os_acc.kernel import mdev
from os_acc.kernel import pci
from os_acc.kinds.idxd import entry as spec_idxd
from os_acc.kinds.idxd import names as idxd_names
from os_acc.kinds.npu import entry as npu_entry
from os_acc.kinds.nvme_of import entry as spec_nvme_of
from os_acc.privileged import function_notes
from os_acc.privileged import notes
from os_acc.privileged.devfile import device_files as given
from os_acc.privileged.idxd import notes as idxd_notes
from os_acc.privileged.npu import devices as npu_notes
from os_acc.privileged.nvme_of import notes as nvme_of_notes
from os_acc.spec import device_spec

NOTED = ('pci', 'mdev', 'file', 'block')


def _holder(number: int) -> holder.Holder:
    made = [str(uuid.UUID(int=number + each)) for each in range(3)]
    return holder.Holder(made[0], f'/journal-{number}', *made[1:])


#: Two VANs of two instances of two journals.
ONE, OTHER = _holder(10), _holder(20)


def refused(option: claim_vans.Option, specs: device_spec.Specs) -> bool:
    """Note that the VAN OTHER has an option, unless it is refused."""
    with holder.acting_for(OTHER):
        try:
            note(option, specs, OTHER)
        except exception.DeviceBusy:
            return True
    return False


@contextlib.contextmanager
def kept(
    option: claim_vans.Option, specs: device_spec.Specs
) -> Iterator[None]:
    """Note that the VAN ONE has an option, for the time of a block."""
    with holder.acting_for(ONE):
        note(option, specs, ONE)
    try:
        yield
    finally:
        delete(notes.files.names())


def delete(names: Iterable[str]) -> None:
    """Delete notes by their names."""
    for name in names:
        notes.files.delete(name)


def note(
    option: claim_vans.Option,
    specs: device_spec.Specs,
    who: holder.Holder,
) -> None:
    """Do what the privileged half does before it gives out a device."""
    kind, _, name = option.handle.partition('/')
    if kind == 'pci':
        function = pci.get(name)
        function_notes.check_function(function)
        if option.kind == 'vgpu':
            function_notes.note_vgpu(function, 558)
        else:
            function_notes.note_function(function, specs.first(function))
    elif kind == 'mdev':
        function_notes.note_mdev(mdev.Mdev(name, option.device, 'type-1'))
    elif kind == 'block':
        _note_namespace(name, who)
    elif option.kind == 'npu':
        function = pci.get(option.device)
        npu_notes.note(function, npu_entry.Npu(), _files_of(option))
    elif option.found is not None:
        accelerator, _, share = name.partition('/')
        notes.note(
            notes.FILE,
            file_place.with_share(accelerator, share),
            accelerator,
            device=option.found.path,
            **given.note_values(option.found),
        )
    else:
        _note_queue(allocated.file_in(option.handle) or '', who)


def _files_of(option: claim_vans.Option) -> list[device_files.DeviceFile]:
    numbers = [
        device_files.parse(each[2:], each[0]) for each in option.numbers
    ]
    return [device_files.DeviceFile('/dev/accel/accel0', e) for e in numbers]


def _note_queue(name: str, who: holder.Holder) -> None:
    address, number = idxd_names.parse(name)
    function = pci.get(address)
    idxd_notes.check_note(function, name, who.van)
    if number in idxd_notes.files_given(function):
        raise exception.DeviceBusy(device=name, reason='by a file')
    idxd_notes.note(function, name, who.van, spec_idxd.Queues())


def _note_namespace(wwn: str, who: holder.Holder) -> None:
    known = nvme_of_notes.read(wwn)
    if known is not None and known.is_of_another:
        raise exception.DeviceBusy(device=wwn, reason='by another')
    notes.check_namespace(wwn)
    target = spec_nvme_of.read(
        'nvme_of',
        {
            'nqn': 'nqn.2024-01.org.example:fast',
            'portals': [['192.0.2.1', 4420, 'tcp']],
            'namespaces': [wwn],
        },
    )
    nvme_of_notes.write(wwn, nvme_of_notes.Note(who.instance, True, target))

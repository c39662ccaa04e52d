# SPDX-License-Identifier: Apache-2.0

"""os-acc device spec, device allow, device deny: what os-acc may touch."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
import contextlib
import os
from typing import Any

import os_acc
from os_acc import exception
from os_acc.availability import companions
from os_acc.availability import functions as availability
from os_acc.availability import nothing_offered
from os_acc.availability import proposals
from os_acc.claims import allocated
from os_acc.claims import holder
from os_acc.cli import base
from os_acc.journal import Journal
from os_acc.journal.file import path_in
from os_acc.kernel import device_files
from os_acc.kernel import file_place
from os_acc.kernel import mdev
from os_acc.kernel import mdev_types
from os_acc.kernel import pci
from os_acc.kinds.devfile import groups as file_groups
from os_acc.kinds.devfile import rules as file_availability
from os_acc.kinds.nvme_of import entry as spec_nvme_of
from os_acc.kinds.nvme_of import refusals as nvme_of_refusals
from os_acc.kinds.nvme_of import rules as nvme_of_availability
from os_acc.privileged import notes
from os_acc.spec import changing
from os_acc.spec import device_spec
from os_acc.spec import entry as spec_entry
from os_acc.spec import parts as spec_parts


class DeviceSpec(base.Command):
    """Propose entries of device_spec for this host's accelerators.

    The output can be pasted into a configuration file. It leaves out devices
    that the host itself uses. The command changes nothing.
    """

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        found = proposals.proposals(device_spec.load(os_acc.CONF))
        self.app.stdout.write('[os_acc]\n')
        for each in found:
            self.app.stdout.write(f'\n{each.text()}')
        if not found:
            self.app.stdout.write(
                '# No accelerator was found that the host does not use.\n'
            )


class _Change(base.Command):
    """The base of the commands that write into device_spec_dir."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            'address',
            metavar='ADDRESS',
            help='the address of a PCI function, the name of another parent '
            'of mediated devices, the path of a device file, or the name of a '
            'namespace of an NVMe-oF target',
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        name = _device(parsed_args.address)
        directory = os_acc.CONF.os_acc.device_spec_dir
        if not directory:
            raise exception.InvalidRequest(
                subject='configuration',
                field='[os_acc] device_spec_dir',
                value=directory,
                expected='a directory',
            )
        # Refuse to build upon files that cannot be read or trusted, and a
        # name that an entry cannot say, before anything is changed.
        device_spec.load(os_acc.CONF)
        changing.check_names({_key(name): name}, name)
        # A path has slashes, and a name of a device has none.
        file = name.removeprefix('/').replace('/', '+')
        self._change(name, changing.path_of(directory, file))

    def _change(self, name: str, path: str) -> None:
        raise NotImplementedError


class DeviceAllow(_Change):
    """Start offering a device. Run it as root.

    It removes the file that device deny has written. If then no other entry of
    device_spec offers the device, it writes a file into device_spec_dir. It
    cannot do that for a namespace of an NVMe-oF target: only an entry with
    nvme_of says where the namespace is. Services need no restart.
    """

    def _change(self, name: str, path: str) -> None:
        if changing.remove(path):
            self.out(f'removed {path}')
        entry = _entry(name)
        if entry is None and _is_namespace(name):
            why = nvme_of_refusals.NOT_NAMED.reason()
            raise exception.DeviceNotFound(
                wanted=f'namespace {name}', reason=f'{why.text}: {why.remedy}'
            )
        if entry is None:
            changing.add(os_acc.CONF, path, *_new_entries(name))
            self.out(f'wrote {path}')
            entry = _entry(name)
        if entry is not None and entry.deny:
            raise exception.DeviceNotFound(
                wanted=name, reason=f'{entry.source} denies it: change that'
            )
        self.out(f'{name} is offered' + self._hint(name, entry))

    @staticmethod
    def _hint(name: str, entry: device_spec.Spec | None) -> str:
        if _is_path(name):
            return _file_hint(name)
        if _is_namespace(name):
            return _namespace_hint(name, entry)
        function = pci.find(name) if pci.is_address(name) else None
        if function is None and name not in mdev_types.parents():
            return ' once this host has it'
        assert entry is not None
        text = f' by {entry.source}'
        if function is None:
            return text
        if not spec_parts.offers_whole(entry, function):
            return text + _parts_hint(function)
        bind = entry.bind or device_spec.BIND_OS_ACC
        return text + _unless(availability.obstacles(function, entry, bind))


class DeviceDeny(_Change):
    """Stop offering a device. Run it as root.

    It writes a file into device_spec_dir that overrides all other entries.
    An instance that has the device keeps it until it is unplugged. Services
    need no restart.

    It also deletes the privileged half's notes on the device for VANs that are
    not in the journal. Notes for VANs in another journal of this host stay,
    unless --lost-journal says that it is lost.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--lost-journal',
            action='store_true',
            help='every other journal of this host is lost: delete the notes '
            'for their VANs, too. A guest of a VAN that you do not know about '
            'could lose the device',
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self._lost = bool(parsed_args.lost_journal)
        super().take_action(parsed_args)

    def _change(self, name: str, path: str) -> None:
        # An entry that denies counts for its address, whatever device is
        # there. The present device is remembered for the doctor.
        ids = spec_entry.ids_of(name)
        was = {'was': ':'.join(ids.values())} if ids else {}
        changing.add(
            os_acc.CONF, path, {_key(name): name, 'deny': True, **was}
        )
        self.out(f'wrote {path}')
        journal = base.look().journal
        holders = allocated.Holders(journal.handles())
        for each in _vans_with(holders, name):
            self.out(
                f'instance {each.called} keeps {each.handle or name} '
                f'until it is unplugged (VAN {each.van_uuid})'
            )
        # The privileged half would give them out again by these notes.
        kept = notes.forget_unused(
            name,
            lambda part: bool(
                _vans_with(holders, part) or _may_be_companion(holders, part)
            ),
            journal.identity() if journal.exists() else '',
            self._is_lost,
        )
        for clause in kept:
            self.out(
                f'{clause}; that journal has the VAN, so it is not lost: '
                'release the VAN with it'
                if self._lost
                else f'{clause}; if that is lost, repeat with --lost-journal'
            )
        self.out(f'{name} is not offered')

    def _is_lost(self, other: holder.Holder | None) -> bool:
        """Whether a journal is really lost, not only said to be."""
        return self._lost and (other is None or not _is_there(other))


def _is_there(other: holder.Holder) -> bool:
    """Whether the journal that a note names still has the VAN."""
    directory = os.path.dirname(other.path)
    if not os.path.isfile(other.path) or other.path != path_in(directory):
        return False
    try:
        with contextlib.closing(
            Journal(directory, 1.0, read_only=True)
        ) as found:
            return found.identity() == other.journal and any(
                each.van_uuid == other.van for each in found.handles()
            )
    except exception.JournalBusy:
        return True  # somebody writes to it
    except exception.JournalError:
        return False


def _is_path(name: str) -> bool:
    return name.startswith('/')


def _key(name: str) -> str:
    """The key of device_spec that names a device."""
    return 'devices' if _is_path(name) else 'address'


def _parts_hint(function: pci.Function) -> str:
    """Say why a device has none of the VFs or other parts of its entry."""
    for each in nothing_offered.find(device_spec.load(os_acc.CONF)):
        card = each.function
        if card is not None and card.address == function.parent:
            return f', but there is nothing to give out now: {each.reason}'
    return ''


def _new_entries(name: str) -> list[dict[str, Any]]:
    """The entries that offer a device from now on."""
    if _is_path(name):
        place = file_groups.place_of(name)
        behind = place.function if place is not None else None
        return [{_key(name): name, **spec_entry.ids_of(behind or '')}]
    return spec_entry.entries(name)


def _file(path: str) -> file_groups.Accelerator | None:
    """The accelerator of a device file, by device_spec."""
    resolved = device_files.resolve(path) or path
    for found in file_groups.read(device_spec.load(os_acc.CONF)):
        if found.path == resolved:
            return found
    return None


def _file_hint(path: str) -> str:
    if (found := _file(path)) is None:
        return ' once this host has it'
    text = f' by {found.spec.source}, as {found.name}'
    return text + _unless(file_availability.obstacles(found))


def _is_namespace(name: str) -> bool:
    return spec_nvme_of.parse_name(name) == name


def _namespace_hint(name: str, entry: device_spec.Spec | None) -> str:
    assert entry is not None
    obstacles = nvme_of_availability.obstacles(name, entry)
    return f' by {entry.source}' + _unless(obstacles)


def _unless(obstacles: Iterable[availability.Obstacle]) -> str:
    """Say why a device is not available now, if it is not."""
    for obstacle in obstacles:
        return f', but it is not available now: {obstacle.text}'
    return ''


def _device(text: str) -> str:
    """Check the name of a device, and give it in its canonical form."""
    if _is_path(text):
        return device_files.check_path(text)
    if (namespace := spec_nvme_of.parse_name(text)) is not None:
        return namespace
    if (address := pci.canonical(text)) is not None:
        return address
    if ':' in text:
        raise exception.InvalidRequest(
            subject='device',
            field='address',
            value=text,
            expected='a PCI address, dddd:bb:ss.f',
        )
    return mdev.check_name(text, 'address')


def _entry(name: str) -> device_spec.Spec | None:
    """The entry that counts for a device, which may deny it."""
    specs = device_spec.load(os_acc.CONF)
    if _is_path(name):
        found = _file(name)
        if found is None or found.denied_by is None:
            return found.spec if found is not None else None
        return device_spec.Spec(deny=True, source=found.denied_by)
    if pci.is_address(name):
        function = pci.find(name)
        return None if function is None else specs.first(function)
    if _is_namespace(name):
        return specs.first_namespace(name)
    return specs.first_parent(name)


def _vans_with(
    holders: allocated.Holders, name: str
) -> list[allocated.Holder]:
    """The VANs that have a device or a part of it.

    :param name: an address, a UUID, a path, or the name of a note of held
    """
    if _is_path(name):
        file = _file(name)
        return list(holders.of_file(file.name)) if file is not None else []
    if files := holders.of_file(file_place.without_share(name)):
        return list(files)
    found = list(holders.on(name))
    whole = (
        holders.of_function(name)
        or holders.of_mdev(name)
        or holders.of_handle(f'file/{name}')
    )
    return found if whole is None or whole in found else [whole, *found]


def _may_be_companion(holders: allocated.Holders, name: str) -> bool:
    """Whether it may be the companion of a function that a VAN has."""
    function = pci.find(name) if pci.is_address(name) else None
    return (
        function is not None
        and companions.is_one(function)
        and any(
            holders.of_function(f'{name[:-1]}{number}') for number in range(8)
        )
    )

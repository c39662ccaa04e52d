# SPDX-License-Identifier: Apache-2.0

"""The driver npu: gives a VAN a whole accelerator of the class accel."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
import dataclasses
import itertools
import json
import logging
from typing import Any

from oslo_config import cfg

from os_acc import finding
from os_acc import log
from os_acc import objects
from os_acc.claims import allocated
from os_acc.deadlines import waiting
from os_acc.drivers import allocation
from os_acc.drivers import base
from os_acc.drivers import choosing
from os_acc.drivers import given_files
from os_acc.drivers import inventory
from os_acc.drivers import pci_functions
from os_acc.kernel import device_files
from os_acc.kernel import pci
from os_acc.kinds.npu import entry as npu_entry
from os_acc.kinds.npu import facts as npu_facts
from os_acc.kinds.npu import names as npu_names
from os_acc.kinds.npu import rules as npu_rules
from os_acc.spec import device_spec

LOG = logging.getLogger(__name__)
CONF = cfg.CONF

# The key of VAN.driver_data with the settings by which the VAN has got it.
_SETTINGS = 'settings'


class NPUDriver(base.OneHandleDriver):
    cleans = True
    handle_types = ('DeviceFileHandle',)
    handle_class = objects.DeviceFileHandle

    def can_handle(self, request: objects.AcceleratorRequest) -> bool:
        return choosing.is_for_kind(request, npu_entry.KEY, self.specs())

    def get_devices(self) -> list[objects.Device]:
        holders, specs = allocation.holders(self), self.specs()
        unreadable: dict[str, Exception] = {}
        named = _named(specs, unreadable)
        return choosing.report(
            self,
            sorted({*named, *unreadable}),
            lambda address: _device(self.name, address, specs, holders),
        )

    def show_device(self, address: str) -> dict[str, Any] | None:
        """Show an NPU by the address of its PCI function."""
        if not pci.is_address(address):
            return None
        return _shown(address, self.specs(), allocation.holders(self))

    def diagnose(self) -> Iterator[finding.Finding]:
        return _findings(self.specs(), allocation.holders(self))

    def choose(
        self, van: objects.VAN, request: objects.AcceleratorRequest
    ) -> None:
        """Take the first NPU that is free and as requested."""
        specs = self.specs()

        def serving(address: str) -> Iterator[str]:
            there = pci_functions.offered(address, specs, npu_entry.KEY)
            if (
                there is not None
                and npu_facts.files_of(address)
                and _kind_of(*there).serves(request)
            ):
                yield address

        unreadable: dict[str, Exception] = {}
        choosing.choose(
            van,
            request,
            _named(specs, unreadable),
            serving,
            lambda address: self._take(van, address),
            lambda: self.undo(van),
            'device_spec offers no such NPU on this host',
            itertools.chain(
                unreadable.values(),
                pci_functions.refused(self, specs, request),
            ),
        )

    def take(self, van: objects.VAN, handle: objects.DeviceFileHandle) -> None:
        self._take(van, npu_names.parse(handle.name))

    def _take(self, van: objects.VAN, address: str) -> None:
        """Take an NPU that the VAN does not have yet."""
        with self.lock(address):
            function = pci.get(address)
            spec = self.specs().find(function)
            with allocation.shared_locks(self, function, spec):
                settings = npu_rules.settings_of(spec)
                allocation.check(
                    npu_rules.obstacles(
                        function, settings, allocation.holders(self)
                    )
                )
                assert settings is not None
                van.driver_data = {
                    **van.driver_data,
                    _SETTINGS: json.dumps(dataclasses.asdict(settings)),
                }
                self._give(van, address)

    def take_again(
        self, van: objects.VAN, handle: objects.DeviceFileHandle
    ) -> None:
        """Give a VAN the NPU that it has had: after a reboot, or if lost.

        Its files may have other numbers than before.
        """
        address = npu_names.parse(handle.name)
        waiting.until(
            lambda: npu_facts.nodes_of(address),
            CONF.os_acc.device_timeout,
            f'the device file of the NPU {address} to come back',
            npu_facts.CLASS,
        )
        with self.lock(address):
            function = pci.get(address)
            # Who has it was checked when the VAN got it, and is in the notes.
            allocation.check(
                npu_rules.obstacles(
                    function, _settings(van), held=_SETTINGS in van.driver_data
                )
            )
            self._give(van, address)

    def _give(self, van: objects.VAN, address: str) -> None:
        """Save which files a VAN gets; let the privileged half give them."""
        files = npu_facts.shown(npu_facts.files_of(address))
        van.handle = _handle(address, files)
        van.device = address
        van.live_migratable = False
        van.save()
        from os_acc.privileged.npu import devices as privileged

        privileged.take(
            address, given_files.arguments(files), CONF.os_acc.device_timeout
        )
        log.about(LOG, van.instance_uuid, van.uuid).info(
            'NPU %s is assigned as %s',
            address,
            ', '.join(each.path for each in files),
        )

    def is_intact(self, van: objects.VAN) -> bool:
        if not isinstance(van.handle, objects.DeviceFileHandle):
            return True
        nodes = npu_facts.nodes_of(npu_names.parse(van.handle.name))
        if [each.file for each in nodes] != given_files.own_files(van):
            return False
        wanted = _settings(van) or npu_entry.Npu()
        return bool(nodes) and all(
            given_files.belongs(each, wanted.owner, wanted.group, wanted.mode)
            for each in nodes
        )

    def undo(self, van: objects.VAN) -> None:
        """Let the privileged half reset the NPU and give it back."""
        if not isinstance(van.handle, objects.DeviceFileHandle):
            return
        if _SETTINGS not in van.driver_data:
            return  # the handle is only requested
        from os_acc.privileged.npu import devices as privileged

        address = npu_names.parse(van.handle.name)
        left = privileged.give_back(
            address,
            van.instance_uuid,
            CONF.os_acc.release_timeout,
            CONF.os_acc.device_timeout,
        )
        given_files.warn(van, left)
        log.about(LOG, van.instance_uuid, van.uuid).info(
            'NPU %s is returned to the host', address
        )


def _settings(van: objects.VAN) -> npu_entry.Npu | None:
    """The settings by which a VAN has got its NPU."""
    return npu_entry.of_note(json.loads(van.driver_data.get(_SETTINGS, '{}')))


def _kind_of(
    function: pci.Function, spec: device_spec.Spec
) -> inventory.Names:
    """Name an NPU as Placement does."""
    behind = pci_functions.kind_of(function, spec)
    default = npu_entry.CLASSES[0]
    return inventory.Names(spec.resource_class or default, behind.traits)


def _named(
    specs: device_spec.Specs, unreadable: dict[str, Exception]
) -> list[str]:
    """The addresses of the functions that entries with npu name.

    :param unreadable: gets the error of each that cannot be read
    """
    own = tuple(filter(npu_rules.settings_of, specs.entries))
    if not own:
        return []
    found, errors = [], dict[str, Exception]()
    for function in pci_functions.scanned(specs, errors):
        with choosing.noting(function.address, errors):
            spec = specs.find(function)
            if npu_rules.settings_of(spec) and not function.is_bridge:
                found.append(function.address)
    names = device_spec.Specs(own).may_name
    unreadable |= {each: errors[each] for each in errors if names(each)}
    return found


def _device(
    driver: str,
    address: str,
    specs: device_spec.Specs,
    holders: allocated.Holders,
) -> objects.Device | None:
    """Report an NPU.

    :returns: None if it is not offered, or no VAN has it and it has no file
        below /dev/accel, which nothing_offered says
    """
    there = pci_functions.offered(address, specs, npu_entry.KEY)
    if there is None:
        return None
    function, spec = there
    made = _handle(address, npu_facts.shown(npu_facts.files_of(address)))
    holder = holders.of_handle(made.identity)
    if holder is None and not made.files:
        return None
    settings = npu_rules.settings_of(spec)
    return inventory.device(
        address,
        driver,
        [
            inventory.handle(
                made,
                npu_rules.obstacles(function, settings, holders),
                holder,
            )
        ],
        function=function,
        names=_kind_of(function, spec),
    )


def _handle(
    address: str, files: Iterable[device_files.DeviceFile]
) -> objects.DeviceFileHandle:
    """The attach handle of an NPU.

    :param files: with paths in the host's /dev
    """
    return objects.DeviceFileHandle(
        name=npu_names.name_of(address), files=given_files.described(files)
    )


def _shown(
    address: str, specs: device_spec.Specs, holders: allocated.Holders
) -> dict[str, Any] | None:
    """What os-acc device show prints about an NPU."""
    function = pci.find(address)
    if function is None:
        return None
    files = npu_facts.shown(npu_facts.files_of(address))
    settings = npu_rules.settings_of(specs.find(function))
    if not files and settings is None:
        return None
    refused = next(npu_rules.obstacles(function, settings, holders), None)
    holder = holders.of_handle(_handle(address, files).identity)
    given = f'no: VAN {holder.van_uuid} has it' if holder else 'yes'
    if holder is None and refused is not None:
        given = f'no: {refused.text}'
    return {
        'address': address,
        'can be given out as an NPU': given,
        'kernel driver': function.driver,
        'device files': [
            f'{each.path} ({each.number.kind} {each.number.major}:'
            f'{each.number.minor})'
            for each in files
        ],
    }


def _findings(
    specs: device_spec.Specs, holders: allocated.Holders
) -> Iterator[finding.Finding]:
    """Report each NPU that is offered.

    doctor.entries says why an entry offers none.
    """

    def look(address: str) -> Iterator[finding.Finding]:
        there = pci_functions.offered(address, specs, npu_entry.KEY)
        files = npu_facts.shown(npu_facts.files_of(address))
        if there is None or not files:
            return
        function, spec = there
        subject = npu_rules.label(address)
        settings = npu_rules.settings_of(spec)
        for each in npu_rules.obstacles(function, settings, holders):
            yield finding.Finding(
                subject, finding.WARNING, each.text, each.remedy
            )
            return
        paths = ', '.join(each.path for each in files)
        yield finding.Finding(subject, finding.OK, paths)

    unreadable: dict[str, Exception] = {}
    yield from choosing.findings(
        _named(specs, unreadable), npu_rules.label, look
    )
    for address, err in unreadable.items():
        yield choosing.finding_of(npu_rules.label(address), err)

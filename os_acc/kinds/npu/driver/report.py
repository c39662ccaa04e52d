# SPDX-License-Identifier: Apache-2.0

"""What the driver npu reports about devices: inventory, show, doctor."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

from os_acc import finding
from os_acc import objects
from os_acc.claims import allocated
from os_acc.drivers import choosing
from os_acc.drivers import given_files
from os_acc.drivers import inventory
from os_acc.drivers import pci_functions
from os_acc.kernel import device_file
from os_acc.kernel import pci
from os_acc.kinds.npu import entry as npu_entry
from os_acc.kinds.npu import facts as npu_facts
from os_acc.kinds.npu import names as npu_names
from os_acc.kinds.npu import rules as npu_rules
from os_acc.spec import device_spec


def kind_of(function: pci.Function, spec: device_spec.Spec) -> inventory.Names:
    """Name an NPU as Placement does."""
    behind = pci_functions.kind_of(function, spec)
    default = npu_entry.CLASSES[0]
    return inventory.Names(spec.resource_class or default, behind.traits)


def named(
    specs: device_spec.Specs, unreadable: dict[str, Exception] | None = None
) -> list[str]:
    """The addresses of the functions that entries with npu name.

    :param unreadable: gets the error of each that cannot be read, by address
    """
    if not any(map(npu_rules.settings_of, specs.entries)):
        return []
    errors = {} if unreadable is None else unreadable
    found = []
    for function in pci_functions.scanned(specs, errors):
        with choosing.noting(function.address, errors):
            spec = specs.find(function)
            if npu_rules.settings_of(spec) and not function.is_bridge:
                found.append(function.address)
    return found


def device(
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
    made = handle(address, npu_facts.shown(npu_facts.files_of(address)))
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
        names=kind_of(function, spec),
    )


def handle(
    address: str, files: Iterable[device_file.DeviceFile]
) -> objects.DeviceFileHandle:
    """The attach handle of an NPU.

    :param files: with paths in the host's /dev
    """
    return objects.DeviceFileHandle(
        name=npu_names.name_of(address),
        files=given_files.described(files),
    )


def shown(
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
    holder = holders.of_handle(handle(address, files).identity)
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


def findings(
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
        subject, settings = (
            npu_rules.label(address),
            npu_rules.settings_of(spec),
        )
        for each in npu_rules.obstacles(function, settings, holders):
            yield finding.Finding(
                subject, finding.WARNING, each.text, each.remedy
            )
            return
        paths = ', '.join(each.path for each in files)
        yield finding.Finding(subject, finding.OK, paths)

    return choosing.findings(named(specs), npu_rules.label, look)

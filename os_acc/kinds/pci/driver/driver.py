# SPDX-License-Identifier: Apache-2.0

"""The driver pci: any PCI function, PF or VF, bound to VFIO for a guest."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import ClassVar

from oslo_config import cfg

from os_acc import driver
from os_acc import finding
from os_acc import objects
from os_acc.availability import storage
from os_acc.drivers import allocation
from os_acc.drivers import base
from os_acc.drivers import pci_functions
from os_acc.kernel import pci
from os_acc.kinds.pci.driver import between
from os_acc.kinds.pci.driver import claim
from os_acc.kinds.pci.driver import inventory as pci_inventory
from os_acc.kinds.pci.driver import report as pci_report
from os_acc.spec import parts as spec_parts


class PCIDriver(base.Driver):
    CONFIG_OPTS: ClassVar[Sequence[cfg.Opt]] = claim.OPTS
    generic = True
    sets_ports = True
    cleans = True
    handle_types = ('PCIHandle',)
    moves = driver.LIVE

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._claims = claim.Claims(self, self.specs)

    def can_handle(self, request: objects.AcceleratorRequest) -> bool:
        if request.handle is not None:
            return isinstance(request.handle, objects.PCIHandle)
        wanted = request.resource_class
        if wanted is None:
            return False
        return (
            wanted in ('PGPU', 'FPGA', 'SRIOV_NET_VF')
            or wanted.startswith(pci_functions.PREFIX)
            or any(
                spec.resource_class == wanted
                and spec_parts.offers_functions(spec)
                for spec in self.specs().entries
            )
        )

    def get_devices(self) -> list[objects.Device]:
        return pci_inventory.devices(self, self.specs())

    def show_device(self, address: str) -> dict[str, Any] | None:
        return pci_report.show(self, address, self.specs())

    def diagnose(self) -> Iterator[finding.Finding]:
        return pci_report.findings(self, self.specs())

    def free_device(self, address: str) -> list[str]:
        return between.free(self, self.specs(), address)

    def check_request(
        self,
        request: objects.AcceleratorRequest,
        handle: objects.AttachHandle,
    ) -> None:
        self._claims.check_request(request, handle)

    def rank(
        self,
        request: objects.AcceleratorRequest,
        handle: objects.AttachHandle,
    ) -> int:
        # Functions that exist go before VFs that would have to be made.
        address = handle.identity.removeprefix('pci/')
        return int(pci.find(address) is None)

    def prepareVAN(
        self,
        van: objects.VAN,
        request: objects.AcceleratorRequest,
        instance_info: objects.InstanceInfo,
    ) -> None:
        for_host = instance_info.host_service is not None
        if van.handle is None and request.handle is None:
            self._claims.choose(
                van,
                request,
                lambda: self._claims.bind(van),
                for_host=for_host,
            )
            return
        self._claims.claim(van, request, for_host)
        self._claims.bind(van)

    def is_intact(self, van: objects.VAN) -> bool:
        return self._claims.is_intact(van)

    def left_behind(self, van: objects.VAN) -> str | None:
        function = pci.find(allocation.address_of(van))
        if function is not None and storage.is_storage(function):
            return 'the data of the drive'
        return None

    def undo(self, van: objects.VAN) -> None:
        self._claims.give_back(van)

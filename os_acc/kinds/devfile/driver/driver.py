# SPDX-License-Identifier: Apache-2.0

"""The driver devfile: gives device files, such as /dev/dri/renderD128."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from oslo_config import cfg

from os_acc import finding
from os_acc import objects
from os_acc.claims import of_handle
from os_acc.drivers import base
from os_acc.kinds.devfile.driver import claim
from os_acc.kinds.devfile.driver import report

CONF = cfg.CONF


class DevfileDriver(base.Driver):
    cleans = True
    handle_types = ('DeviceFileHandle',)

    def can_handle(self, request: objects.AcceleratorRequest) -> bool:
        if request.handle is not None:
            # Other kinds name their handles in their own ways.
            return (
                isinstance(request.handle, objects.DeviceFileHandle)
                and of_handle.kind_of(request.handle.name) is None
            )
        wanted = request.resource_class
        return wanted is not None and (
            wanted.startswith(claim.PREFIX)
            or any(
                spec.resource_class == wanted and spec.devices
                for spec in self.specs().entries
            )
        )

    def get_devices(self) -> list[objects.Device]:
        return report.devices(self, self.specs())

    def show_device(self, address: str) -> dict[str, Any] | None:
        return report.show(self, address, self.specs())

    def diagnose(self) -> Iterator[finding.Finding]:
        return report.findings(self, self.specs())

    def prepareVAN(
        self,
        van: objects.VAN,
        request: objects.AcceleratorRequest,
        instance_info: objects.InstanceInfo,
    ) -> None:
        wanted = van.handle or request.handle
        if wanted is None:
            claim.choose(self, van, request)
            return
        wanted = objects.DeviceFileHandle.cast(wanted, f'driver {self.name!r}')
        if van.handle is not None:
            claim.claim_again(self, van)
        else:
            claim.claim(self, van, wanted.name, wanted.share)

    def check_request(
        self,
        request: objects.AcceleratorRequest,
        handle: objects.AttachHandle,
    ) -> None:
        claim.check_request(handle, self.specs())

    def is_intact(self, van: objects.VAN) -> bool:
        return claim.is_intact(van, self.specs())

    def undo(self, van: objects.VAN) -> None:
        claim.give_back(van, CONF.os_acc.release_timeout)

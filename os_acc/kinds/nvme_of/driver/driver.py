# SPDX-License-Identifier: Apache-2.0

"""The driver nvme_of: gives namespaces that come over a network."""

from __future__ import annotations

from collections.abc import Iterator
import logging
import os
from typing import Any

from oslo_config import cfg

from os_acc import exception
from os_acc import finding
from os_acc import log
from os_acc import objects
from os_acc.availability import host_use
from os_acc.claims import allocated
from os_acc.drivers import allocation
from os_acc.drivers import base
from os_acc.drivers import choosing
from os_acc.drivers import inventory
from os_acc.drivers import pci_functions
from os_acc.kernel import nvme_of
from os_acc.kernel import sysfs
from os_acc.kinds.nvme_of import rules as availability
from os_acc.kinds.nvme_of.driver import report
from os_acc.spec import device_spec

LOG = logging.getLogger(__name__)
CONF = cfg.CONF

#: The resource class of namespaces whose entry of device_spec names none.
RESOURCE_CLASS = 'CUSTOM_NVME_OF'

OPTS = (
    cfg.FloatOpt(
        'connect_timeout',
        default=60.0,
        min=1,
        max=3600,
        help='Seconds to connect one namespace: until its target has answered '
        'and udev has created its link. Connections are made one after the '
        'other.',
    ),
    cfg.FloatOpt(
        'disconnect_timeout',
        default=60.0,
        min=1,
        max=3600,
        help='Seconds to close the connections of one namespace.',
    ),
    cfg.IntOpt(
        'fast_io_fail_timeout',
        default=120,
        min=0,
        max=86400,
        help='Seconds after which the kernel fails what a guest reads and '
        'writes while the connection to a target is lost. The kernel keeps '
        'trying to reconnect. 0: it lets the guest wait forever. A guest that '
        'waits in this way cannot be shut down.',
    ),
)


class NVMeOFDriver(base.OneHandleDriver):
    """Connects namespaces of NVMe-oF targets, each for one instance."""

    CONFIG_OPTS = OPTS
    cleans = True
    handle_types = ('BlockHandle',)
    handle_class = objects.BlockHandle

    def can_handle(self, request: objects.AcceleratorRequest) -> bool:
        if request.handle is not None:
            return isinstance(request.handle, objects.BlockHandle)
        return request.resource_class is not None and any(
            _names(spec).resource_class == request.resource_class
            for _, spec in self.specs().namespaces()
        )

    def get_devices(self) -> list[objects.Device]:
        holders = allocation.holders(self)
        specs = dict(self.specs().namespaces())
        snapshot = host_use.Snapshot.read() if specs else None
        return choosing.report(
            self,
            specs,
            lambda wwn: self._device(wwn, specs[wwn], holders, snapshot),
        )

    def _device(
        self,
        wwn: str,
        spec: device_spec.Spec,
        holders: allocated.Holders,
        snapshot: host_use.Snapshot | None,
    ) -> objects.Device:
        return inventory.device(
            wwn,
            self.name,
            [
                inventory.handle(
                    handle(wwn),
                    availability.obstacles(wwn, spec, holders, snapshot),
                    holders.of_handle(handle(wwn).identity),
                )
            ],
            names=_names(spec),
        )

    def show_device(self, address: str) -> dict[str, Any] | None:
        """Show a namespace by its world wide name."""
        spec = self.specs().find_namespace(address)
        holder = allocation.holders(self).of_handle(f'block/{address}')
        if spec is None and holder is None:
            return None
        return report.shown(address, self.name, spec, holder)

    def diagnose(self) -> Iterator[finding.Finding]:
        if named := list(self.specs().namespaces()):
            yield from report.findings(
                named, allocation.holders(self), self.journal.handles()
            )

    def take(self, van: objects.VAN, handle: objects.BlockHandle) -> None:
        if handle.path != nvme_of.link(handle.wwn):
            raise exception.InvalidRequest(
                subject=f'request {van.uuid}',
                field='handle.path',
                value=handle.path,
                expected=nvme_of.link(handle.wwn),
            )
        self._take(van, handle.wwn)

    def take_again(
        self, van: objects.VAN, handle: objects.BlockHandle
    ) -> None:
        self.take(van, handle)

    def _take(self, van: objects.VAN, wwn: str) -> None:
        from os_acc.privileged.nvme_of import namespaces as privileged

        with self.lock(wwn):
            specs = self.specs()
            entry = (
                specs.find_namespace(wwn)
                if van.handle is None
                else specs.known_namespace(wwn)
            )
            allocation.check(
                availability.obstacles(
                    wwn, entry, allocation.holders(self, van)
                )
            )
            van.handle, van.device = handle(wwn), wwn
            van.driver_data = {
                **van.driver_data,
                'host_nqn': nvme_of.host_nqn(van.instance_uuid),
            }
            van.save()
            privileged.connect(
                wwn,
                van.instance_uuid,
                self.config.connect_timeout,
                self.config.fast_io_fail_timeout,
            )
        log.about(LOG, van.instance_uuid, van.uuid).info(
            'namespace %s connected', wwn
        )

    def choose(
        self, van: objects.VAN, request: objects.AcceleratorRequest
    ) -> None:
        """Take the first namespace that is free and can be connected."""
        specs = dict(self.specs().namespaces())
        choosing.choose(
            van,
            request,
            specs,
            lambda wwn: [wwn] if _names(specs[wwn]).serves(request) else [],
            lambda wwn: self._take(van, wwn),
            lambda: self.undo(van),
            'device_spec offers no such namespace',
            pci_functions.refused(self, self.specs(), request),
        )

    def is_intact(self, van: objects.VAN) -> bool:
        """Whether the namespace is there, connected for the instance.

        A connection that is lost counts too: the kernel makes it again.
        """
        if not isinstance(van.handle, objects.BlockHandle):
            return True
        host = nvme_of.host_nqn(van.instance_uuid)
        found = nvme_of.blocks(van.handle.wwn)
        path = f'{sysfs.DEV}{van.handle.path.removeprefix("/dev")}'
        return (
            len(found) == 1
            and any(c.host_nqn == host for c in found[0].controllers())
            and os.path.basename(os.path.realpath(path)) == found[0].name
        )

    def left_behind(self, van: objects.VAN) -> str | None:
        return 'the data of the namespace: the instance gets another one'

    def undo(self, van: objects.VAN) -> None:
        if not isinstance(van.handle, objects.BlockHandle):
            return
        from os_acc.privileged.nvme_of import namespaces as privileged

        wwn = van.handle.wwn
        emptied = privileged.release(
            wwn,
            van.instance_uuid,
            CONF.os_acc.release_timeout,
            self.config.disconnect_timeout,
        )
        logger = log.about(LOG, van.instance_uuid, van.uuid)
        if emptied:
            logger.info('namespace %s released', wwn)
        else:
            logger.warning(
                'namespace %s released, but not erased, because its target '
                'cannot be reached; it is erased before another instance gets '
                'it',
                wwn,
            )


def handle(wwn: str) -> objects.BlockHandle:
    """The handle of a namespace."""
    made: objects.BlockHandle = objects.BlockHandle(
        path=nvme_of.link(wwn), wwn=wwn
    )
    return made


def _names(spec: device_spec.Spec) -> inventory.Names:
    """Name the namespaces of an entry as Placement does."""
    return inventory.Names(spec.resource_class or RESOURCE_CLASS, spec.traits)

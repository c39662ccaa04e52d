# SPDX-License-Identifier: Apache-2.0

"""What the driver nvme_of reports about namespaces and about this host."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
import importlib.util
import os
import re
import shutil
from typing import Any

from os_acc import finding
from os_acc.claims import allocated
from os_acc.drivers import choosing
from os_acc.kernel import modules
from os_acc.kernel import nvme_of
from os_acc.kernel import sysfs
from os_acc.kinds.nvme_of import entry as spec_nvme_of
from os_acc.kinds.nvme_of import rules as availability
from os_acc.kinds.nvme_of import use as namespace_use
from os_acc.spec import device_spec

Finding = finding.Finding
Named = Sequence[tuple[str, device_spec.Spec]]

_PROGRAMS = (('nvme', 'nvme-cli'), ('blkdiscard', 'util-linux'))
_INSTANCE = re.compile(re.escape(nvme_of.host_nqn('')) + '(.+)')


def shown(
    wwn: str,
    driver: str,
    spec: device_spec.Spec | None,
    holder: allocated.Holder | None,
) -> dict[str, Any]:
    """All that is known of a namespace, for ``os-acc device show``."""
    found = nvme_of.blocks(wwn)
    values: dict[str, Any] = {
        'address': wwn,
        'driver': driver,
        'status': 'no VAN has it'
        if holder is None
        else f'VAN {holder.van_uuid} of instance {holder.called}',
        'link': nvme_of.link(wwn),
        'block devices': [f'{block.name} ({_size(block)})' for block in found],
        'connections': [
            _connection(each)
            for block in found
            for each in block.controllers()
        ],
    }
    if holder is not None:
        values['host nqn'] = nvme_of.host_nqn(holder.instance_uuid)
    if spec is not None and (target := spec.nvme_of) is not None:
        values |= {
            'subsystem': target.nqn,
            'portals': [_portal(each) for each in target.portals],
            'erase': target.erase,
            # The path only; this process cannot read the file.
            'dh-chap secret': target.secret_file or 'none',
        }
    return values


def _size(block: nvme_of.Block) -> str:
    # In units of 512 bytes: Documentation/ABI/stable/sysfs-block.
    size = sysfs.read_int(f'{block.path}/size') or 0
    return f'{size * 512} bytes'


def _portal(portal: nvme_of.Portal) -> str:
    return f'{portal.transport} {portal.address} port {portal.port}'


def _connection(each: nvme_of.Controller) -> str:
    where = 'a device of this host'
    if each.portal is not None:
        where = _portal(each.portal)
    return f'{each.name}: {where}, {each.state}, as {each.host_nqn}'


def findings(
    named: Named,
    holders: allocated.Holders,
    vans: Sequence[allocated.Holder],
) -> Iterator[Finding]:
    """Check what namespaces of NVMe-oF targets need on this host."""
    targets = [spec.nvme_of for _, spec in named if spec.nvme_of is not None]
    yield from _software(targets)
    yield from _modules(targets)
    yield from choosing.findings(
        named,
        lambda each: namespace_use.label(each[0]),
        lambda each: [_namespace(*each, holders)],
    )
    yield from _left_over(targets, vans)


def _software(targets: Sequence[spec_nvme_of.Target]) -> Iterator[Finding]:
    if importlib.util.find_spec('os_brick') is None:
        yield Finding(
            'os-brick',
            finding.ERROR,
            'it is not installed: no namespace of an NVMe-oF target can be '
            'connected',
            "pip install 'os-acc[remote]'",
        )
    path = f'{os.environ.get("PATH", "")}:/usr/sbin:/sbin'
    for program, package in _PROGRAMS:
        if shutil.which(program, path=path) is None:
            yield Finding(
                f'program {program}',
                finding.ERROR,
                'it is missing, and namespaces of NVMe-oF targets need it',
                f'install the package {package}',
            )


def _modules(targets: Sequence[spec_nvme_of.Target]) -> Iterator[Finding]:
    transports = {p.transport for each in targets for p in each.portals}
    for transport in sorted(transports):
        name = f'nvme-{transport}'
        if not os.path.isdir(
            f'{sysfs.SYS}/module/nvme_{transport}'
        ) and not modules.is_installed(name):
            yield Finding(
                f'kernel module {name}',
                finding.ERROR,
                'this kernel does not have it: no namespace can be connected '
                f'over {transport}',
                'install the package with the additional kernel modules',
            )
    if nvme_of.has_multipath() is False:
        yield Finding(
            'NVMe multipathing',
            finding.WARNING,
            "the kernel's native multipathing is off: a namespace that two "
            'connections lead to has two block devices, and is refused',
            'boot with nvme_core.multipath=Y',
        )


def _namespace(
    wwn: str, spec: device_spec.Spec, holders: allocated.Holders
) -> Finding:
    label = namespace_use.label(wwn)
    holder = holders.of_handle(f'block/{wwn}')
    taker = allocated.ANYONE
    if holder is not None:
        taker = allocated.Taker(holder.van_uuid, holder.instance_uuid)
    for obstacle in availability.obstacles(wwn, spec, holders.asked_by(taker)):
        return Finding(label, finding.WARNING, obstacle.text, obstacle.remedy)
    states = [
        f'{each.name} is {each.state}'
        for block in nvme_of.blocks(wwn)
        for each in block.controllers()
    ]
    text = 'it is not connected'
    if states:
        text = f'it is connected: {", ".join(states)}'
    if holder is None:
        return Finding(label, finding.OK, f'no VAN has it; {text}')
    lost = holder.device is not None and nvme_of.LIVE not in (
        each.state
        for block in nvme_of.blocks(wwn)
        for each in block.controllers()
    )
    return Finding(
        label,
        finding.WARNING if lost else finding.OK,
        f'instance {holder.called} has it; {text}',
        'check the target and the network to it' if lost else '',
    )


def _left_over(
    targets: Sequence[spec_nvme_of.Target], vans: Sequence[allocated.Holder]
) -> Iterator[Finding]:
    """Find connections for instances that have no VAN any more."""
    instances = {each.instance_uuid for each in vans}
    for each in nvme_of.all_controllers():
        match = _INSTANCE.fullmatch(each.host_nqn or '')
        if (
            match is not None
            and match[1] not in instances
            and each.nqn in {target.nqn for target in targets}
        ):
            yield Finding(
                f'connection {each.name}',
                finding.WARNING,
                f'it leads to {each.nqn} as instance {match[1]}, which has no '
                'VAN: somebody uses another namespace through it, or os-acc '
                'did not create it',
                f'if nobody needs it: nvme disconnect -d {each.name}',
            )

# SPDX-License-Identifier: Apache-2.0

"""The VFs that PFs shall have, by num_vfs of the entries that offer them.

Without a document, os-acc makes the VFs of a PF for the first VAN and removes
them with the last one. The VFs of a document exist before, and stay. The
journal names their PFs from before the VFs are made until they are removed.
"""

from __future__ import annotations

from collections.abc import Iterator
import functools
import logging

from os_acc import exception
from os_acc import health
from os_acc import host as host_module
from os_acc.availability import vf_availability
from os_acc.claims import allocated
from os_acc.desired import documents
from os_acc.desired import offered
from os_acc.desired import steps
from os_acc.kernel import pci
from os_acc.kernel import pci_scan
from os_acc.kernel import sriov
from os_acc.spec import device_spec

LOG = logging.getLogger(__name__)

PART = 'vfs'


def find(
    host: host_module.Host, document: documents.Document
) -> Iterator[steps.Step]:
    """A step for each PF of the document, and of the one before."""
    wanted = _wanted(offered.specs_after(host.conf, document), document)
    kept = host.journal.kept_vfs()
    for pf in sorted(wanted.keys() | kept.keys()):
        now, number, present = kept.get(pf), wanted.get(pf), sriov.count(pf)
        before = _text(present, now is not None)
        users = functools.partial(_users, host, pf)
        if number is None:
            act = functools.partial(_let_go, host, pf)
            yield steps.Step(PART, pf, before, 'not kept', act, users)
        elif present == number and now is not None:
            yield steps.Step(PART, pf, before, before)
        else:
            yield steps.Step(
                PART,
                pf,
                before,
                _text(number, True),
                functools.partial(_keep, host, pf, now, number),
                users if present not in (0, number) else steps.nobody,
            )


def _wanted(
    specs: device_spec.Specs, document: documents.Document
) -> dict[str, int]:
    """How many VFs each PF shall have that the document offers."""
    found = {}
    for function in pci_scan.functions():
        spec = specs.find(function) if function.is_pf else None
        if (
            spec is not None
            and spec.num_vfs is not None
            and offered.without_source(spec) in document.specs
        ):
            found[function.address] = spec.num_vfs
    return found


def _text(number: int, kept: bool) -> str:
    return f'{number} VFs{", kept" if kept else ""}'


def _keep(
    host: host_module.Host, pf: str, before: int | None, number: int
) -> None:
    """Give a PF its VFs, and keep them.

    :param before: how many it has kept so far, as Journal.keep_vfs()
    """
    with host.locks.device(pf):
        # Also after an earlier step that was interrupted.
        present = sriov.count(pf)
        if present == number:
            host.journal.keep_vfs(pf, _made(host, pf))
            return
        _check(host, pf, present)
        host.journal.keep_vfs(pf, number)
        try:
            _change(host, pf, number)
        except exception.ExceptionBase:
            host.journal.keep_vfs(pf, before)
            raise


def _check(host: host_module.Host, pf: str, present: int) -> None:
    """Check that the VFs of a PF can be made, or be replaced by others.

    :raises DeviceBusy, DeviceError: if they cannot
    """
    function = pci.get(pf)
    spec = device_spec.load(host.conf).check(function)
    if present:
        _refuse(pf, _users(host, pf))
    holders = allocated.Holders(
        host.journal.handles(), unhealthy=health.View(host.journal)
    )
    for obstacle in vf_availability.vfs_obstacles(function, holders, spec):
        raise obstacle.error()


def _change(host: host_module.Host, pf: str, number: int) -> None:
    from os_acc.privileged.pci import vfs as privileged

    with host.acting_for():
        _refuse(
            pf,
            privileged.change_vfs(pf, number, host.conf.os_acc.device_timeout),
        )


def _made(host: host_module.Host, pf: str) -> int:
    """How many VFs of a PF os-acc has made; 0: somebody else has."""
    from os_acc.privileged.pci import vfs as privileged

    with host.acting_for():
        return privileged.made_vfs(pf, host.conf.os_acc.device_timeout)


def _let_go(host: host_module.Host, pf: str) -> None:
    """Remove the VFs of a PF that the document no longer has."""
    from os_acc.privileged.pci import vfs as privileged

    with host.locks.device(pf):
        if host.journal.kept_vfs()[pf] and pci.find(pf) is not None:
            _refuse(pf, _users(host, pf))
            with host.acting_for():
                stay = privileged.remove_vfs(
                    pf, host.conf.os_acc.device_timeout
                )
            if stay:  # Others have made them, and remove them when they want.
                LOG.warning('PF %s keeps its VFs: %s', pf, '; '.join(stay))
        host.journal.keep_vfs(pf, None)


def _users(host: host_module.Host, pf: str) -> list[str]:
    """Say who uses the VFs of a PF, or the PF itself."""
    holders = allocated.Holders(host.journal.handles())
    found = [
        f'instance {each.called} has {each.handle} (VAN {each.van_uuid})'
        for each in holders.on(pf)
    ]
    function = pci.find(pf)
    if not found and function is not None:
        found = vf_availability.vf_users(function)
    return found


def _refuse(pf: str, users: list[str]) -> None:
    if users:
        raise exception.DeviceBusy(device=f'PF {pf}', reason='; '.join(users))

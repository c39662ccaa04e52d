# SPDX-License-Identifier: Apache-2.0

"""The VFs that PFs shall have, by num_vfs of the entries that offer them.

Without a document, os-acc makes the VFs of a PF for the first VAN and removes
them with the last one. The VFs of a document are there before, and stay. The
journal says of which PFs, before the VFs are made and until they are removed.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import functools
import logging
from typing import Any

from os_acc import exception
from os_acc import host as host_module
from os_acc.availability import vf_availability
from os_acc.claims import allocated
from os_acc.desired import ahead
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
        now, spec, there = kept.get(pf), wanted.get(pf), sriov.count(pf)
        had = _set_up(host, pf)
        before = _text(there, had, now is not None)
        users = functools.partial(_users, host, pf)
        if spec is None or spec.num_vfs is None:
            act = functools.partial(_let_go, host, pf)
            yield steps.Step(PART, pf, before, 'not kept', act, users)
            continue
        after = _settings(spec)
        same = there == spec.num_vfs and had == after
        if same and now is not None:
            yield steps.Step(PART, pf, before, before)
            continue
        described = _text(spec.num_vfs, after, True)
        keep = functools.partial(_keep, host, pf, now, spec.num_vfs, after)
        error = None if same else _obstacle(host, pf, spec)
        if error is not None:
            yield steps.tried(PART, pf, before, described, keep, error)
            continue
        # Nobody is in the way if the VFs are right already, or not there.
        in_the_way = steps.nobody if same or not there else users
        yield steps.Step(PART, pf, before, described, keep, in_the_way)


def _wanted(
    specs: device_spec.Specs, document: documents.Document
) -> dict[str, device_spec.Spec]:
    """The entries of the document that ask for VFs, each by its PF.

    An entry can name an address that has no PF now. Its step says so.
    """
    functions = [*pci_scan.functions()]
    pfs = {function.address for function in functions if function.is_pf}
    found = {
        address: spec
        for spec in reversed(document.specs)
        if (address := spec.address.complete) is not None
        and spec.num_vfs
        and address not in pfs
    }
    for function in functions:
        spec = specs.find(function) if function.is_pf else None
        if (
            spec is not None
            and spec.num_vfs is not None
            and offered.without_source(spec) in document.specs
        ):
            found[function.address] = spec
    return found


def _settings(spec: device_spec.Spec) -> list[dict[str, Any]]:
    """What each VF of a PF shall have while it serves no port."""
    if spec.vf_settings is None:
        return []
    return [spec.vf_settings.of_vf(n) for n in range(spec.num_vfs or 0)]


def _set_up(host: host_module.Host, pf: str) -> list[dict[str, Any]]:
    """What os-acc has set for the VFs of a PF, as _settings()."""
    from os_acc.privileged.pci import vfs as privileged

    function = pci.find(pf)
    if (
        function is None
        or function.base_class != pci.CLASS_NETWORK
        or not sriov.count(pf)
    ):
        return []
    # The PF may leave meanwhile.
    with host.acting_for(), contextlib.suppress(exception.DeviceNotFound):
        return privileged.settings_of_vfs(pf)
    return []


def _text(number: int, settings: list[dict[str, Any]], kept: bool) -> str:
    text = f'{number} VFs{", kept" if kept else ""}'
    if not settings:
        return text
    names = sorted({name for each in settings for name in each})
    said = []
    for name in names:
        values = [each.get(name) for each in settings]
        same = values.count(values[0]) == len(values)
        said.append(f'{name} {values[0] if same else values}')
    return f'{text}, with {", ".join(said)}'


def _keep(
    host: host_module.Host,
    pf: str,
    before: int | None,
    number: int,
    settings: list[dict[str, Any]],
) -> None:
    """Give a PF its VFs, and keep them.

    :param before: how many it has kept so far, as Journal.keep_vfs()
    """
    from os_acc.privileged.pci import vfs as privileged

    seconds = host.conf.os_acc.device_timeout
    with host.locks.device(pf):
        # Also after an earlier step that was interrupted.
        there = sriov.count(pf)
        if there == number and _set_up(host, pf) == settings:
            with host.acting_for():
                # 0: somebody else has made them.
                made = privileged.made_vfs(pf, seconds)
            host.journal.keep_vfs(pf, made)
            return
        spec = device_spec.load(host.conf).check(pci.get(pf))
        if there:
            ahead.refuse(f'PF {pf}', _users(host, pf))
        if (error := _obstacle(host, pf, spec)) is not None:
            raise error
        host.journal.keep_vfs(pf, number)
        try:
            with host.acting_for():
                users = privileged.change_vfs(pf, number, seconds)
            ahead.refuse(f'PF {pf}', users)
        except exception.ExceptionBase:
            host.journal.keep_vfs(pf, before)
            raise


def _obstacle(
    host: host_module.Host, pf: str, spec: device_spec.Spec
) -> exception.ExceptionBase | None:
    """Why a PF cannot have as many VFs as its entry says.

    Whether somebody uses the VFs that it has is not asked here.
    """
    try:
        found = vf_availability.vfs_obstacles(
            pci.get(pf), ahead.holders(host), spec
        )
        return next((each.error() for each in found), None)
    except exception.DeviceNotFound as err:
        return err


def _let_go(host: host_module.Host, pf: str) -> None:
    """Remove the VFs of a PF that the document has no more."""
    from os_acc.privileged.pci import vfs as privileged

    with host.locks.device(pf):
        if host.journal.kept_vfs()[pf] and pci.find(pf) is not None:
            ahead.refuse(f'PF {pf}', _users(host, pf))
            with host.acting_for():
                stay = privileged.remove_vfs(
                    pf, host.conf.os_acc.device_timeout
                )
            if stay:  # They are others', who remove them when they want.
                LOG.warning('PF %s keeps its VFs: %s', pf, '; '.join(stay))
        host.journal.keep_vfs(pf, None)


def _users(host: host_module.Host, pf: str) -> list[str]:
    """Say who uses the VFs of a PF, or the PF itself."""
    found = ahead.clauses(allocated.Holders(host.journal.handles()).on(pf))
    function = pci.find(pf)
    if not found and function is not None:
        found = vf_availability.vf_users(function)
    return found

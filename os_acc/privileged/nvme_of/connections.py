# SPDX-License-Identifier: Apache-2.0

"""Connections to NVMe-oF targets: made for an instance, and ended again.

The record of a connection is written before the connection is made. It names
the portals to which nobody was connected before as this host NQN, so a
connection that somebody else has made is never ended here.

The module's functions hold one lock for all connections of this host, because
os-brick connects one at a time, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import dataclasses
import errno
import hashlib
import logging
import os
from typing import Any

from os_acc import exception
from os_acc.availability import host_use
from os_acc.deadlines import waiting
from os_acc.kernel import nvme_of
from os_acc.kernel import sysfs
from os_acc.kinds.nvme_of import entry as spec_nvme_of
from os_acc.kinds.nvme_of import use as namespace_use
from os_acc.privileged import operation_lock
from os_acc.privileged import undo_log
from os_acc.privileged.kernel import module_loading
from os_acc.privileged.nvme_of import commands as nvme_of_commands


@dataclasses.dataclass(frozen=True)
class Connection:
    """The connections of an instance to a subsystem of an NVMe-oF target.

    :ivar nqn: of the subsystem
    :ivar instance: its UUID
    :ivar portals: those that nobody was connected to before, each as address,
        port and transport
    :ivar namespaces: the world wide names of those that the instance has by
        these connections
    """

    nqn: str
    instance: str
    portals: list[list[Any]]
    namespaces: list[str]


connections = undo_log.Records('connections', Connection)

LOG = logging.getLogger(__name__)

_LOCK = 'nvme-of'
# Seconds that udev and others may keep open a namespace that is to be
# disconnected.
_BRIEFLY = 3.0


def connect(
    wwn: str,
    target: spec_nvme_of.Target,
    instance_uuid: str,
    deadline: waiting.Deadline,
    fast_io_fail: int,
    held: Sequence[int],
) -> None:
    """Connect to the target of a namespace, for an instance.

    :param fast_io_fail: seconds after which the kernel fails what is read or
        written while the connection is lost; 0: it waits
    """
    with _lock(deadline) as lock:
        _end_unused(deadline)
        _load_modules(target, deadline)
        if target.secret_file is not None:
            nvme_of_commands.check_secrets(namespace_use.label(wwn))
        _remember(wwn, target, instance_uuid)
        with nvme_of_commands.secret_config(
            target.secret_file, instance_uuid
        ) as config:
            try:
                _connect(
                    wwn,
                    target,
                    instance_uuid,
                    nvme_of_commands.Commands(
                        namespace_use.label(wwn),
                        deadline,
                        [*held, lock],
                        host_id=instance_uuid,
                        config=config,
                    ),
                )
            finally:
                # A connection may be there without the namespace.
                _hide_secrets(target, instance_uuid)
        _set_up(target, instance_uuid, fast_io_fail)


def disconnect(
    wwn: str, instance_uuid: str, deadline: waiting.Deadline
) -> None:
    """Release the connections of an instance that a namespace needs.

    They are ended if no other namespace of the instance needs them.
    """
    with _lock(deadline):
        for name, known in _records():
            if known.instance == instance_uuid and wwn in known.namespaces:
                left = [each for each in known.namespaces if each != wwn]
                connections.write(
                    name, dataclasses.replace(known, namespaces=left)
                )
        _end_unused(deadline, instance_uuid)


@contextlib.contextmanager
def _lock(deadline: waiting.Deadline) -> Iterator[int]:
    with operation_lock.named(_LOCK, deadline.left(0.5)) as lock:
        yield lock


def _records() -> list[tuple[str, Connection]]:
    found = ((name, connections.read(name)) for name in connections.names())
    return [(name, known) for name, known in found if known is not None]


def _remember(
    wwn: str, target: spec_nvme_of.Target, instance_uuid: str
) -> None:
    """Write the record of connections that are about to be made."""
    digest = hashlib.sha256(target.nqn.encode()).hexdigest()[:32]
    name = f'{instance_uuid}.{digest}'
    known = connections.read(name)
    host = nvme_of.host_nqn(instance_uuid)
    before = {each.portal for each in nvme_of.controllers(target.nqn, host)}
    portals = [] if known is None else known.portals
    for portal in target.portals:
        values = list(dataclasses.astuple(portal))
        if portal not in before and values not in portals:
            portals = [*portals, values]
    names = [] if known is None else known.namespaces
    connections.write(
        name,
        Connection(
            nqn=target.nqn,
            instance=instance_uuid,
            portals=portals,
            namespaces=[*(each for each in names if each != wwn), wwn],
        ),
    )


def _load_modules(
    target: spec_nvme_of.Target, deadline: waiting.Deadline
) -> None:
    for transport in sorted({each.transport for each in target.portals}):
        if not os.path.isdir(f'{sysfs.SYS}/module/nvme_{transport}'):
            module_loading.load(f'nvme-{transport}', deadline.left())


def _connect(
    wwn: str,
    target: spec_nvme_of.Target,
    instance_uuid: str,
    commands: nvme_of_commands.Commands,
) -> None:
    kind, _, text = wwn.partition('.')
    brick = nvme_of_commands.connector(commands, len(target.portals) > 1)
    try:
        brick.connect_volume(
            {
                'target_nqn': target.nqn,
                'portals': [
                    [each.address, str(each.port), each.transport]
                    for each in target.portals
                ],
                'vol_uuid': text if kind == 'uuid' else None,
                'volume_nguid': text if kind == 'eui' else None,
                'host_nqn': nvme_of.host_nqn(instance_uuid),
            }
        )
    except exception.ExceptionBase:
        raise
    except Exception as err:
        why = commands.failure or 'the target does not show the namespace'
        raise exception.DeviceError(
            device=namespace_use.label(wwn),
            reason=f'os-brick could not connect it from {target.nqn} as '
            f'{nvme_of.host_nqn(instance_uuid)}: {why} '
            f'({exception.describe(err)})',
        ) from err


def _set_up(
    target: spec_nvme_of.Target, instance_uuid: str, fast_io_fail: int
) -> None:
    """Set what os-brick does not set on the connections."""
    host = nvme_of.host_nqn(instance_uuid)
    for each in nvme_of.controllers(target.nqn, host):
        path = f'{each.path}/fast_io_fail_tmo'
        wanted = str(fast_io_fail) if fast_io_fail else 'off'
        if sysfs.read(path) not in (None, wanted):
            # A number below 0 turns it off: fast_io_fail_tmo_store() in
            # drivers/nvme/host/core.c.
            sysfs.write(path, str(fast_io_fail or -1))


def _hide_secrets(target: spec_nvme_of.Target, instance_uuid: str) -> None:
    """Let only root read the secrets, which the kernel shows to everybody."""
    host = nvme_of.host_nqn(instance_uuid)
    for each in nvme_of.controllers(target.nqn, host):
        with contextlib.suppress(FileNotFoundError):
            os.chmod(f'{each.path}/dhchap_secret', 0o600)


def _end_unused(
    deadline: waiting.Deadline, instance_uuid: str | None = None
) -> None:
    """End the connections that no namespace of their instance needs.

    :param instance_uuid: a failure is an error only for this instance. What
        another one has left is tried again next time
    """
    for name, known in _records():
        if known.namespaces:
            continue
        try:
            if _end(known, deadline):
                connections.delete(name)
        except exception.ExceptionBase as err:
            if known.instance == instance_uuid:
                raise
            LOG.warning('%s', exception.describe(err))


def _end(known: Connection, deadline: waiting.Deadline) -> bool:
    """End the connections of a record.

    :returns: False if somebody uses another namespace through one of them
    """
    host = nvme_of.host_nqn(known.instance)
    complete = True
    for each in nvme_of.controllers(known.nqn, host):
        if (
            each.portal is None
            or list(dataclasses.astuple(each.portal)) not in known.portals
        ):
            continue
        if (use := _use(each, deadline)) is not None:
            complete = False
            LOG.warning(
                'The connection %s to %s as %s stays: %s',
                each.name,
                known.nqn,
                host,
                use,
            )
            continue
        _end_one(each, known.nqn, deadline)
    return complete


def _end_one(
    controller: nvme_of.Controller, nqn: str, deadline: waiting.Deadline
) -> None:
    label = f'connection {controller.name} to {nqn}'
    if not _is_there(controller):
        return
    try:
        # What nvme disconnect does at last (nvme_sysfs_delete() in
        # drivers/nvme/host). But it opens the namespaces first, and waits
        # there while udev reads from a target that is lost.
        sysfs.write(f'{controller.path}/delete_controller', '1')
    except OSError as err:
        # The file is gone once somebody ends the connection.
        if err.errno not in (errno.ENOENT, errno.ENODEV):
            raise exception.DeviceError(
                device=label,
                reason=f'delete_controller: {err.strerror}',
            ) from err
    waiting.until(
        lambda: not os.path.isdir(controller.path),
        deadline.left(),
        f'{label} to end',
    )
    LOG.info('%s ended', label)


def _is_there(controller: nvme_of.Controller) -> bool:
    """Whether a connection is still there, and not another one of its name.

    The kernel gives the name of a connection that has ended to the next one.
    """
    return any(
        dataclasses.replace(each, state=controller.state) == controller
        for each in nvme_of.all_controllers()
    )


def _use(
    controller: nvme_of.Controller, deadline: waiting.Deadline
) -> str | None:
    """What a connection is used for, apart from what os-acc has released.

    A namespace that another living connection reaches does not need this one.
    """
    blocks = [
        block
        for block in nvme_of.blocks_of(controller)
        if not any(
            other.name != controller.name and other.state == nvme_of.LIVE
            for other in block.controllers()
        )
    ]
    found: list[str] = []

    def unused() -> bool:
        snapshot = host_use.Snapshot.read()
        names = [
            name
            for block in blocks
            for name in namespace_use.parts(block, snapshot)
        ]
        uses = (host_use.of_block(name, snapshot) for name in names)
        found[:] = [use.text for use in uses if use is not None]
        reachable = any(block.is_reachable() for block in blocks)
        found.extend(namespace_use.users_of(names, snapshot, reachable))
        return not found

    with contextlib.suppress(exception.Timeout):
        # udev opens a block device for a moment now and then.
        seconds = min(_BRIEFLY, deadline.left(0.5))
        waiting.until(unused, seconds, controller.name)
        return None
    return '; '.join(dict.fromkeys(found))

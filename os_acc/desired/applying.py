# SPDX-License-Identifier: Apache-2.0

"""Does the steps towards the state that a document describes.

The document is written to the journal before the first step, so that what a
crash, a reboot or a user of a device has kept from being done is done later:
see again().
"""

from __future__ import annotations

import itertools
import json
import logging

from oslo_config import cfg

from os_acc import exception
from os_acc import host as host_module
from os_acc import log
from os_acc import objects
from os_acc import progress
from os_acc.desired import documents
from os_acc.desired import functions
from os_acc.desired import offered
from os_acc.desired import pools
from os_acc.desired import steps
from os_acc.desired import vfs
from os_acc.journal import desired as rows
from os_acc.kernel import boot
from os_acc.objects import report as results

LOG = logging.getLogger(__name__)

_LOCK = 'all, to apply a document'
_IN_THE_WAY = (exception.DeviceBusy, exception.DeviceInUseByHost)


def apply(
    host: host_module.Host,
    document: documents.Document,
    callback: progress.Callback | None = None,
) -> objects.ApplyReport:
    """Do what is needed for a document. See os_acc.apply."""
    with host.locks.device(_LOCK):
        before = host.journal.desired()
        host.journal.save_desired(_row(document))
        earlier = _document(before)
        try:
            done = offer(host.conf, document)
        except exception.ExceptionBase:
            # Nothing was touched: the earlier document stays.
            host.journal.save_desired(before)
            raise
        return _finish(host, document, earlier, done, callback)


def offer(
    conf: cfg.ConfigOpts, document: documents.Document
) -> list[objects.ApplyStep]:
    """Do the step that only root can do, and that needs no journal.

    :raises InvalidRequest, PrivilegeError: as os_acc.apply
    """
    return [_do(each) for each in offered.find(conf, document)]


def check(
    host: host_module.Host, document: documents.Document
) -> objects.ApplyReport:
    """Say what apply() would do. This changes nothing."""
    found = itertools.chain(
        offered.find(host.conf, document),
        vfs.find(host, document),
        functions.find(host, document),
        pools.find(_document(host.journal.desired()), document),
    )
    return objects.ApplyReport(steps=[_would(each) for each in found])


def again(host: host_module.Host) -> objects.ApplyReport | None:
    """Apply the document of the journal, unless all of it was done.

    It is for initialize(): after a reboot, after a crash, and if something was
    in the way. Nothing is raised, because a service must be able to start.

    :returns: None: there was nothing to do, or another process is at it
    """
    try:
        known = host.journal.desired()
        if known is None or known.settled == boot.boot_id():
            return None
        document = documents.read(json.loads(known.document))
        with host.locks.device(_LOCK, 0):
            done = offer(host.conf, document)
            return _finish(host, document, document, done, None)
    except exception.LockTimeout:
        return None
    except Exception as err:
        log.error(
            LOG,
            err,
            'The document of os-acc apply is not applied: %s',
            exception.describe(err),
        )
        return None


def _finish(
    host: host_module.Host,
    document: documents.Document,
    before: documents.Document | None,
    done: list[objects.ApplyStep],
    callback: progress.Callback | None,
) -> objects.ApplyReport:
    """Do the other steps, now that device_spec says what is offered.

    :param before: the document that was applied before
    :param done: the steps that are done
    """
    done += map(_tried, vfs.find(host, document))
    done += map(_tried, functions.find(host, document, callback))
    done += map(_tried, pools.find(before, document))
    made = objects.ApplyReport(steps=done)
    if results.IN_THE_WAY not in made.results():
        host.journal.save_desired(_row(document, boot.boot_id()))
    return made


def _document(row: rows.Desired | None) -> documents.Document | None:
    """Read a document of the journal; None: there is none that can be read."""
    try:
        return documents.read(json.loads(row.document)) if row else None
    except exception.InvalidRequest:
        return None  # a later version of os-acc has written it


def _row(
    document: documents.Document, settled: str | None = None
) -> rows.Desired:
    return rows.Desired(json.dumps(document.as_object()), settled)


def _do(step: steps.Step) -> objects.ApplyStep:
    if step.act is None:
        return _told(step, results.UNCHANGED)
    step.act()
    LOG.info('Applied: %s %s: %s', step.part, step.name, step.after)
    return _told(step, results.CHANGED)


def _tried(step: steps.Step) -> objects.ApplyStep:
    """Do a step. What it raises does not stop the others."""
    try:
        return _do(step)
    except _IN_THE_WAY as err:
        return _told(step, results.IN_THE_WAY, exception.describe(err))
    except exception.ExceptionBase as err:
        LOG.error('%s %s: %s', step.part, step.name, exception.describe(err))
        return _told(step, results.FAILED, exception.describe(err))


def _would(step: steps.Step) -> objects.ApplyStep:
    if step.act is None:
        return _told(step, results.UNCHANGED)
    if step.fault is not None:
        return _told(step, results.FAILED, step.fault)
    users = '; '.join(step.users()) or None
    return _told(step, results.WOULD_CHANGE, users)


def _told(
    step: steps.Step, result: str, reason: str | None = None
) -> objects.ApplyStep:
    return objects.ApplyStep(
        part=step.part,
        name=step.name,
        before=step.before,
        after=step.after,
        result=result,
        reason=reason,
    )

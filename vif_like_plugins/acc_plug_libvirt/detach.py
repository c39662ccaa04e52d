# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Detaching a hostdev from a domain, until the guest has let go of it."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import logging
import threading
import time
from typing import Any

from acc_plug_libvirt import connection
from acc_plug_libvirt import domain_xml
from os_acc import exception
from os_acc import log
from os_acc import objects
from os_acc.linux import waiting

LOG = logging.getLogger(__name__)

# How long to go without a look: libvirtd's restart loses an event.
_LOOK_EVERY = 2.0


def detach(
    from_: connection.Connection,
    van: objects.VAN,
    seconds: float,
    attempts: int,
    attempt_seconds: float,
) -> None:
    """Take a VAN's device out of its instance's domain.

    Out of its definition first: whatever happens to the guest, it does not
    come back with it. A domain that is gone has let go.

    :param seconds: for all of it
    :param attempts: how often the guest is asked
    :param attempt_seconds: how long to wait for it each time
    :raises HypervisorError: libvirt refused
    :raises Timeout: the guest does not answer; it still has it
    """
    what = f'guest {van.instance_uuid} to let go of VAN {van.uuid}'
    waiting.at_most(
        lambda: _detach(from_, van, seconds, attempts, attempt_seconds, what),
        # The loop below ends by itself; this is for a call that does not.
        seconds + attempt_seconds,
        what,
    )


def _detach(
    from_: connection.Connection,
    van: objects.VAN,
    seconds: float,
    attempts: int,
    attempt_seconds: float,
    what: str,
) -> None:
    libvirt = connection.module()
    logger = log.about(LOG, van.instance_uuid, van.uuid)
    from_.run(what, lambda _: _forget(from_, libvirt, van))
    deadline = time.monotonic() + seconds
    for attempt in range(1, attempts + 1):
        if not _is_in(from_, van, what):
            return
        left = min(attempt_seconds, deadline - time.monotonic())
        if left <= 0:
            break
        logger.debug('detach from the guest, attempt %d', attempt)
        if _ask(from_, libvirt, van, left, what):
            logger.info('the guest has let go')
            return
    if _is_in(from_, van, what):
        raise exception.Timeout(
            what=f'{what} ({attempt} attempts); it still has it',
            seconds=seconds - max(0.0, deadline - time.monotonic()),
        )


def _forget(
    from_: connection.Connection, libvirt: Any, van: objects.VAN
) -> None:
    """Take it out of the definition."""
    domain = from_.domain(van.instance_uuid)
    if domain is None:
        return
    with _gone_is_done(libvirt):
        if not domain.isPersistent():
            return
        xml = domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)
        found = domain_xml.find(xml, van)
        if found is not None:
            domain.detachDeviceFlags(
                found.xml, libvirt.VIR_DOMAIN_AFFECT_CONFIG
            )


def _live(from_: connection.Connection, van: objects.VAN) -> Any:
    """(domain, hostdev) of the running guest; None: it does not have it."""
    domain = from_.domain(van.instance_uuid)
    if domain is None:
        return None
    with _gone_is_done(connection.module()):
        if domain.isActive():
            found = domain_xml.find(domain.XMLDesc(0), van)
            if found is not None:
                return domain, found
    return None


def _is_in(from_: connection.Connection, van: objects.VAN, what: str) -> bool:
    return from_.run(what, lambda _: _live(from_, van) is not None)


class _Answer:
    """What the guest says to the removal of one alias."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self.said = threading.Event()

    def callback(
        self, _connection: Any, _domain: Any, alias: str, _: Any
    ) -> None:
        if alias == self.alias:
            self.said.set()


def _ask(
    from_: connection.Connection,
    libvirt: Any,
    van: objects.VAN,
    seconds: float,
    what: str,
) -> bool:
    """Ask the guest once, and wait for its answer.

    :returns: whether it has let go
    """
    deadline = time.monotonic() + seconds
    there = from_.run(what, lambda _: _live(from_, van))
    if there is None:
        return True
    domain, found = there
    alias = found.element.find('alias').get('name')
    answer = _Answer(alias)
    with _listening(from_, libvirt, domain, answer):
        try:
            with _gone_is_done(libvirt):
                domain.detachDeviceFlags(
                    found.xml, libvirt.VIR_DOMAIN_AFFECT_LIVE
                )
        except libvirt.libvirtError as err:
            # libvirtd went away: it may have asked the guest already.
            if not _is_asked(libvirt, err) and not connection.is_broken(err):
                raise exception.HypervisorError(
                    what=what, reason=str(err)
                ) from err
        while _is_in(from_, van, what):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if answer.said.wait(min(left, _LOOK_EVERY)):
                # It said no, or yes: the next look tells.
                return not _is_in(from_, van, what)
    return True


def _is_asked(libvirt: Any, err: Any) -> bool:
    """Whether the guest has been asked before, and has not answered yet."""
    return (
        err.get_error_code() == libvirt.VIR_ERR_INTERNAL_ERROR
        and 'already in the process of unplug' in str(err)
    ) or err.get_error_code() == libvirt.VIR_ERR_OPERATION_TIMEOUT


@contextlib.contextmanager
def _gone_is_done(libvirt: Any) -> Iterator[None]:
    """A domain, or a device in it, that is not there is no error."""
    try:
        yield
    except libvirt.libvirtError as err:
        code = err.get_error_code()
        gone = code in (
            libvirt.VIR_ERR_NO_DOMAIN,
            libvirt.VIR_ERR_DEVICE_MISSING,
        )
        # Before libvirt 4.1, and for some devices since.
        not_found = code in (
            libvirt.VIR_ERR_OPERATION_FAILED,
            libvirt.VIR_ERR_INVALID_ARG,
        ) and 'not found' in str(err)
        # Shut off between the look and the call.
        off = (
            code == libvirt.VIR_ERR_OPERATION_INVALID
            and 'not running' in str(err)
        )
        if not (gone or not_found or off):
            raise


@contextlib.contextmanager
def _listening(
    from_: connection.Connection, libvirt: Any, domain: Any, answer: _Answer
) -> Iterator[None]:
    """Get the events of a domain, from before the guest is asked."""
    opened = domain.connect()
    numbers = []
    try:
        for event in (
            libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_REMOVED,
            libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_REMOVAL_FAILED,
        ):
            # Without events it is looked for now and then.
            with contextlib.suppress(libvirt.libvirtError):
                numbers.append(
                    opened.domainEventRegisterAny(
                        domain, event, answer.callback, None
                    )
                )
        yield
    finally:
        for number in numbers:
            with contextlib.suppress(libvirt.libvirtError):
                opened.domainEventDeregisterAny(number)

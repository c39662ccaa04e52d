# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Detaches a hostdev from a domain and waits until the guest releases it."""

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
from os_acc.devices import waiting

LOG = logging.getLogger(__name__)

# Seconds between two looks at the domain. They are necessary because events
# are lost when libvirtd restarts.
_LOOK_EVERY = 2.0
#: Seconds between two attempts. A guest that refuses now may accept a second
#: later.
PAUSE = 1.0


def detach(
    conn: connection.Connection,
    van: objects.VAN,
    xml: str,
    seconds: float,
    attempts: int,
    attempt_seconds: float,
) -> None:
    """Detach a VAN's device from its instance's domain.

    The device is removed from the guest's definition first, so that it does
    not come back when the guest restarts. A domain that does not exist has
    released the device.

    :param xml: the VAN's <hostdev>
    :param seconds: how long all attempts together may take
    :param attempts: how many times to ask the guest
    :param attempt_seconds: how long to wait for the guest each time
    :raises HypervisorError: if libvirt refuses
    :raises Timeout: if the guest does not release the device in time; the
        guest still has it
    """
    what = f'guest {van.instance_uuid} to release VAN {van.uuid}'
    deadline = time.monotonic() + seconds
    work = Detach(conn, van, xml, deadline, what)
    waiting.at_most(
        lambda: work.run(attempts, attempt_seconds),
        # run() ends earlier by itself, unless a call to libvirt hangs.
        seconds + attempt_seconds,
        what,
    )


class Detach:
    """One detach, with its attempts.

    :param deadline: a time of time.monotonic()
    :param what: what the detach waits for, for messages
    :ivar reason: why the last attempt failed; empty if the guest did not
        answer
    """

    def __init__(
        self,
        conn: connection.Connection,
        van: objects.VAN,
        xml: str,
        deadline: float,
        what: str,
    ) -> None:
        self.conn, self.van, self.xml = conn, van, xml
        self.deadline, self.what = deadline, what
        self.libvirt = connection.module()
        self.logger = log.about(LOG, van.instance_uuid, van.uuid)
        self.reason = ''

    def run(self, attempts: int, attempt_seconds: float) -> None:
        """See detach()."""
        turn = self.conn.turn(self.van.instance_uuid)
        # An attach that outlived its caller's deadline must end first.
        left = max(0.0, self._left())
        if not turn.acquire(timeout=left):
            raise exception.Timeout(
                what=f'an earlier call to libvirt for domain '
                f'{self.van.instance_uuid} to end',
                seconds=round(left, 1),
            )
        try:
            self._run(attempts, attempt_seconds)
        finally:
            turn.release()

    def _left(self) -> float:
        return self.deadline - time.monotonic()

    def _run(self, attempts: int, attempt_seconds: float) -> None:
        begun = time.monotonic()
        libvirt, conn, van = self.libvirt, self.conn, self.van
        conn.run(
            self.what, lambda _: _detach_config(conn, libvirt, van, self.xml)
        )
        for attempt in range(1, attempts + 1):
            if self._left() <= 0:
                break
            self.logger.debug('detach from the guest, attempt %d', attempt)
            if self._ask(min(attempt_seconds, self._left())):
                self.logger.info('the guest has released the device')
                return
            time.sleep(max(0.0, min(PAUSE, self._left())))
        if self.is_attached():
            reason = f': {self.reason}' if self.reason else ''
            raise exception.Timeout(
                what=f'{self.what}; it still has the device after {attempt} '
                f'attempts{reason}',
                seconds=round(time.monotonic() - begun, 1),
            )

    def is_attached(self) -> bool:
        """Whether the running guest has the device."""
        return self.conn.run(
            self.what, lambda _: _live(self.conn, self.van) is not None
        )

    def _is_anothers_live(self, domain: Any) -> bool:
        """Whether the running guest has the device, but not for this VAN."""
        with _gone_is_done(self.libvirt):
            return _is_anothers(domain_xml.of(domain), self.van)
        return True

    def _ask(self, seconds: float) -> bool:
        """Ask the guest once, and wait for its answer.

        :param seconds: how long to wait
        :returns: whether the guest has released the device
        """
        libvirt = self.libvirt
        deadline = time.monotonic() + seconds
        domain = self.conn.domain(self.van.instance_uuid)
        if domain is None:
            return True
        there = self.conn.run(self.what, lambda _: _live(self.conn, self.van))
        if there is None and self._is_anothers_live(domain):
            return True
        # Detach even if the guest does not have the device: libvirtd may
        # still be running an attach of a process that was killed. libvirtd
        # runs this detach after that attach.
        xml = there.xml if there is not None else self.xml
        answer = _Answer(there)
        with _listening(libvirt, domain, answer):
            try:
                with _gone_is_done(libvirt):
                    domain.detachDeviceFlags(
                        xml, libvirt.VIR_DOMAIN_AFFECT_LIVE
                    )
            except libvirt.libvirtError as err:
                # Another attempt can succeed: the guest may be busy or may
                # have been asked before, or libvirtd may be restarting.
                self.reason = str(err)
                self.logger.info('the detach failed for now: %s', err)
                if not _is_asked(libvirt, err) and not connection.is_broken(
                    err
                ):
                    return False
            while self.is_attached():
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                if answer.received.wait(min(left, _LOOK_EVERY)):
                    # The domain shows whether the guest agreed.
                    self.reason = self.reason or 'the guest refused'
                    return not self.is_attached()
        return True


def _detach_config(
    conn: connection.Connection, libvirt: Any, van: objects.VAN, xml: str
) -> None:
    """Remove the device from the guest's definition."""
    domain = conn.domain(van.instance_uuid)
    if domain is None:
        return
    with _gone_is_done(libvirt):
        if not domain.isPersistent():
            return
        there = domain_xml.of(domain, libvirt.VIR_DOMAIN_XML_INACTIVE)
        if _is_anothers(there, van):
            return
        found = domain_xml.find(there, van)
        domain.detachDeviceFlags(
            found.xml if found is not None else xml,
            libvirt.VIR_DOMAIN_AFFECT_CONFIG,
        )


def _is_anothers(root: Any, van: objects.VAN) -> bool:
    """Whether the domain has the device, but not for this VAN.

    The device then has another user alias.
    """
    try:
        domain_xml.check(root, van)
    except exception.DeviceBusy:
        return domain_xml.find(root, van) is None
    return False


def _live(
    conn: connection.Connection, van: objects.VAN
) -> domain_xml.Hostdev | None:
    """Find a VAN's hostdev in the running guest.

    :returns: None if the guest does not run, or does not have the device
    """
    domain = conn.domain(van.instance_uuid)
    if domain is None:
        return None
    with _gone_is_done(connection.module()):
        root = domain_xml.of(domain)
        if domain_xml.is_active(root):
            return domain_xml.find(root, van)
    return None


class _Answer:
    """Waits for libvirt's event about the removal of a hostdev.

    :ivar received: set by the event, whether the guest agreed or refused
    """

    def __init__(self, there: domain_xml.Hostdev | None) -> None:
        alias = there.element.find('alias') if there is not None else None
        self.alias = alias.get('name') if alias is not None else None
        self.received = threading.Event()

    def callback(
        self, _connection: Any, _domain: Any, alias: str, _: Any
    ) -> None:
        if alias == self.alias:
            self.received.set()


def _is_asked(libvirt: Any, err: Any) -> bool:
    """Whether the guest was asked before and has not answered yet."""
    return (
        err.get_error_code() == libvirt.VIR_ERR_INTERNAL_ERROR
        and 'already in the process of unplug' in str(err)
    ) or err.get_error_code() == libvirt.VIR_ERR_OPERATION_TIMEOUT


@contextlib.contextmanager
def _gone_is_done(libvirt: Any) -> Iterator[None]:
    """Ignore errors that mean that the domain or the device is gone."""
    try:
        yield
    except libvirt.libvirtError as err:
        code = err.get_error_code()
        gone = code in (
            libvirt.VIR_ERR_NO_DOMAIN,
            libvirt.VIR_ERR_DEVICE_MISSING,
        )
        # libvirt before 4.1, and later versions for some devices.
        not_found = code in (
            libvirt.VIR_ERR_OPERATION_FAILED,
            libvirt.VIR_ERR_INVALID_ARG,
        ) and 'not found' in str(err)
        # The guest was shut off after the domain was examined.
        off = (
            code == libvirt.VIR_ERR_OPERATION_INVALID
            and 'not running' in str(err)
        )
        if not (gone or not_found or off):
            raise


@contextlib.contextmanager
def _listening(libvirt: Any, domain: Any, answer: _Answer) -> Iterator[None]:
    """Receive a domain's events about removals of devices."""
    opened = domain.connect()
    numbers = []
    try:
        for event in (
            libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_REMOVED,
            libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_REMOVAL_FAILED,
        ):
            # If libvirt delivers no events, _ask() still looks at the domain
            # every few seconds.
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

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
# Between two attempts: what said no at once may say yes in a moment.
PAUSE = 1.0


def detach(
    from_: connection.Connection,
    van: objects.VAN,
    xml: str,
    seconds: float,
    attempts: int,
    attempt_seconds: float,
) -> None:
    """Take a VAN's device out of its instance's domain.

    Out of its definition first: whatever happens to the guest, it does not
    come back with it. A domain that is gone has let go.

    :param xml: its <hostdev>
    :param seconds: for all of it
    :param attempts: how often the guest is asked
    :param attempt_seconds: how long to wait for it each time
    :raises HypervisorError: libvirt refused
    :raises Timeout: the guest does not answer; it still has it
    """
    what = f'guest {van.instance_uuid} to let go of VAN {van.uuid}'
    deadline = time.monotonic() + seconds
    work = _Detach(from_, van, xml, deadline, what)
    waiting.at_most(
        lambda: work.run(attempts, attempt_seconds),
        # It ends by itself before that; this is for a call that does not.
        seconds + attempt_seconds,
        what,
    )


class _Detach:
    """One detach.

    :ivar said: why the guest, or libvirt, did not: the last one
    """

    def __init__(
        self,
        from_: connection.Connection,
        van: objects.VAN,
        xml: str,
        deadline: float,
        what: str,
    ) -> None:
        self.from_, self.van, self.xml = from_, van, xml
        self.deadline, self.what = deadline, what
        self.libvirt = connection.module()
        self.logger = log.about(LOG, van.instance_uuid, van.uuid)
        self.said = ''

    def run(self, attempts: int, attempt_seconds: float) -> None:
        turn = self.from_.turn(self.van.instance_uuid)
        # An attach whose caller has left it comes to its end first.
        if not turn.acquire(timeout=max(0.0, self._left())):
            raise exception.Timeout(
                what=f'an earlier call to libvirt for domain '
                f'{self.van.instance_uuid} to end',
                seconds=0.0,
            )
        try:
            self._run(attempts, attempt_seconds)
        finally:
            turn.release()

    def _left(self) -> float:
        return self.deadline - time.monotonic()

    def _run(self, attempts: int, attempt_seconds: float) -> None:
        begun = time.monotonic()
        libvirt, from_, van = self.libvirt, self.from_, self.van
        from_.run(self.what, lambda _: _forget(from_, libvirt, van, self.xml))
        for attempt in range(1, attempts + 1):
            if self._left() <= 0:
                break
            self.logger.debug('detach from the guest, attempt %d', attempt)
            if self._ask(min(attempt_seconds, self._left())):
                self.logger.info('the guest has let go')
                return
            time.sleep(max(0.0, min(PAUSE, self._left())))
        if self._is_in():
            said = f'; the last answer was: {self.said}' if self.said else ''
            raise exception.Timeout(
                what=f'{self.what} ({attempt} attempts); it still has '
                f'it{said}',
                seconds=round(time.monotonic() - begun, 1),
            )

    def _is_in(self) -> bool:
        return self.from_.run(
            self.what, lambda _: _live(self.from_, self.van) is not None
        )

    def _is_anothers_live(self, domain: Any) -> bool:
        with _gone_is_done(self.libvirt):
            return _is_anothers(domain_xml.of(domain), self.van)
        return True

    def _ask(self, seconds: float) -> bool:
        """Ask the guest once, and wait for its answer.

        :returns: whether it has let go
        """
        libvirt = self.libvirt
        deadline = time.monotonic() + seconds
        domain = self.from_.domain(self.van.instance_uuid)
        if domain is None:
            return True
        there = self.from_.run(
            self.what, lambda _: _live(self.from_, self.van)
        )
        if there is None and self._is_anothers_live(domain):
            return True
        # Also where it is not seen: a call of a process that was killed may
        # be under way in libvirtd, and this one comes after it.
        xml = there.xml if there is not None else self.xml
        answer = _Answer(there)
        with _listening(libvirt, domain, answer):
            try:
                with _gone_is_done(libvirt):
                    domain.detachDeviceFlags(
                        xml, libvirt.VIR_DOMAIN_AFFECT_LIVE
                    )
            except libvirt.libvirtError as err:
                # Asked already, busy, or libvirtd went away: not for good.
                self.said = str(err)
                self.logger.info('detach: %s', err)
                if not _is_asked(libvirt, err) and not connection.is_broken(
                    err
                ):
                    return False
            while self._is_in():
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                if answer.said.wait(min(left, _LOOK_EVERY)):
                    # It said no, or yes: the next look tells.
                    self.said = self.said or 'it refused'
                    return not self._is_in()
        return True


def _forget(
    from_: connection.Connection, libvirt: Any, van: objects.VAN, xml: str
) -> None:
    """Take it out of the definition."""
    domain = from_.domain(van.instance_uuid)
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
    """Whether the device is there under an alias of somebody else."""
    try:
        domain_xml.check(root, van)
    except exception.DeviceBusy:
        return domain_xml.find(root, van) is None
    return False


def _live(
    from_: connection.Connection, van: objects.VAN
) -> domain_xml.Hostdev | None:
    """What the running guest has of a VAN."""
    domain = from_.domain(van.instance_uuid)
    if domain is None:
        return None
    with _gone_is_done(connection.module()):
        root = domain_xml.of(domain)
        if domain_xml.is_active(root):
            return domain_xml.find(root, van)
    return None


class _Answer:
    """What the guest says to the removal of a device."""

    def __init__(self, there: domain_xml.Hostdev | None) -> None:
        alias = there.element.find('alias') if there is not None else None
        self.alias = alias.get('name') if alias is not None else None
        self.said = threading.Event()

    def callback(
        self, _connection: Any, _domain: Any, alias: str, _: Any
    ) -> None:
        if alias == self.alias:
            self.said.set()


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
def _listening(libvirt: Any, domain: Any, answer: _Answer) -> Iterator[None]:
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

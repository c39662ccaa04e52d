# SPDX-License-Identifier: Apache-2.0

"""Detaches a hostdev from a domain and waits until the guest releases it.

What a second request does while the guest still works on the first one, as
hw/pci/pcie.c, hw/acpi/pcihp.c and qmp_device_del() in QEMU have it:

* PCIe hot-plug (pciehp in Linux). The guest's indicator blinks for five
  seconds of the guest's time before the guest powers the slot off. Before QEMU
  5.0, a second request in this time cancels the first. From 5.0 on, QEMU
  answers "already in the process of unplug"; before 6.2 it does so until the
  guest has answered. From 6.2 on, it does so for five seconds, and after that
  answers "guest is busy (power indicator blinking)" as long as the indicator
  blinks. It also blinks while the guest powers a new device on.
* ACPI hot-plug (acpiphp in Linux), the default of q35 since QEMU 6.1. The
  guest has no such delay, and a further request does no harm. QEMU 6.2 to 8.0
  answers "already in the process of unplug" until the guest has answered; its
  stable updates and all other versions pass the request on again.

Under load a guest can take many times longer than its five seconds. So each
request gets twice the time of the one before it.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import enum
import logging
import threading
import time
from typing import Any

from acc_plug_libvirt import connection
from acc_plug_libvirt import domain_xml
from os_acc import exception
from os_acc import log
from os_acc import objects

LOG = logging.getLogger(__name__)

# Seconds between two looks at the domain. They are necessary because events
# are lost when libvirtd restarts.
_LOOK_EVERY = 2.0
#: Seconds between a refusal and the next request. The pause doubles with each
#: refusal. A guest that refuses now may accept a second later.
PAUSE = 1.0


class Outcome(enum.Enum):
    """The result of a request to release a device. The value is a clause."""

    RELEASED = 'it has released the device'
    SILENT = 'it has the request, but has not answered'
    WORKING = (
        'it is still working on a request (its power indicator is blinking)'
    )
    REFUSED = 'it refused'


_ADVICE = {
    Outcome.SILENT: 'Wait and unplug again. If the guest still does not '
    'answer, check that its hot-plug driver is loaded (acpiphp or pciehp in '
    'Linux), or shut it down and unplug again',
    Outcome.WORKING: 'Wait and unplug again',
    Outcome.REFUSED: 'Unplug again later, or shut the guest down and unplug '
    'again',
}


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
    :param attempts: how many times to ask the guest at most
    :param attempt_seconds: how long to wait for the guest the first time;
        each further time twice as long
    :raises HypervisorError: if libvirt refuses
    :raises Timeout: if the guest does not release the device in time; the
        guest still has it
    """
    what = f'guest {van.instance_uuid} to release VAN {van.uuid}'
    deadline = time.monotonic() + seconds
    work = Detach(conn, van, xml, deadline, what)
    conn.turns.run(
        f'domain {van.instance_uuid}',
        # It ends by itself at the deadline, unless a call to libvirt hangs.
        lambda _: work.run(attempts, attempt_seconds),
        seconds + attempt_seconds,
        what,
        turn_seconds=seconds,
        logger=work.logger,
    )


class Detach:
    """One detach, with its attempts.

    :param deadline: a time of time.monotonic()
    :param what: what the detach waits for, for messages
    :ivar outcome: of the last attempt
    :ivar reason: the last error of libvirt; empty if there was none
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
        self.outcome = Outcome.SILENT
        self.reason = ''

    def run(self, attempts: int, attempt_seconds: float) -> None:
        """See detach()."""
        begun = time.monotonic()
        libvirt, conn, van = self.libvirt, self.conn, self.van
        conn.run(
            self.what, lambda _: _detach_config(conn, libvirt, van, self.xml)
        )
        tried = self._ask_until_released(attempts, attempt_seconds)
        if self.outcome is Outcome.RELEASED or not self.is_attached():
            self.logger.info('the guest has released the device')
            return
        raise exception.Timeout(
            what=f'{self.what}; it still has the device after {tried} '
            f'attempts: {self._explanation()}',
            seconds=round(time.monotonic() - begun, 1),
        )

    def _left(self) -> float:
        return self.deadline - time.monotonic()

    def _ask_until_released(
        self, attempts: int, attempt_seconds: float
    ) -> int:
        """Ask the guest again and again.

        An attempt that finds the guest working does not count, because QEMU
        has not passed it on to the guest.

        :returns: the number of all attempts
        """
        tried, counted, wait, pause = 0, 0, attempt_seconds, PAUSE
        while counted < attempts and self._left() > 0:
            tried += 1
            self.logger.debug('detach from the guest, attempt %d', tried)
            # A last attempt with less time than this one would only disturb.
            last = self._left() - wait < wait
            self.outcome = self._ask(self._left() if last else wait, pause)
            if self.outcome is Outcome.RELEASED:
                break
            counted += self.outcome is not Outcome.WORKING
            if self.outcome is Outcome.SILENT:
                wait, pause = wait * 2, PAUSE
                continue
            if self.outcome is Outcome.REFUSED and counted < attempts:
                time.sleep(max(0.0, min(pause, self._left())))
            pause *= 2
        return tried

    def _explanation(self) -> str:
        """Why the guest still has the device, and what to do about it."""
        if self._is_paused():
            return 'it is paused. Resume it and unplug again'
        reason = f' ({self.reason})' if self.reason else ''
        return f'{self.outcome.value}{reason}. {_ADVICE[self.outcome]}'

    def _is_paused(self) -> bool:
        libvirt = self.libvirt
        domain = self.conn.domain(self.van.instance_uuid)
        # The domain may be gone by now.
        with contextlib.suppress(libvirt.libvirtError):
            return domain is not None and domain.state()[0] in (
                libvirt.VIR_DOMAIN_PAUSED,
                libvirt.VIR_DOMAIN_PMSUSPENDED,
            )
        return False

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

    def _ask(self, seconds: float, working_seconds: float) -> Outcome:
        """Ask the guest once, and wait for its answer.

        :param seconds: how long to wait
        :param working_seconds: how long to wait instead if QEMU answers that
            the guest is working on something
        """
        libvirt = self.libvirt
        domain = self.conn.domain(self.van.instance_uuid)
        if domain is None:
            return Outcome.RELEASED
        there = self.conn.run(self.what, lambda _: _live(self.conn, self.van))
        if there is None and self._is_anothers_live(domain):
            return Outcome.RELEASED
        # Detach even if the guest does not have the device: libvirtd may
        # still be running an attach of a process that was killed. libvirtd
        # runs this detach after that attach.
        xml = there.xml if there is not None else self.xml
        answer = _Answer(there)
        deadline = min(time.monotonic() + seconds, self.deadline)
        with _listening(libvirt, domain, answer):
            outcome, self.reason = Outcome.SILENT, ''
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
                outcome = _outcome(libvirt, err)
                if outcome is Outcome.REFUSED:
                    return outcome
                if outcome is Outcome.WORKING:
                    deadline = min(
                        time.monotonic() + working_seconds, self.deadline
                    )
            return self._await(answer, deadline, outcome)

    def _await(
        self, answer: _Answer, deadline: float, outcome: Outcome
    ) -> Outcome:
        """Wait for the guest's answer.

        :returns: the given outcome if there is no answer
        """
        while self.is_attached():
            left = deadline - time.monotonic()
            if left <= 0:
                return outcome
            if answer.received.wait(min(left, _LOOK_EVERY)):
                # The domain shows whether the guest agreed.
                if self.is_attached():
                    return Outcome.REFUSED
                break
        return Outcome.RELEASED


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


def _outcome(libvirt: Any, err: Any) -> Outcome:
    """What libvirt's error says about the guest."""
    code, text = err.get_error_code(), str(err)
    if code == libvirt.VIR_ERR_INTERNAL_ERROR:
        if 'power indicator blinking' in text:
            return Outcome.WORKING
        # The guest was asked before and has not answered yet.
        if 'already in the process of unplug' in text:
            return Outcome.SILENT
    if code == libvirt.VIR_ERR_OPERATION_TIMEOUT or connection.is_broken(err):
        return Outcome.SILENT
    return Outcome.REFUSED


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

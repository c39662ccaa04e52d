# SPDX-License-Identifier: Apache-2.0

"""A fake module libvirt, for errors and events that the lab cannot force.

Its numbers are libvirt's: see tests/functional/test_libvirt_numbers.py.
"""

from __future__ import annotations

from collections.abc import Callable
import threading
import time
from typing import Any

from lxml import etree

VIR_ERR_INTERNAL_ERROR = 1
VIR_ERR_NO_CONNECT = 5
VIR_ERR_INVALID_CONN = 6
VIR_ERR_INVALID_ARG = 8
VIR_ERR_OPERATION_FAILED = 9
VIR_ERR_SYSTEM_ERROR = 38
VIR_ERR_NO_DOMAIN = 42
VIR_ERR_OPERATION_INVALID = 55
VIR_ERR_OPERATION_TIMEOUT = 68
VIR_ERR_DEVICE_MISSING = 99
VIR_FROM_NONE = 0
VIR_FROM_RPC = 7
VIR_FROM_QEMU = 10
VIR_FROM_REMOTE = 13
VIR_DOMAIN_AFFECT_LIVE = 1
VIR_DOMAIN_AFFECT_CONFIG = 2
VIR_DOMAIN_XML_SECURE = 1
VIR_DOMAIN_XML_INACTIVE = 2
VIR_DOMAIN_XML_MIGRATABLE = 8
VIR_DOMAIN_UNDEFINE_KEEP_NVRAM = 8
VIR_MIGRATE_LIVE = 1
VIR_MIGRATE_PEER2PEER = 2
VIR_MIGRATE_PERSIST_DEST = 8
VIR_MIGRATE_UNDEFINE_SOURCE = 16
VIR_DOMAIN_JOB_NONE = 0
VIR_DOMAIN_RUNNING = 1
VIR_DOMAIN_PAUSED = 3
VIR_DOMAIN_SHUTOFF = 5
VIR_DOMAIN_CRASHED = 6
VIR_DOMAIN_PMSUSPENDED = 7
VIR_DOMAIN_EVENT_ID_DEVICE_REMOVED = 15
VIR_DOMAIN_EVENT_ID_DEVICE_REMOVAL_FAILED = 22

NUMBERS = {
    name: value
    for name, value in dict(globals()).items()
    if name.startswith('VIR_')
}


class libvirtError(Exception):  # noqa: N801
    def __init__(
        self, text: str, code: int, domain: int = VIR_FROM_QEMU
    ) -> None:
        super().__init__(text)
        self._code, self._domain = code, domain

    def get_error_code(self) -> int:
        return self._code

    def get_error_domain(self) -> int:
        return self._domain


def broken() -> libvirtError:
    return libvirtError(
        'internal error: client socket is closed',
        VIR_ERR_INTERNAL_ERROR,
        VIR_FROM_RPC,
    )


def _alias(element: etree._Element) -> str | None:
    """The user's alias: libvirt replaces all others."""
    alias = element.find('alias')
    name = alias.get('name') if alias is not None else ''
    return name if name.startswith('ua-') else None


def _source(element: etree._Element) -> list[str | int]:
    if element.tag == 'disk':
        # libvirt compares the targets only.
        return [element.find('target').get('dev')]
    address = element.find('source/address')
    return [
        value if name == 'uuid' else int(value, 0)
        for name, value in sorted(address.attrib.items())
        if name != 'type'
    ]


class Daemon:
    """libvirtd.

    :ivar calls: the calls on domains: (call, flags)
    :ivar script: by call, what to do instead, one item for each call: an
        error to raise, or a function that takes the domain and the hostdev
    """

    def __init__(self) -> None:
        self.domains: dict[str, Domain] = {}
        self.calls: list[tuple[str, int]] = []
        self.script: dict[str, list[Any]] = {}
        self.up = True
        self.opened = 0

    def domain(self, uuid: str, **kwargs: Any) -> Domain:
        made = Domain(self, uuid, **kwargs)
        self.domains[uuid] = made
        return made

    def next(self, call: str) -> Any:
        left = self.script.get(call)
        return left.pop(0) if left else None


class Connection:
    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.alive = True
        self.listeners: dict[int, tuple[Any, int, Callable[..., None]]] = {}
        daemon.opened += 1

    def isAlive(self) -> bool:
        return self.alive and self.daemon.up

    def getLibVersion(self) -> int:
        return 9000000

    def numOfDomains(self) -> int:
        return len(self.daemon.domains)

    def setKeepAlive(self, interval: int, count: int) -> None:
        pass

    def close(self) -> None:
        self.alive = False

    def lookupByUUIDString(self, uuid: str) -> Domain:
        self._answer()
        if uuid not in self.daemon.domains:
            raise libvirtError('Domain not found', VIR_ERR_NO_DOMAIN)
        found = self.daemon.domains[uuid]
        found.connection = self
        return found

    def listAllDomains(self, flags: int) -> list[Domain]:
        self._answer()
        for each in self.daemon.domains.values():
            each.connection = self
        return list(self.daemon.domains.values())

    def _answer(self) -> None:
        error = self.daemon.next('lookup')
        if error is not None:
            self.alive = False
            raise error

    def domainEventRegisterAny(
        self, domain: Domain, event: int, callback: Any, opaque: Any
    ) -> int:
        number = len(self.listeners)
        self.listeners[number] = (domain, event, callback)
        return number

    def domainEventDeregisterAny(self, number: int) -> None:
        del self.listeners[number]

    def tell(self, domain: Domain, event: int, alias: str) -> None:
        for wanted, number, callback in list(self.listeners.values()):
            if wanted is domain and number == event:
                callback(self, domain, alias, None)


class Domain:
    def __init__(
        self,
        daemon: Daemon,
        uuid: str,
        active: bool = True,
        persistent: bool = True,
        name: str = 'guest',
    ) -> None:
        self.daemon, self.uuid, self._name = daemon, uuid, name
        self.active, self.persistent = active, persistent
        self.paused = False
        self.job = VIR_DOMAIN_JOB_NONE
        self.answers = True
        self.live: list[etree._Element] = []
        self.config: list[etree._Element] = []
        self.connection: Connection | None = None

    def connect(self) -> Connection | None:
        return self.connection

    def isPersistent(self) -> bool:
        return self.persistent

    def ID(self) -> int:
        return 1 if self.active else -1

    def UUIDString(self) -> str:
        return self.uuid

    def name(self) -> str:
        return self._name

    def state(self) -> list[int]:
        if not self.active:
            return [VIR_DOMAIN_SHUTOFF, 0]
        return [VIR_DOMAIN_PAUSED if self.paused else VIR_DOMAIN_RUNNING, 0]

    def jobInfo(self) -> list[int]:
        return [self.job]

    def XMLDesc(self, flags: int) -> str:
        root = etree.Element('domain')
        if self.active and not flags & VIR_DOMAIN_XML_INACTIVE:
            root.set('id', '1')
        devices = etree.SubElement(root, 'devices')
        inactive = flags & VIR_DOMAIN_XML_INACTIVE or not self.active
        for each in self.config if inactive else self.live:
            devices.append(etree.fromstring(etree.tostring(each)))
        return etree.tostring(root, encoding='unicode')

    def attachDeviceFlags(self, xml: str, flags: int) -> None:
        self.daemon.calls.append(('attach', flags))
        act = self.daemon.next('attach')
        if isinstance(act, Exception):
            raise act
        if act is not None:
            act(self, etree.fromstring(xml))
            return
        element = etree.fromstring(xml)
        self._check_new(element, flags)
        self.add(element, flags)

    def _check_new(self, element: etree._Element, flags: int) -> None:
        """The checks of qemuDomainAttachDeviceLiveAndConfig."""
        if flags & VIR_DOMAIN_AFFECT_LIVE and not self.active:
            raise libvirtError(
                'domain is not running', VIR_ERR_OPERATION_INVALID
            )
        if flags & VIR_DOMAIN_AFFECT_CONFIG and not self.persistent:
            raise libvirtError(
                'transient domains do not have any persistent config',
                VIR_ERR_OPERATION_INVALID,
            )
        for which, there in (
            (VIR_DOMAIN_AFFECT_CONFIG, self.config),
            (VIR_DOMAIN_AFFECT_LIVE, self.live),
        ):
            for each in there if flags & which else []:
                if _alias(each) == _alias(element) is not None:
                    raise libvirtError(
                        f'non unique alias detected: {_alias(each)}',
                        VIR_ERR_OPERATION_FAILED,
                    )
                if _source(each) == _source(element):
                    raise libvirtError(
                        'device is in use, or in the configuration, already',
                        VIR_ERR_OPERATION_INVALID,
                    )

    def add(self, element: etree._Element, flags: int) -> None:
        if flags & VIR_DOMAIN_AFFECT_LIVE:
            self.live.append(element)
        if flags & VIR_DOMAIN_AFFECT_CONFIG:
            self.config.append(element)

    def detachDeviceFlags(self, xml: str, flags: int) -> None:
        self.daemon.calls.append(('detach', flags))
        element = etree.fromstring(xml)
        act = self.daemon.next('detach')
        if act is None:
            self._check_there(element, flags)
        if act is None and flags & VIR_DOMAIN_AFFECT_CONFIG:
            self.drop(self.config, element)
            return
        if isinstance(act, Exception):
            raise act
        if act is not None:
            act(self, element)
            return
        if self.answers:
            self.let_go(element)

    def _check_there(self, element: etree._Element, flags: int) -> None:
        live = flags & VIR_DOMAIN_AFFECT_LIVE
        if live and not self.active:
            raise libvirtError(
                'domain is not running', VIR_ERR_OPERATION_INVALID
            )
        for each in self.live if live else self.config:
            if _source(each) == _source(element):
                return
        raise libvirtError('device not found', VIR_ERR_DEVICE_MISSING)

    def shut_off(self) -> None:
        """The guest ends. A transient domain would be gone."""
        self.active, self.live = False, []

    def drop(self, where: list[etree._Element], which: Any) -> None:
        name = which.find('alias').get('name')
        where[:] = [e for e in where if e.find('alias').get('name') != name]

    def let_go(self, element: etree._Element) -> None:
        """The guest releases the device."""
        self.drop(self.live, element)
        self._tell(VIR_DOMAIN_EVENT_ID_DEVICE_REMOVED, element)

    def refuse(self, element: etree._Element) -> None:
        self._tell(VIR_DOMAIN_EVENT_ID_DEVICE_REMOVAL_FAILED, element)

    def later(self, seconds: float, act: Callable[[Any], None]) -> Any:
        """Do something after the call has returned."""

        def begin(_domain: Domain, element: Any) -> None:
            timer = threading.Timer(seconds, act, (element,))
            timer.daemon = True
            timer.start()

        return begin

    def _tell(self, event: int, element: etree._Element) -> None:
        assert self.connection is not None
        name = element.find('alias').get('name')
        self.connection.tell(self, event, name)


class Clock:
    """Replaces the modules time and threading in the module under test.

    Time passes only while somebody waits.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._acts: list[tuple[float, Callable[[], None]]] = []

    def monotonic(self) -> float:
        return self.now

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """Do something when that time has passed."""
        self._acts.append((self.now + seconds, act))
        self._acts.sort(key=lambda each: each[0])

    def sleep(self, seconds: float) -> None:
        self.wait_for(lambda: False, seconds)

    def wait_for(self, check: Callable[[], bool], seconds: float) -> bool:
        end = self.now + seconds
        while not check() and self._acts and self._acts[0][0] <= end:
            self.now, act = self._acts.pop(0)
            act()
        if check():
            return True
        self.now = end
        return False

    def Event(self) -> ClockEvent:
        return ClockEvent(self)


class ClockEvent:
    def __init__(self, clock: Clock) -> None:
        self._clock, self._is_set = clock, False

    def set(self) -> None:
        self._is_set = True

    def wait(self, timeout: float) -> bool:
        return self._clock.wait_for(lambda: self._is_set, timeout)


class PcieSlot:
    """A slot of PCIe hot-plug: what QEMU and Linux's pciehp do on requests.

    See hw/pci/pcie.c and qmp_device_del() in QEMU, and pciehp_ctrl.c in
    Linux.

    :param version: of QEMU
    :param blink: how many seconds the indicator blinks before the guest
        releases the device: 5 if the guest is not slow
    :ivar requests: when QEMU has accepted a request
    """

    def __init__(
        self, clock: Clock, version: tuple[int, int], blink: float = 5.0
    ) -> None:
        self.clock, self.version, self.blink = clock, version, blink
        self.requests: list[float] = []
        self._asked_until: float | None = None
        self._blinking: object = None

    def blink_for(self, seconds: float) -> None:
        """The guest powers a new device on."""
        mine = self._blinking = object()
        self.clock.after(seconds, lambda: self._end(mine, lambda: None))

    def ask(self, domain: Domain, element: etree._Element) -> None:
        """Act on device_del."""
        now = self.clock.now
        if self.version >= (5, 0) and (
            self._asked_until is not None and now < self._asked_until
        ):
            self._refuse('Device ua is already in the process of unplug')
        if self.version >= (6, 2):
            if self._blinking:
                self._refuse(
                    'Hot-unplug failed: guest is busy (power indicator '
                    'blinking)'
                )
            self._asked_until = now + 5
        else:
            self._asked_until = float('inf')
        self.requests.append(now)
        if self._blinking:
            # The attention button, pressed again: the guest cancels.
            self._blinking = None
            return
        mine = self._blinking = object()
        self.clock.after(
            self.blink,
            lambda: self._end(mine, lambda: domain.let_go(element)),
        )

    def _end(self, mine: object, act: Callable[[], None]) -> None:
        if self._blinking is mine:
            self._blinking = None
            act()

    @staticmethod
    def _refuse(text: str) -> None:
        raise libvirtError(
            "internal error: unable to execute QEMU command 'device_del': "
            + text,
            VIR_ERR_INTERNAL_ERROR,
        )


class Module:
    """Replaces the module libvirt in sys.modules."""

    libvirtError = libvirtError  # noqa: N815

    def __init__(self) -> None:
        self.daemon = Daemon()
        for name, value in NUMBERS.items():
            setattr(self, name, value)

    def open(self, uri: str) -> Connection:
        if not self.daemon.up:
            raise libvirtError(
                'Failed to connect socket', VIR_ERR_SYSTEM_ERROR, VIR_FROM_RPC
            )
        return Connection(self.daemon)

    openReadOnly = open  # noqa: A003, N815

    def virEventRegisterDefaultImpl(self) -> None:
        pass

    def virEventRunDefaultImpl(self) -> None:
        time.sleep(3600)

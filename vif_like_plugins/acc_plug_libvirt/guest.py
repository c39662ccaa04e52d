# SPDX-License-Identifier: Apache-2.0

"""Moves a domain to another libvirt."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence
import contextlib
import logging
import threading
import time
from typing import Any
from urllib import parse

from acc_plug_libvirt import connection
from acc_plug_libvirt import domain_xml
from acc_plug_libvirt import moving
from acc_plug_libvirt import moving_obstacles
from os_acc import exception
from os_acc import guest_move
from os_acc import log
from os_acc import objects
from os_acc.texts import ways

LOG = logging.getLogger(__name__)

# Seconds between two looks at a domain, and between two requests to a guest
# that has not shut down: it may ignore one while it boots.
_LOOK = 0.2
_ASK_AGAIN = 10.0
# Seconds that libvirt may take to give up a migration.
_GIVE_UP = 60.0


def target_uri(own: str, target: str) -> str:
    """The URI of the libvirt on another host.

    :param own: that of this host, such as qemu:///system
    :param target: ssh://[user@]host[:port], or the URI itself
    """
    found = parse.urlsplit(target)
    if found.scheme != 'ssh':
        return target
    mine = parse.urlsplit(own)
    driver = mine.scheme.partition('+')[0]
    return f'{driver}+ssh://{found.netloc}{mine.path}'


class LibvirtGuest(guest_move.GuestMove):
    """A domain that moves.

    :param source: the connection to this host's libvirt
    :param target: the one to the other host's
    :param info: the instance, whose UUID the domain has
    :raises MigrationConflict: if there is no such domain
    :raises HypervisorError: if libvirt does not answer
    """

    def __init__(
        self,
        source: connection.Connection,
        target: connection.Connection,
        info: objects.InstanceInfo,
    ) -> None:
        self._source, self._target = source, target
        self._uuid: str = info.uuid
        self._log = log.about(LOG, info.uuid)
        domain = source.domain(info.uuid)
        if domain is None:
            raise exception.MigrationConflict(
                instance=info.uuid, reason=f'{source.uri} has no such domain'
            )
        with self._errors('look at'):
            self.runs = bool(domain.isActive())
            self._is_persistent = bool(domain.isPersistent())
            self._starts_itself = self._is_persistent and domain.autostart()

    def obstacles(
        self, way: str, vans: Sequence[objects.VAN]
    ) -> Collection[str]:
        with self._errors('look at'):
            here = self._here()
            found = moving_obstacles.of_domain(here, way, vans)
            found += self._target.run(
                f'look at {self._target.uri}',
                lambda opened: moving_obstacles.of_target(opened, here),
            )
        return found

    def shared_files(self, way: str) -> Collection[str]:
        with self._errors('look at'):
            root = domain_xml.of(self._here(), self._inactive(way))
        return moving_obstacles.shared_files(root, way)

    def carry(
        self,
        vans_source: Sequence[objects.VAN],
        vans_target: Sequence[objects.VAN],
        seconds: float,
        stopped: Callable[[], bool],
    ) -> None:
        libvirt = connection.module()
        flags = libvirt.VIR_MIGRATE_LIVE | libvirt.VIR_MIGRATE_PEER2PEER
        if self._is_persistent:
            flags |= libvirt.VIR_MIGRATE_PERSIST_DEST
            flags |= libvirt.VIR_MIGRATE_UNDEFINE_SOURCE
        ended = threading.Event()
        failed: list[Exception] = []

        def migrate() -> None:
            try:
                with self._errors('move'):
                    self._here().migrateToURI3(
                        self._target.uri,
                        self._definitions(vans_source, vans_target),
                        flags,
                    )
            except Exception as err:
                failed.append(err)
            ended.set()

        threading.Thread(
            target=migrate, name='os-acc move', daemon=True
        ).start()
        self._wait(ended, seconds, stopped)
        if failed:
            raise failed[0]

    def _wait(
        self,
        ended: threading.Event,
        seconds: float,
        stopped: Callable[[], bool],
    ) -> None:
        """Wait for the end of a migration, and make libvirt give it up."""
        libvirt = connection.module()
        start = time.monotonic()
        giving_up: float | None = None
        while not ended.wait(_LOOK):
            now = time.monotonic()
            if giving_up is None and (stopped() or now > start + seconds):
                giving_up = now
                self._log.warning('libvirt is asked to give up the move')
            if giving_up is None:
                continue
            if now > giving_up + _GIVE_UP:
                raise exception.Timeout(
                    what=f'libvirt to give up the move of domain {self._uuid}',
                    seconds=_GIVE_UP,
                )
            # It may refuse: the job has not begun, or is in its last step.
            with contextlib.suppress(libvirt.libvirtError, AttributeError):
                self._source.domain(self._uuid).abortJob()

    def _definitions(
        self,
        vans_source: Sequence[objects.VAN],
        vans_target: Sequence[objects.VAN],
    ) -> dict[str, str]:
        """The domain's XML for the target: what runs, and what is kept.

        :returns: by libvirt's names; none if the domain moves without devices
        :raises MigrationConflict: see _redefined()
        """
        libvirt, here = connection.module(), self._here()
        common = libvirt.VIR_DOMAIN_XML_SECURE
        kept = libvirt.VIR_DOMAIN_XML_INACTIVE
        made = {
            libvirt.VIR_MIGRATE_PARAM_DEST_XML: here.XMLDesc(
                common | libvirt.VIR_DOMAIN_XML_MIGRATABLE
            )
        }
        if self._is_persistent:
            made[libvirt.VIR_MIGRATE_PARAM_PERSIST_XML] = here.XMLDesc(
                common | kept
            )
        made = {
            name: self._redefined(xml, vans_source, vans_target)
            for name, xml in made.items()
        }
        return made if vans_target else {}

    def _redefined(
        self,
        xml: str,
        vans_source: Sequence[objects.VAN],
        vans_target: Sequence[objects.VAN],
    ) -> str:
        """The domain's XML with the devices of the target.

        :raises MigrationConflict: if it has others of this host: somebody has
            attached them since obstacles() was asked
        """
        others = moving_obstacles.others(domain_xml.parse(xml), vans_source)
        if reasons := list(others):
            raise exception.MigrationConflict(
                instance=self._uuid, reason='; '.join(reasons)
            )
        changes = moving.migration_map(vans_source, vans_target)
        return moving.redefine(xml, changes)

    def where(self) -> str | None:
        """See GuestMove: who runs it is asked of both, and not assumed.

        A domain that a migration has left paused, without a job, is nobody's:
        what the target has says whether it goes on here.
        """
        deadline = time.monotonic() + _GIVE_UP
        while time.monotonic() < deadline:
            try:
                if (found := self._where()) is not None:
                    return found
            except Exception as err:
                self._log.error(
                    'where the guest runs is not known: %s',
                    exception.describe(err),
                )
                return None
            time.sleep(_LOOK)
        return None

    def _where(self) -> str | None:
        """One look; None: it is under way."""
        libvirt = connection.module()
        here = self._source.domain(self._uuid)
        with self._errors('look at'):
            if here is not None and here.isActive():
                if here.jobInfo()[0] != libvirt.VIR_DOMAIN_JOB_NONE:
                    return None
                if here.state()[0] != libvirt.VIR_DOMAIN_PAUSED:
                    return guest_move.SOURCE
            there = self._target.domain(self._uuid)
            runs_there = there is not None and there.isActive()
            if runs_there and there.state()[0] != libvirt.VIR_DOMAIN_RUNNING:
                return None
            if here is None or not here.isActive():
                return guest_move.TARGET if runs_there else guest_move.SOURCE
            if runs_there:
                self._log.warning('the domain runs on the target: ended here')
                here.destroy()
                if self._is_persistent:
                    self.forget()
                return guest_move.TARGET
            here.resume()
            return guest_move.SOURCE

    def define(
        self,
        vans_source: Sequence[objects.VAN],
        vans_target: Sequence[objects.VAN],
    ) -> None:
        libvirt = connection.module()
        with self._errors('look at'):
            xml = self._here().XMLDesc(
                libvirt.VIR_DOMAIN_XML_INACTIVE | libvirt.VIR_DOMAIN_XML_SECURE
            )
        made = self._redefined(xml, vans_source, vans_target)
        self._target.run(
            f'define domain {self._uuid} on {self._target.uri}',
            lambda opened: opened.defineXML(made),
        )

    def discard(self) -> None:
        there = self._target.domain(self._uuid)
        with self._errors('remove', self._target):
            if there is not None and not there.isActive():
                _undefine(there)

    def stop(self, seconds: float, stopped: Callable[[], bool]) -> None:
        with self._errors('stop'):
            domain = self._here()
            if self._starts_itself:
                domain.setAutostart(0)
            start = time.monotonic()
            asked: float | None = None
            while domain.isActive():
                now = time.monotonic()
                if stopped():
                    raise KeyboardInterrupt
                if now > start + seconds:
                    raise exception.Timeout(
                        what=f'the guest of domain {self._uuid} to shut down',
                        seconds=seconds,
                    )
                if asked is None or now > asked + _ASK_AGAIN:
                    asked = now
                    domain.shutdown()
                time.sleep(_LOOK)

    def restart(self) -> None:
        with self._errors('start'):
            domain = self._here()
            if self._starts_itself:
                domain.setAutostart(1)
            if self.runs and not domain.isActive():
                domain.create()

    def forget(self) -> None:
        with self._errors('remove'):
            if (domain := self._source.domain(self._uuid)) is None:
                return
            # libvirt would make a running domain transient.
            if domain.isActive():
                raise exception.HypervisorError(
                    what=f'remove domain {self._uuid}',
                    reason=f'it runs on {self._source.uri}: somebody has '
                    'started it again',
                )
            _undefine(domain)

    def start(self) -> None:
        with self._errors('start', self._target):
            domain = self._target.domain(self._uuid)
            if domain is None:
                raise exception.HypervisorError(
                    what=f'start domain {self._uuid}',
                    reason=f'{self._target.uri} has no such domain',
                )
            if self._starts_itself:
                domain.setAutostart(1)
            if self.runs and not domain.isActive():
                domain.create()

    def _here(self) -> Any:
        """The domain on this host.

        :raises HypervisorError: if it is gone
        """
        domain = self._source.domain(self._uuid)
        if domain is None:
            raise exception.HypervisorError(
                what=f'domain {self._uuid}', reason='it is gone'
            )
        return domain

    def _inactive(self, way: str) -> int:
        """Which XML counts: that of the definition if the guest is stopped."""
        if way != ways.COLD or not self._is_persistent:
            return 0
        flag: int = connection.module().VIR_DOMAIN_XML_INACTIVE
        return flag

    def _errors(
        self, act: str, of: connection.Connection | None = None
    ) -> contextlib.AbstractContextManager[None]:
        uri = (of or self._source).uri
        return connection.errors(f'{act} domain {self._uuid} of {uri}')


def _undefine(domain: Any) -> None:
    """Remove a definition. Files of the guest stay: others may share them."""
    libvirt = connection.module()
    domain.undefineFlags(libvirt.VIR_DOMAIN_UNDEFINE_KEEP_NVRAM)

# SPDX-License-Identifier: Apache-2.0

"""A simulated NovaLink on the loopback, which speaks REST with pypowervm.

It serves the samples of pypowervm, one managed system with 20 slots and 21
LPARs, and keeps changes in memory. As on a real NovaLink a slot has one owner.
As an HMC it can have several managed systems, and a log-on with a password.
How NovaLink refuses a slot that does not exist or has another owner is a guess
(500 and a message).
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import copy
import dataclasses
import itertools
import pathlib
import re
import tempfile
import threading
from urllib import parse
import uuid

from lxml import etree
import novalink_http
import novalink_xml as xml
from pypowervm import adapter
from pypowervm import const
from pypowervm.helpers import log_helper
from pypowervm.helpers import vios_busy
from pypowervm.utils import uuid as pvm_uuid
from pypowervm.wrappers import base_partition

SYSTEM = 'caae9209-25e5-35cd-a71a-ed55c03f294d'
# Another managed system of the sample, for a second one.
OTHER_SYSTEM = 'a168a3ec-bb3e-3ead-86c1-7d98b9d50239'
# An LPAR of the sample that is in OTHER_SYSTEM, and a slot that only that
# system has.
OTHER_LPAR = '089FFB20-5D19-4A8C-BB80-13650627D985'
OTHER_SLOT = 0x21010201

# Three LPARs are running with RMC, one without, 17 are not activated.
RUNNING = (
    '3D3DE3FA-5DD6-439D-BF4C-1835C340A9BD',
    '23FEE581-94AF-4E80-843D-B14409D9A101',
    '09D4D2E7-162B-4478-8DFB-87CBC3E76343',
)
NO_RMC = '5ADCEC07-B213-41FD-9B14-5130D65CCCBB'
INACTIVE = (
    '089FFB20-5D19-4A8C-BB80-13650627D985',
    '668B0882-C24A-4AE9-91C8-297E95E3FE29',
    '9068B0FB-1CF0-4D23-8A23-31AC87D5F5D2',
)
UNKNOWN = '00000000-0000-4000-8000-000000000000'

# Free slots, a slot of a VIOS, and a slot that does not exist.
FREE_SLOTS = (0x21030011, 0x21040001, 0x21010012)
VIOS_SLOT = 0x21020011
VIOS = '02899D96-9D20-490F-8B1B-4D3DEE1210ED'
NO_SLOT = 0x2FFFFFFF

_LPARS = re.compile(
    r'/rest/api/uom/(?:ManagedSystem/[^/]+/)?LogicalPartition(?:/([^/]+))?$'
)
_SYSTEMS = re.compile(r'/rest/api/uom/ManagedSystem(?:/([^/]+))?$')
_LOGON_RESPONSE = (
    f'<LogonResponse xmlns="{const.WEB_NS}" schemaVersion="V1_1_0">'
    '<X-API-SessionFile>%s</X-API-SessionFile></LogonResponse>'
)
_LOGON_RESPONSE_HMC = (
    f'<LogonResponse xmlns="{const.WEB_NS}" schemaVersion="V1_1_0">'
    '<X-API-Session>%s</X-API-Session></LogonResponse>'
)
WRITES = ('POST', 'PUT', 'DELETE')


@dataclasses.dataclass
class _Failure:
    status: int
    message: str | None
    times: int
    method: str
    applied: bool


class _RefusedError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class NovaLink:
    """A NovaLink that answers from its creation until stop().

    :param systems: the UUIDs of its managed systems
    :param hmc: behave as an HMC: the log-on needs a password
    """

    def __init__(
        self, systems: Sequence[str] = (SYSTEM,), hmc: bool = False
    ) -> None:
        self.mc_type = 'HMC' if hmc else 'PVM'
        self.delay = 0.0
        """Seconds from an update to its response (not for a log-off)."""
        self.before_post: Callable[[], object] | None = None
        """Called before each POST that it does not cause itself."""
        self.requests: list[tuple[str, str]] = []
        self.bodies: list[str] = []
        self.sessions: list[adapter.Session] = []
        self._lock = threading.RLock()
        self._interleaving = threading.Lock()
        self._stopped = threading.Event()
        self._failures: list[_Failure] = []
        self._lost: list[float | None] = []
        self._garbled = False
        self._tokens: set[str] = set()
        self._directory = tempfile.TemporaryDirectory(prefix='novalink-')
        self._server = novalink_http.Server(self)
        self.port: int = self._server.server_address[1]
        self._revisions = itertools.count(959374938)
        self._system_feed, known = xml.load('managedsystem.txt', self.port)
        # A NovaLink has one system; the sample from an HMC has three.
        self._systems = {name: known[name.upper()] for name in systems}
        self._lpar_feed, self._lpars = xml.load('lpar.txt', self.port)
        self._capabilities = {
            name: xml.capabilities(self._lpar(name))
            for name in (RUNNING[0], NO_RMC)
        }
        for name in self._lpars:
            xml.move(self._lpar(name), systems)
        self._revision = next(self._revisions)
        self._etags = {
            name: str(next(self._revisions)) for name in self._lpars
        }
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), daemon=True
        )
        self._thread.start()

    def __enter__(self) -> NovaLink:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop. Pending requests get no response either."""
        if not self._stopped.is_set():
            self._stopped.set()
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
            self._directory.cleanup()
            for made in self.sessions:
                # Otherwise it logs that it cannot log off.
                made._logged_in = False
            self.sessions.clear()

    # For the tests

    def writes(self) -> list[tuple[str, str]]:
        """The requests that change something; their bodies are in .bodies."""
        with self._lock:
            return [
                (method, path)
                for method, path in self.requests
                if method in WRITES and path != const.LOGON_PATH
            ]

    def fail_next(
        self,
        status: int,
        message: str | None = None,
        times: int = 1,
        method: str = 'POST',
        applied: bool = False,
    ) -> None:
        """Respond to the next requests with an error.

        :param times: how many requests
        :param method: POST, PUT, GET, DELETE, LOGON or LOGOFF
        :param applied: apply the change before the error
        """
        with self._lock:
            self._failures.append(
                _Failure(status, message, times, method, applied)
            )

    def heal(self) -> None:
        """Forget fail_next()."""
        with self._lock:
            self._failures.clear()

    def lose_next(self, applied_after: float | None) -> None:
        """Drop the connection instead of the response to the next POST.

        :param applied_after: apply the change so many seconds later; 0: before
            the connection is dropped; None: never
        """
        with self._lock:
            self._lost.append(applied_after)

    def garble_next(self) -> None:
        """Respond to the next POST with something that is not XML."""
        self._garbled = True

    def group(self, bus: int, *drc_indexes: int) -> None:
        """Put slots on one bus, all of which must move together."""
        with self._lock:
            for drc_index in drc_indexes:
                xml.on_bus(self._slots()[drc_index], bus)
            self._revision = next(self._revisions)

    def ungroup(self, drc_index: int) -> None:
        """Say of a slot itself that it may move alone."""
        with self._lock:
            xml.require_group(self._slots()[drc_index], False)
            self._revision = next(self._revisions)

    def set_rmc(self, lpar_uuid: str, rmc_state: str) -> None:
        """Set the state of an LPAR's RMC connection: active or inactive.

        The DLPAR capabilities come and go with it, as in the samples.
        """
        like = RUNNING[0] if rmc_state == 'active' else NO_RMC
        with self._lock:
            xml.set_rmc(
                self._lpar(lpar_uuid), rmc_state, self._capabilities[like]
            )
            self.touch(lpar_uuid)

    def run(self, lpar_uuid: str) -> None:
        """Add an LPAR that is running, with RMC and without slots."""
        with self._lock:
            name = lpar_uuid.upper()
            self._add(name, copy.deepcopy(self._lpar(RUNNING[0])))
            made = xml.wrap(self._lpar(name))
            made.set_parm_value('PartitionState', 'running')
            self.set_rmc(name, 'active')

    def end(self, lpar_uuid: str) -> None:
        """Delete an LPAR, with which its slots are free."""
        with self._lock:
            self._delete(lpar_uuid.upper(), None)

    def take_out(self, drc_index: int) -> Callable[[], None]:
        """Take a slot out of the managed system, as a drawer that is off.

        :returns: a function that puts it back
        """
        with self._lock:
            slot = self._slots()[drc_index]
            above = slot.getparent()
            place = above.index(slot)
            above.remove(slot)
            self._revision = next(self._revisions)

        def put_back() -> None:
            with self._lock:
                above.insert(place, slot)
                self._revision = next(self._revisions)

        return put_back

    def touch(self, lpar_uuid: str) -> None:
        """Change the etag, as an update by another client does."""
        with self._lock:
            assert lpar_uuid.upper() in self._lpars, lpar_uuid
            self._revision = next(self._revisions)
            self._etags[lpar_uuid.upper()] = str(self._revision)

    def give(self, lpar_uuid: str, drc_index: int) -> None:
        """Add a slot to an LPAR, as an update by another client does."""
        with self._lock:
            assert drc_index in self._slots(), drc_index
            slot = base_partition.IOSlot.bld(None, False, drc_index)
            xml.wrap(self._lpar(lpar_uuid)).io_config.io_slots.append(slot)
            self.touch(lpar_uuid)

    def take(self, lpar_uuid: str, drc_index: int) -> None:
        """Remove a slot from an LPAR, as another client's update does."""
        with self._lock:
            slots = xml.wrap(self._lpar(lpar_uuid)).io_config.io_slots
            for slot in [one for one in slots if one.drc_index == drc_index]:
                slots.remove(slot)
            self.touch(lpar_uuid)

    def lpar_xml(self, lpar_uuid: str) -> str:
        """The stored LogicalPartition."""
        with self._lock:
            return etree.tostring(self._lpar(lpar_uuid), encoding='unicode')

    def slots_of(self, lpar_uuid: str) -> list[int]:
        """The DRC indexes that the LPAR lists, with duplicates."""
        with self._lock:
            found = xml.slots(self._lpar(lpar_uuid))
            return [int(index.text) for index in found]

    def owner_of(self, drc_index: int) -> str | None:
        """Return the UUID of the LPAR or VIOS that has the slot."""
        with self._lock:
            for lpar_uuid in self._lpars:
                if drc_index in self.slots_of(lpar_uuid):
                    return lpar_uuid
            slot = self._slots().get(drc_index)
            return None if slot is None else slot.findtext(xml.PARTITION_UUID)

    def owners(self) -> dict[int, str | None]:
        """The slots by DRC index, with what owner_of() says."""
        with self._lock:
            return {index: self.owner_of(index) for index in self._slots()}

    def _slots(self) -> dict[int, etree._Element]:
        """Return the slots of all systems."""
        found = {}
        for system in self._systems.values():
            found.update(xml.inventory(system))
        return found

    def _lpar(self, lpar_uuid: str) -> etree._Element:
        return xml.content(self._lpars[lpar_uuid.upper()])

    # The handling of requests

    def answer(
        self, method: str, url: str, headers: object, body: bytes
    ) -> novalink_http.Answer | None:
        """The response to one request; None if this NovaLink has stopped."""
        path = parse.urlsplit(url).path
        kind = method
        if path == const.LOGON_PATH:
            kind = {'PUT': 'LOGON', 'DELETE': 'LOGOFF'}[method]
        with self._lock:
            self.requests.append((method, path))
            if kind in WRITES:
                self.bodies.append(body.decode())
        hook = self.before_post
        if kind == 'POST' and hook and self._interleaving.acquire(False):
            try:
                hook()
            finally:
                self._interleaving.release()
        if kind == 'POST' and self._lost:
            later = self._lost.pop(0)
            if later is not None:
                apply = threading.Timer(
                    later, self._apply, (kind, path, headers, body)
                )
                apply.daemon = True
                apply.start()
                if not later:
                    apply.join()
            return None
        with self._lock:
            answer = self._handle(kind, path, headers, body)
            if kind == 'POST' and self._garbled:
                self._garbled, answer.body = False, b'<html><br>'
        if self.delay and kind != 'LOGOFF':
            self._stopped.wait(self.delay)
        return None if self._stopped.is_set() else answer

    def _apply(self, kind, path, headers, body) -> None:
        with self._lock:
            assert self._handle(kind, path, headers, body).status == 200

    def _handle(self, kind, path, headers, body) -> novalink_http.Answer:
        failure = self._failure(kind)
        try:
            if failure is None or failure.applied:
                answer = self._route(kind, path, headers, body)
            if failure is None:
                return answer
            raise _RefusedError(failure.status, failure.message or 'Failed.')
        except _RefusedError as err:
            return novalink_http.Answer(
                err.status, xml.error(err.status, path, str(err))
            )

    def _failure(self, kind: str) -> _Failure | None:
        for failure in self._failures:
            if failure.method == kind and failure.times > 0:
                failure.times -= 1
                return failure
        return None

    def _route(self, kind, path, headers, body) -> novalink_http.Answer:
        token = headers['X-API-Session']
        if kind == 'LOGON':
            return self._logon()
        if token not in self._tokens:
            raise _RefusedError(401, 'The session is not known.')
        if kind == 'LOGOFF':
            self._tokens.discard(token)
            return novalink_http.Answer(204)
        if (match := _LPARS.match(path)) is not None:
            return self._route_lpar(kind, match[1], headers, body)
        match = _SYSTEMS.match(path)
        if (
            kind != 'GET'
            or not match
            or match[1] not in (None, *self._systems)
        ):
            raise _RefusedError(404, f'No {kind} of {path} here.')
        return self._managed_system(match[1], headers['If-None-Match'])

    def _route_lpar(self, kind, name, headers, body) -> novalink_http.Answer:
        if name is None:
            if kind == 'PUT':
                return self._create(body)
            return self._feed(headers['If-None-Match'])
        name = name.upper()
        if name not in self._lpars:
            raise _RefusedError(404, f'There is no LogicalPartition {name}.')
        if kind == 'POST':
            return self._update(name, headers['If-Match'], body)
        if kind == 'DELETE':
            return self._delete(name, headers['If-Match'])
        return self._entry(name, headers['If-None-Match'])

    def _logon(self) -> novalink_http.Answer:
        token = uuid.uuid4().hex
        self._tokens.add(token)
        if self.mc_type == 'HMC':
            body = _LOGON_RESPONSE_HMC % token
            return novalink_http.Answer(200, body.encode())
        file = pathlib.Path(self._directory.name, f'token-{token[:8]}')
        file.write_text(token)
        return novalink_http.Answer(200, (_LOGON_RESPONSE % file).encode())

    def _managed_system(
        self, name: str | None, seen: str | None
    ) -> novalink_http.Answer:
        """Answer with one managed system, or with the feed of all."""
        etag = str(self._revision)
        if name is not None:
            return _answer(self._owned(name), etag, seen)
        whole = copy.deepcopy(self._system_feed)
        for each in self._systems:
            whole.append(xml.with_etag(self._owned(each), etag))
        return _answer(whole, etag, seen)

    def _owned(self, name: str) -> etree._Element:
        """A copy of a managed system in which the slots have owners."""
        system = copy.deepcopy(self._systems[name])
        slots = xml.inventory(system)
        for lpar in self._lpars:
            for drc_index in set(self.slots_of(lpar)) & slots.keys():
                xml.own(slots[drc_index], self._lpar(lpar))
        return system

    def _feed(self, seen: str | None) -> novalink_http.Answer:
        feed = copy.deepcopy(self._lpar_feed)
        for name, entry in self._lpars.items():
            feed.append(xml.with_etag(entry, self._etags[name]))
        return _answer(feed, str(self._revision), seen)

    def _entry(
        self, name: str, seen: str | None = None
    ) -> novalink_http.Answer:
        return _answer(self._lpars[name], self._etags[name], seen)

    def _update(
        self, name: str, etag: str | None, body: bytes
    ) -> novalink_http.Answer:
        self._check_etag(name, etag)
        xml.replace(self._lpars[name], self._parse(body, name))
        self.touch(name)
        return self._entry(name)

    def _delete(self, name: str, etag: str | None) -> novalink_http.Answer:
        if etag is not None:
            self._check_etag(name, etag)
        del self._lpars[name], self._etags[name]
        self._revision = next(self._revisions)
        return novalink_http.Answer(204)

    def _create(self, body: bytes) -> novalink_http.Answer:
        lpar = self._parse(body, None)
        given = lpar.findtext(xml.PARTITION_UUID)
        made = pvm_uuid.convert_uuid_to_pvm(str(uuid.uuid4()))
        # pypowervm does not accept a UUID with the first bit set.
        name = (given or made).upper()
        if name in self._lpars:
            raise _RefusedError(500, f'LogicalPartition {name} exists.')
        self._add(name, lpar)
        return self._entry(name)

    def _add(self, name: str, lpar: etree._Element) -> None:
        number = 1 + max(xml.wrap(self._lpar(one)).id for one in self._lpars)
        like = self._lpars[INACTIVE[0]]
        self._lpars[name] = xml.created(like, lpar, name, number)
        self.touch(name)

    def _check_etag(self, name: str, etag: str | None) -> None:
        if etag != self._etags[name]:
            raise _RefusedError(412, f'The etag of {name} is not {etag}.')

    def _parse(self, body: bytes, name: str | None) -> etree._Element:
        """The LPAR in a request, if it may have the slots that it lists."""
        lpar = etree.fromstring(body)
        if lpar.tag != f'{xml.UOM}LogicalPartition':
            raise _RefusedError(400, f'{lpar.tag} is no LogicalPartition.')
        inventory = self._slots()
        for index in xml.slots(lpar):
            drc_index = int(index.text)
            if drc_index not in inventory:
                raise _RefusedError(500, f'There is no slot {drc_index}.')
            if self.owner_of(drc_index) not in (None, name):
                raise _RefusedError(500, f'Slot {drc_index} is in use.')
            if index.getparent().find(xml.DRC_NAME) is None:
                drc_name = etree.SubElement(index.getparent(), xml.DRC_NAME)
                drc_name.text = inventory[drc_index].findtext(xml.DRC_NAME)
        return lpar


def _answer(
    element: etree._Element, etag: str, seen: str | None
) -> novalink_http.Answer:
    if seen == etag:
        return novalink_http.Answer(304, etag=etag)
    return novalink_http.Answer(200, etree.tostring(element), etag)


def session(novalink: NovaLink, timeout: float = 5) -> adapter.Adapter:
    """An adapter as in Nova's driver, logged on with a token file."""
    made = adapter.Session(port=novalink.port, timeout=timeout)
    # The reference prevents a log-off by garbage collection.
    novalink.sessions.append(made)
    return adapter.Adapter(
        made, helpers=[log_helper.log_helper, vios_busy.vios_busy_retry_helper]
    )

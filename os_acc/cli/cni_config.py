# SPDX-License-Identifier: Apache-2.0

"""What os-acc cni-like reads: the configuration and the environment.

The source of names, rules and error codes is version 1.1.0 of the CNI
specification (github.com/containernetworking/cni, SPEC.md).
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import re
import sys
from typing import Any
from typing import BinaryIO

from os_acc import exception
from os_acc import objects
from os_acc.cli import selectors
from os_acc.state import instance_names
from os_acc.texts import documents

#: The versions of the specification, the newest last.
VERSIONS = ('0.3.0', '0.3.1', '0.4.0', '1.0.0', '1.1.0')

#: The version that brought an action.
SINCE = {'check': '0.4.0', 'status': '1.1.0', 'gc': '1.1.0'}

# Codes of the specification, section Error.
INCOMPATIBLE_VERSION = 1
UNSUPPORTED_FIELD = 2
UNKNOWN_CONTAINER = 3
INVALID_ENVIRONMENT = 4
IO_FAILURE = 5
DECODING_FAILURE = 6
INVALID_CONFIGURATION = 7
TRY_AGAIN = 11
NOT_AVAILABLE = 50
NOT_AVAILABLE_LIMITED = 51
# Codes of os-acc.
PLUG_FAILED = 100
UNPLUG_FAILED = 101
NOT_AS_ADDED = 102
UNUSABLE = 103
UNEXPECTED = 199

MESSAGES = {
    INCOMPATIBLE_VERSION: 'Incompatible CNI version',
    UNSUPPORTED_FIELD: 'Unsupported field in the configuration',
    UNKNOWN_CONTAINER: 'Unknown container',
    INVALID_ENVIRONMENT: 'Invalid environment variables',
    IO_FAILURE: 'I/O failure',
    DECODING_FAILURE: 'The configuration cannot be decoded',
    INVALID_CONFIGURATION: 'Invalid configuration',
    TRY_AGAIN: 'Try again later',
    NOT_AVAILABLE: 'Not available',
    NOT_AVAILABLE_LIMITED: 'Not available; attachments may not work',
    PLUG_FAILED: 'The devices could not be plugged',
    UNPLUG_FAILED: 'The devices could not be released',
    NOT_AS_ADDED: 'The attachment is not as ADD created it',
    UNUSABLE: 'os-acc cannot be used on this host',
    UNEXPECTED: 'Unexpected error',
}

# Longer than any id of a container runtime: those have 64 characters.
_LONGEST_ID = 255
_LONGEST_INTERFACE = 15  # IFNAMSIZ - 1, linux/if.h
_LARGEST = 1 << 20

_NAME = re.compile(r'[a-zA-Z0-9][a-zA-Z0-9_.-]*')
_VERSION = re.compile(r'\d+\.\d+\.\d+')

# The key of the list that gc gets. The specification had the second name
# while libcni wrote the first one. Since pull request 1103 of
# containernetworking/cni it has the first one, and libcni writes both.
_VALID = ('cni.dev/valid-attachments', 'cni.dev/attachments')

# What the runtime and the protocol put there, besides our own fields.
_PROTOCOL = {
    'args',
    'capabilities',
    'cniVersion',
    'name',
    'prevResult',
    'runtimeConfig',
    'type',
}


class CNIError(exception.ExceptionBase):
    """An error with a code of the CNI specification."""

    def __init__(self, code: int, details: str) -> None:
        super().__init__(details)
        self.code = code


@dataclasses.dataclass(frozen=True)
class Wanted:
    """Which devices the configuration asks for."""

    resource_class: str
    traits: tuple[str, ...] = ()
    count: int = 1
    function: str | None = None
    driver: str | None = None
    plugin: str = 'cdi'
    wait: float | None = None

    def requests(self, instance: str) -> list[objects.AcceleratorRequest]:
        """Make the requests of an instance."""
        made = selectors.requests(
            instance,
            self.resource_class,
            list(self.traits),
            self.count,
            self.function,
        )
        for request in made:
            request.driver = self.driver
        return made


@dataclasses.dataclass(frozen=True)
class Configuration:
    """The decoded configuration.

    :ivar version: cniVersion
    :ivar network: name
    :ivar fields: all fields
    """

    version: str
    network: str
    fields: dict[str, Any]

    @property
    def previous(self) -> dict[str, Any]:
        """The result of the plugin before this one in a chain."""
        found = self.fields.get('prevResult') or {}
        if not isinstance(found, dict):
            raise _invalid('prevResult', found, 'an object')
        names = found.get('cdiDevices', [])
        if not _are_texts(names):
            raise _invalid('prevResult.cdiDevices', names, 'a list of strings')
        return found

    def valid(self) -> set[Attachment]:
        """Read which attachments of the network are still valid, for gc.

        :raises CNIError: if the list is missing, or an item of it is wrong:
            nothing must be released then
        """
        key = next((each for each in _VALID if each in self.fields), None)
        if key is None:
            raise _invalid(_VALID[0], None, 'a list of attachments')
        # libcni writes null for an empty list.
        listed = self.fields[key] if self.fields[key] is not None else []
        if not isinstance(listed, list):
            raise _invalid(key, listed, 'a list of attachments')
        found = set()
        for each in listed:
            names = each if isinstance(each, dict) else {}
            container: Any = names.get('containerID')
            interface: Any = names.get('ifname')
            if not (_is_text(container) and _is_text(interface)):
                raise _invalid(key, each, 'strings containerID and ifname')
            found.add(Attachment(self.network, container, interface))
        return found

    def wanted(self) -> Wanted:
        """Read which devices are wanted."""
        values: dict[str, Any] = {}
        for key, value in self.fields.items():
            if key in _PROTOCOL or key.startswith('cni.dev/'):
                continue
            if key not in _OWN:
                raise CNIError(
                    UNSUPPORTED_FIELD, f'{key} is {value!r:.200}, unsupported'
                )
            name, fits, expected = _OWN[key]
            if not fits(value):
                raise _invalid(key, value, expected)
            values[name] = tuple(value) if isinstance(value, list) else value
        if 'resource_class' not in values:
            raise _invalid('resourceClass', None, 'the name of a class')
        return Wanted(**values)


@dataclasses.dataclass(frozen=True)
class Attachment:
    """One attachment of a container."""

    network: str
    container: str
    interface: str

    @property
    def uuid(self) -> str:
        """The UUID of the instance that the attachment is."""
        return instance_names.attachment_uuid(
            self.network, self.container, self.interface
        )

    @property
    def info(self) -> objects.InstanceInfo:
        """The instance that the attachment is."""
        parts = (self.network, self.container, self.interface)
        return objects.InstanceInfo(
            uuid=self.uuid, name='/'.join(parts), project_id=''
        )

    @classmethod
    def of(cls, info: objects.InstanceInfo) -> Attachment | None:
        """The attachment that an instance is; None: it is not one."""
        parts = (info.name or '').split('/')
        # None of the three can have a slash: see attachment() and check().
        found = cls(*parts) if len(parts) == 3 else None
        return found if found and found.uuid == info.uuid else None


def version_of(fields: Any) -> str:
    """The version in which to answer, even if the configuration is wrong."""
    found = fields.get('cniVersion') if isinstance(fields, dict) else None
    return found if found in VERSIONS else VERSIONS[-1]


def asked_version(fields: Any) -> str:
    """The version of a request for the versions; the answer has the same."""
    found = fields.get('cniVersion') if isinstance(fields, dict) else None
    if isinstance(found, str) and _VERSION.fullmatch(found):
        return found
    return VERSIONS[-1]


def decode(stream: BinaryIO) -> Any:
    """Read the JSON of the configuration."""
    try:
        text = stream.read(_LARGEST + 1)
    except OSError as err:
        raise CNIError(IO_FAILURE, f'standard input: {err}') from err
    if len(text) > _LARGEST:
        raise CNIError(DECODING_FAILURE, f'it has more than {_LARGEST} bytes')
    try:
        return documents.json_of(text)
    except ValueError as err:
        raise CNIError(DECODING_FAILURE, f'standard input: {err}') from err


def check(fields: Any, action: str) -> Configuration:
    """Check what all configurations must have."""
    if not isinstance(fields, dict):
        raise CNIError(DECODING_FAILURE, 'it is not a JSON object')
    version = fields.get('cniVersion', '0.1.0')
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        raise CNIError(
            DECODING_FAILURE,
            f'cniVersion is {version!r:.200}, which is not a version',
        )
    since = SINCE.get(action, VERSIONS[0])
    supported = VERSIONS[VERSIONS.index(since) :]
    if version not in supported:
        raise CNIError(
            INCOMPATIBLE_VERSION,
            f'cniVersion is {version}; {action} is supported with: '
            f'{", ".join(supported)}',
        )
    network, kind = fields.get('name'), fields.get('type')
    if not isinstance(network, str) or not _NAME.fullmatch(network):
        raise _invalid(
            'name', network, 'letters, digits and ._-, first a letter or digit'
        )
    if len(network) > _LONGEST_ID:
        raise _invalid('name', network, f'at most {_LONGEST_ID} characters')
    if not isinstance(kind, str) or not kind or {'/', '\\'} & set(kind):
        raise _invalid('type', kind, 'the name of a plugin')
    return Configuration(version, network, fields)


def check_command(environment: Mapping[str, str], action: str) -> None:
    """Check that the environment names the same command, if any."""
    command = environment.get('CNI_COMMAND', action.upper())
    if command != action.upper():
        raise _wrong_variable('CNI_COMMAND', command, action.upper())


def attachment(environment: Mapping[str, str], network: str) -> Attachment:
    """Read which attachment is meant."""
    container = environment.get('CNI_CONTAINERID', '')
    interface = environment.get('CNI_IFNAME', '')
    if not _NAME.fullmatch(container) or len(container) > _LONGEST_ID:
        raise _wrong_variable(
            'CNI_CONTAINERID',
            container,
            f'1 to {_LONGEST_ID} letters, digits and ._-, first a letter or '
            'digit',
        )
    if (
        not 1 <= len(interface) <= _LONGEST_INTERFACE
        or interface in ('.', '..')
        or any(c in '/:' or c.isspace() for c in interface)
        or not interface.isprintable()
    ):
        raise _wrong_variable(
            'CNI_IFNAME',
            interface,
            f'1 to {_LONGEST_INTERFACE} characters without /, : and blanks',
        )
    return Attachment(network, container, interface)


def _wrong_variable(name: str, value: str, expected: str) -> CNIError:
    return CNIError(
        INVALID_ENVIRONMENT,
        f'{name} is {value!r:.100}, expected {expected}',
    )


def _invalid(field: str, value: Any, expected: str) -> CNIError:
    return CNIError(
        INVALID_CONFIGURATION,
        f'{field} is {value!r:.200}, expected {expected}',
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_count(value: Any) -> bool:
    return type(value) is int and 1 <= value <= selectors.MOST


def _is_time(value: Any) -> bool:
    # math.isfinite fails for an integer that no float can hold.
    return type(value) in (int, float) and 0 <= value <= sys.float_info.max


# Our own fields: the name in Wanted, what fits, and its description.
_OWN = {
    'resourceClass': ('resource_class', _is_text, 'the name of a class'),
    'traits': ('traits', _are_texts, 'a list of traits'),
    'count': ('count', _is_count, f'1 to {selectors.MOST}'),
    'function': ('function', _is_text, 'the ID of a function'),
    'driver': ('driver', _is_text, 'the name of a driver'),
    'plugin': ('plugin', _is_text, 'the name of a plugin'),
    'wait': ('wait', _is_time, 'seconds, 0 or more'),
}

# SPDX-License-Identifier: Apache-2.0

"""The messages of the kubelet's gRPC interfaces.

They are made from the published field numbers when this module is imported.
Code that protoc has generated works only with the two major versions of
protobuf that its own version allows; this works with every one.

v1 and v1beta1 of the DRA service have the same messages here. v1 has one field
more, share_id, which this driver never sets.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2
from google.protobuf import descriptor_pool
from google.protobuf import message_factory

_Field = descriptor_pb2.FieldDescriptorProto

#: For each package the messages, and for each message its fields: the number,
#: the name and the type. '[]' is a repeated field, '{}' a map from strings.
_PACKAGES: dict[str, dict[str, list[tuple[int, str, str]]]] = {
    'pluginregistration': {
        'InfoRequest': [],
        'PluginInfo': [
            (1, 'type', 'string'),
            (2, 'name', 'string'),
            (3, 'endpoint', 'string'),
            (4, 'supported_versions', '[]string'),
        ],
        'RegistrationStatus': [
            (1, 'plugin_registered', 'bool'),
            (2, 'error', 'string'),
        ],
        'RegistrationStatusResponse': [],
    },
    'k8s.io.kubelet.pkg.apis.dra.v1': {
        'Claim': [
            (1, 'namespace', 'string'),
            (2, 'uid', 'string'),
            (3, 'name', 'string'),
        ],
        'Device': [
            (1, 'request_names', '[]string'),
            (2, 'pool_name', 'string'),
            (3, 'device_name', 'string'),
            (4, 'cdi_device_ids', '[]string'),
        ],
        'NodePrepareResourcesRequest': [(1, 'claims', '[]Claim')],
        'NodePrepareResourceResponse': [
            (1, 'devices', '[]Device'),
            (2, 'error', 'string'),
        ],
        'NodePrepareResourcesResponse': [
            (1, 'claims', '{}NodePrepareResourceResponse')
        ],
        'NodeUnprepareResourcesRequest': [(1, 'claims', '[]Claim')],
        'NodeUnprepareResourceResponse': [(1, 'error', 'string')],
        'NodeUnprepareResourcesResponse': [
            (1, 'claims', '{}NodeUnprepareResourceResponse')
        ],
    },
    'v1alpha1': {
        'NodeWatchResourcesRequest': [],
        'DeviceIdentifier': [
            (1, 'pool_name', 'string'),
            (2, 'device_name', 'string'),
        ],
        'DeviceHealth': [
            (1, 'device', 'DeviceIdentifier'),
            (2, 'health', 'int32'),  # an enum, which is the same on the wire
            (3, 'last_updated_time', 'int64'),
            (4, 'health_check_timeout_seconds', 'int64'),
            (5, 'message', 'string'),
        ],
        'NodeWatchResourcesResponse': [(1, 'devices', '[]DeviceHealth')],
    },
}

_TYPES = {
    'bool': _Field.TYPE_BOOL,
    'int32': _Field.TYPE_INT32,
    'int64': _Field.TYPE_INT64,
    'string': _Field.TYPE_STRING,
}


def _file(package: str) -> descriptor_pb2.FileDescriptorProto:
    made = descriptor_pb2.FileDescriptorProto(
        name=f'os_acc_dra/{package}.proto', package=package, syntax='proto3'
    )
    for name, fields in _PACKAGES[package].items():
        message = made.message_type.add(name=name)
        for number, field, kind in fields:
            _add(message, package, number, field, kind)
    return made


def _add(
    message: Any, package: str, number: int, name: str, kind: str
) -> None:
    """Add a field to a message."""
    repeated = kind[:2] in ('[]', '{}')
    field = message.field.add(
        name=name,
        number=number,
        label=_Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL,
    )
    if kind.startswith('{}'):
        # A map is a repeated message of a key and a value.
        entry = message.nested_type.add(name=f'{name.capitalize()}Entry')
        entry.options.map_entry = True
        _add(entry, package, 1, 'key', 'string')
        _add(entry, package, 2, 'value', kind[2:])
        kind = f'{message.name}.{entry.name}'
    kind = kind.removeprefix('[]')
    if kind in _TYPES:
        field.type = _TYPES[kind]
    else:
        field.type = _Field.TYPE_MESSAGE
        field.type_name = f'.{package}.{kind}'


_pool = descriptor_pool.DescriptorPool()
for _package in _PACKAGES:
    _pool.AddSerializedFile(_file(_package).SerializeToString())


def _classes(package: str) -> dict[str, Any]:
    return {
        name: message_factory.GetMessageClass(
            _pool.FindMessageTypeByName(f'{package}.{name}')
        )
        for name in _PACKAGES[package]
    }


#: The classes of the messages by their names.
REGISTRATION = _classes('pluginregistration')
DRA = _classes('k8s.io.kubelet.pkg.apis.dra.v1')
HEALTH = _classes('v1alpha1')

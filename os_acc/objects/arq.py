# SPDX-License-Identifier: Apache-2.0

"""Reads accelerator requests (ARQs) of Cyborg's REST API v2."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
import re
from typing import Any
from typing import NoReturn

from os_acc import exception
from os_acc.kernel import pci
from os_acc.objects import base
from os_acc.objects import handle

# Fields with the same name and meaning in an ARQ and an AcceleratorRequest.
_PLAIN = (
    'hostname',
    'instance_uuid',
    'device_profile_name',
    'device_profile_group_id',
    'device_rp_uuid',
)
# The parts of a PCI address: name, maximum number of digits, highest value.
# Cyborg writes them in hex, without a prefix and with varying padding.
_ADDRESS = (
    ('domain', 8, 0xFFFFFFFF),
    ('bus', 2, 0xFF),
    ('device', 2, 0x1F),
    ('function', 1, 7),
)


class _ARQ:
    """The ARQ that is being read, with a name for error messages."""

    def __init__(self, values: Any) -> None:
        self.name = 'ARQ'
        if not isinstance(values, Mapping):
            self.refuse('ARQ', values, 'a dict')
        self.values = values
        self.name = f'ARQ {values.get("uuid")!s:.80}'

    def refuse(self, field: str, value: Any, expected: str) -> NoReturn:
        raise exception.InvalidRequest(
            subject=self.name, field=field, value=value, expected=expected
        )

    def set(
        self, target: base.VersionedObject, name: str, field: str, value: Any
    ) -> None:
        """Set a field of the target.

        :param name: the name of the target's field
        :param field: the name of the field in the ARQ, for the error
        :raises InvalidRequest: if the target does not accept the value
        """
        try:
            setattr(target, name, value)
        except exception.InvalidRequest as err:
            self.refuse(field, value, err.kwargs['expected'])
        except (TypeError, ValueError, OverflowError) as err:
            # oslo's message for None names the object's field, which may
            # differ from the key of the ARQ.
            self.refuse(field, value, 'a value' if value is None else str(err))

    def copy(self, key: str, target: base.VersionedObject) -> None:
        self.set(target, key, key, self.values.get(key))

    def info(self) -> Mapping[str, Any]:
        info = self.values.get('attach_handle_info')
        if not isinstance(info, Mapping):
            self.refuse('attach_handle_info', info, 'a dict')
        return info

    def address(self) -> str:
        """Build the PCI address from its parts in attach_handle_info."""
        info = self.info()
        parts = []
        for key, digits, highest in _ADDRESS:
            text = info.get(key)
            field = f'attach_handle_info.{key}'
            if not isinstance(text, str) or not re.fullmatch(
                f'[0-9A-Fa-f]{{1,{digits}}}', text
            ):
                self.refuse(field, text, f'1 to {digits} hex digits')
            if int(text, 16) > highest:
                self.refuse(field, text, f'at most {highest:x} (hex)')
            parts.append(int(text, 16))
        return pci.join(*parts)


def _pci(arq: _ARQ) -> handle.AttachHandle:
    made = handle.PCIHandle(address=arq.address())
    key = 'physical_network'
    arq.set(made, key, f'attach_handle_info.{key}', arq.info().get(key))
    return made


def _mdev(arq: _ARQ) -> handle.AttachHandle:
    # Cyborg uses the UUID of the attach handle as the UUID of the mdev.
    made = handle.MdevHandle.partial(parent=arq.address())
    key = 'attach_handle_uuid'
    arq.set(made, 'uuid', key, arq.values.get(key))
    key = 'asked_type'
    arq.set(made, 'type', f'attach_handle_info.{key}', arq.info().get(key))
    return made


def _test(arq: _ARQ) -> handle.AttachHandle:
    # Cyborg's fake driver writes a PCI address, os-acc's driver for the agent
    # the name of the handle.
    made = handle.TestHandle.partial()
    name = arq.info().get('name')
    if name is None:
        name = arq.address()
    arq.set(made, 'name', 'attach_handle_info.name', name)
    return made


def _drc(arq: _ARQ) -> handle.AttachHandle:
    # The type DRC is os-acc's proposal; Cyborg has no type for a Power I/O
    # slot yet. The index is a string of 8 hex digits, as "lsslot" prints it.
    # An int is refused, because its digits may have been decimal or hex.
    made, info = handle.DRCHandle.partial(), arq.info()
    index = info.get('drc_index')
    if not isinstance(index, str):
        arq.refuse('attach_handle_info.drc_index', index, '8 hex digits')
    for key in ('drc_index', 'drc_name'):
        arq.set(made, key, f'attach_handle_info.{key}', info.get(key))
    return made


_HANDLES: dict[str, Callable[[_ARQ], handle.AttachHandle]] = {
    'PCI': _pci,
    'MDEV': _mdev,
    'DRC': _drc,
    'TEST_PCI': _test,
}


def fill(request: Any, values: Mapping[str, Any]) -> None:
    """Fill a request with the values of an ARQ.

    :param request: an empty AcceleratorRequest
    :param values: the ARQ
    :raises ARQNotBound, InvalidRequest: see AcceleratorRequest.from_arq
    """
    arq = _ARQ(values)
    arq.copy('uuid', request)
    arq.copy('state', request)
    if request.state != 'Bound':
        raise exception.ARQNotBound(
            subject=arq.name,
            field='state',
            value=request.state,
            expected="'Bound'",
        )
    kind = values.get('attach_handle_type')
    if not isinstance(kind, str) or kind not in _HANDLES:
        arq.refuse(
            'attach_handle_type', kind, 'one of ' + ', '.join(sorted(_HANDLES))
        )
    request.handle = _HANDLES[kind](arq)
    for key in _PLAIN:
        arq.copy(key, request)

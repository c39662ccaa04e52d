# SPDX-License-Identifier: Apache-2.0

"""Makes a device-tree overlay that lets an FPGA region load an image.

The format is that of the Devicetree Specification 0.4, chapter 5 ("Flattened
Devicetree Format"), version 17. The names in it are those of Linux,
Documentation/devicetree/overlay-notes.rst and Documentation/devicetree/
bindings/fpga/fpga-region.txt.
"""

from __future__ import annotations

import struct

_BEGIN_NODE, _END_NODE, _PROPERTY, _END = 1, 2, 3, 9
_MAGIC, _VERSION, _COMPATIBLE = 0xD00DFEED, 17, 16
_HEADER_SIZE, _RESERVED_SIZE = 40, 16


def make(region: str, firmware: str, partial: bool) -> bytes:
    """Make the overlay.

    :param region: the path of the region in the device tree
    :param firmware: the image's name below the kernel's firmware folder
    :param partial: whether the image is for a part of the FPGA only
    :returns: the content of a .dtbo file
    """
    made = _Tree()
    made.begin('')
    made.begin('fragment@0')
    made.add('target-path', _text(region))
    made.begin('__overlay__')
    made.add('firmware-name', _text(firmware))
    if partial:
        made.add('partial-fpga-config', b'')
    for _ in range(3):
        made.end()
    return made.content()


class _Tree:
    def __init__(self) -> None:
        self._nodes = b''
        self._strings = b''

    def begin(self, name: str) -> None:
        self._nodes += struct.pack('>I', _BEGIN_NODE) + _padded(_text(name))

    def end(self) -> None:
        self._nodes += struct.pack('>I', _END_NODE)

    def add(self, name: str, value: bytes) -> None:
        """Add a property. In a node, properties come before other nodes."""
        self._nodes += struct.pack(
            '>III', _PROPERTY, len(value), len(self._strings)
        ) + _padded(value)
        self._strings += _text(name)

    def content(self) -> bytes:
        nodes = self._nodes + struct.pack('>I', _END)
        at_nodes = _HEADER_SIZE + _RESERVED_SIZE
        at_strings = at_nodes + len(nodes)
        header = struct.pack(
            '>10I',
            _MAGIC,
            at_strings + len(self._strings),
            at_nodes,
            at_strings,
            _HEADER_SIZE,
            _VERSION,
            _COMPATIBLE,
            0,  # the CPU that boots
            len(self._strings),
            len(nodes),
        )
        return header + bytes(_RESERVED_SIZE) + nodes + self._strings


def _text(value: str) -> bytes:
    return value.encode('ascii') + b'\0'


def _padded(value: bytes) -> bytes:
    return value + bytes(-len(value) % 4)

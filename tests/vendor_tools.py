# SPDX-License-Identifier: Apache-2.0

"""The tools of vendors on a host: see vendor_tool.py, which they run."""

from __future__ import annotations

import json
import pathlib
import struct
import sys
import uuid

SCRIPT = pathlib.Path(__file__).with_name('vendor_tool.py')
TOOLS = ('fpgaconf', 'xbmgmt', 'xbutil', 'xrt-smi')
GBS = b'XeonFPGA\xb7GBSv001'

# The kinds of sections of an xclbin: a bitstream, and a shell's MCS.
BITSTREAM, MCS = 0, 12


class Tools:
    """The tools and what the cards contain.

    :param directory: an empty directory; the tools are in its directory bin
    """

    def __init__(self, directory: pathlib.Path, *cards: str) -> None:
        self.directory = directory
        self.host = directory / 'host'
        self.host.mkdir(parents=True)
        (directory / 'bin').mkdir()
        self.install(*TOOLS)
        (self.host / 'cards').write_text('\n'.join(cards))
        self.mode('ok')

    def install(self, *names: str) -> None:
        """Make these tools, and remove the others."""
        for name in TOOLS:
            self.path(name).unlink(missing_ok=True)
        for name in names:
            # A copy, because a tool finds its name in sys.argv[0].
            path = self.path(name)
            path.write_text(f'#!{sys.executable} -IS\n{SCRIPT.read_text()}')
            path.chmod(0o755)

    def path(self, name: str) -> pathlib.Path:
        return self.directory / 'bin' / name

    def mode(self, mode: str) -> None:
        (self.host / 'mode').write_text(mode)

    def calls(self) -> list[list[str]]:
        """The arguments of each call that came to the programming."""
        path = self.host / 'calls'
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]

    def inside(self, address: str) -> bytes | None:
        """What was programmed through a PCI function last."""
        path = self.host / f'in.{address}'
        return path.read_bytes() if path.exists() else None


def xclbin(
    own: str,
    interface: str | None,
    platform: str = 'xilinx_u250_gen3x16_xdma_shell_4_1',
    timestamp: int = 0,
    kind: int = BITSTREAM,
    mode: int = 1,
) -> bytes:
    """Make a user image: a header, one section, and its data.

    See struct axlf in XRT's xclbin.h.
    """
    data = b'logic of ' + own.encode()
    start = 456 + 40
    header = struct.pack(
        '<QQQHBBHH16s64s16s16sI4x',
        start + len(data),
        0,
        timestamp,
        0,
        2,
        1,
        mode,
        0,
        uuid.UUID(interface).bytes if interface else bytes(16),
        platform.encode(),
        uuid.UUID(own).bytes,
        b'',
        1,
    )
    top = struct.pack('<8si28s256sQ', b'xclbin2', -1, b'\xff' * 28, b'', 0)
    section = struct.pack('<I16s4xQQ', kind, b'logic', start, len(data))
    return top + header + section + data

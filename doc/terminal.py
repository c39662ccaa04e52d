# SPDX-License-Identifier: Apache-2.0

"""Draws a terminal with os-acc demo, as SVG, from what the demo prints.

After a change of the demo, write the picture of the README anew::

    python doc/terminal.py doc/source/_static/demo.svg

tests/unit/test_terminal.py compares the picture with the demo.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
import pathlib
import re
import subprocess
import sys
import textwrap

TITLE = 'os-acc demo in a terminal'
#: Characters in a line, and the size of a character and of the margin.
WIDTH = 92
CHARACTER = (7.8, 18)
MARGIN = 14

_COLORS = {'done': '#8bd58b', 'failed': '#ff8a80', '==': '#8ab4f8'}


def shown(said: str) -> list[str]:
    """The lines of the picture.

    The elements of the second and the third VAN are left out, a long line is
    wrapped, and the directory has the same name in each picture.
    """
    said = re.sub(r'/\S+/os-acc-demo-\w+', '/tmp/os-acc-demo', said)  # noqa: S108
    one = r'\n   VAN [^\n]+ element for .*?</hostdev>\n'
    _, *others = re.findall(one, said, re.DOTALL)
    for each in others:
        said = said.replace(each, '\n   [...]\n' if each == others[0] else '')
    lines = []
    for line in said.rstrip().splitlines():
        indent = ' ' * (len(line) - len(line.lstrip()))
        lines += textwrap.wrap(
            line,
            WIDTH,
            subsequent_indent=indent,
            drop_whitespace=False,
            break_on_hyphens=False,
        ) or ['']
    return ['$ os-acc demo', *lines]


def _spans(line: str) -> Iterator[str]:
    """The parts of a line, with the words of a status in color."""
    if line.startswith('=='):
        yield f'<tspan fill="{_COLORS["=="]}">{escape(line)}</tspan>'
        return
    for part in re.split(r'(\b(?:done|failed)$)', line):
        if part in _COLORS:
            yield f'<tspan fill="{_COLORS[part]}">{part}</tspan>'
        else:
            yield escape(part, quote=False)


def draw(lines: list[str]) -> str:
    """Draw lines as SVG."""
    wide, high = CHARACTER
    width = round(WIDTH * wide + 2 * MARGIN)
    height = len(lines) * high + 2 * MARGIN
    out = [
        '<svg xmlns="http://www.w3.org/2000/svg" role="img" '
        f'width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        f'<title>{TITLE}</title>',
        f'<rect width="{width}" height="{height}" rx="8" fill="#1e1e1e"/>',
        '<g fill="#e4e4e4" font-size="13" '
        'font-family="DejaVu Sans Mono, Menlo, Consolas, monospace">',
    ]
    for number, line in enumerate(lines, 1):
        if line:
            # Each browser has another font: the line keeps its width.
            out.append(
                f'<text xml:space="preserve" x="{MARGIN}" '
                f'y="{number * high + MARGIN - 5}" '
                f'textLength="{len(line) * wide:g}">'
                f'{"".join(_spans(line))}</text>'
            )
    return '\n'.join([*out, '</g>', '</svg>', ''])


def main(path: str) -> None:
    """Run the demo, and write the picture."""
    done = subprocess.run(  # noqa: S603 - the demo of this environment
        [str(pathlib.Path(sys.executable).parent / 'os-acc'), 'demo'],
        check=True,
        capture_output=True,
        text=True,
    )
    pathlib.Path(path).write_text(draw(shown(done.stdout)))


if __name__ == '__main__':
    main(sys.argv[1])

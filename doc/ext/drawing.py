# SPDX-License-Identifier: Apache-2.0

"""The directive drawing: boxes and arrows, drawn as SVG when a page is built.

.. drawing::
   :alt: what a reader who does not see the drawing must know

   box plug 0 0 plugging
   box done 2 0 plugged
   arrow plug done the plugin has returned

A box has a name, a column (or several, as 0-2), a row and a text. An arrow has
the names of two boxes and a text. ``|`` begins a new line in a text. After the
names, ``shift=N`` moves an arrow by N to the right or down, and ``around=N``
leads it around the right side of the boxes, N away from them. ``faint`` before
box draws what is not there.
"""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
from html import escape
import re

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective

#: The width and height of a box, and the distance from box to box.
BOX = (160, 46)
STEP = (196, 92)
LINE = 16
#: The width of a character in a box, in the widest of the usual fonts.
CHARACTER = 8
MARGIN = 6

_BOX = re.compile(r'(faint )?box (\w+) (\d)(?:-(\d))? (\d) (.+)')
_ARROW = re.compile(
    r'arrow (\w+) (\w+)(?: shift=(-?\d+))?(?: around=(\d+))?(?: (.+))?'
)


@dataclasses.dataclass(frozen=True)
class Box:
    left: float
    top: float
    right: float
    bottom: float
    text: str
    faint: bool

    @property
    def x(self) -> float:
        return (self.left + self.right) / 2

    @property
    def y(self) -> float:
        return (self.top + self.bottom) / 2

    def is_too_narrow(self) -> bool:
        widest = max(len(each.strip()) for each in self.text.split('|'))
        return widest * CHARACTER > self.right - self.left


@dataclasses.dataclass(frozen=True)
class Arrow:
    start: Box
    end: Box
    shift: float
    around: float
    text: str

    def points(self) -> list[tuple[float, float]]:
        """Where the line begins, bends and ends."""
        one, two = self.start, self.end
        if self.around:
            x = max(one.right, two.right) + self.around
            return [
                (one.right, one.y),
                (x, one.y),
                (x, two.y),
                (two.right, two.y),
            ]
        down = one.bottom < two.top
        tops = (one.bottom, two.top) if down else (one.top, two.bottom)
        # Straight down from the narrower of two boxes above each other.
        narrow = min(one, two, key=lambda box: box.right - box.left)
        if max(one.left, two.left) <= narrow.x <= min(one.right, two.right):
            x = narrow.x + self.shift
            return [(x, tops[0]), (x, tops[1])]
        right = one.x < two.x
        ends = (one.right, two.left) if right else (one.left, two.right)
        if one.y == two.y:
            y = one.y + self.shift
            return [(ends[0], y), (ends[1], y)]
        return [(ends[0], one.y + self.shift), (ends[1], two.y + self.shift)]


def read(lines: list[str]) -> tuple[dict[str, Box], list[Arrow]]:
    """Read the source of a drawing.

    :raises ValueError: if a line is wrong, or a text is wider than its box
    """
    boxes: dict[str, Box] = {}
    arrows = []
    for line in filter(None, map(str.strip, lines)):
        if match := _BOX.fullmatch(line):
            faint, name, first, last, row, text = match.groups()
            boxes[name] = Box(
                MARGIN + int(first) * STEP[0],
                MARGIN + int(row) * STEP[1],
                MARGIN + int(last or first) * STEP[0] + BOX[0],
                MARGIN + int(row) * STEP[1] + BOX[1],
                text,
                bool(faint),
            )
            if boxes[name].is_too_narrow():
                raise ValueError(line)
        elif (match := _ARROW.fullmatch(line)) and boxes.keys() >= {
            match[1],
            match[2],
        }:
            arrows.append(
                Arrow(
                    boxes[match[1]],
                    boxes[match[2]],
                    float(match[3] or 0),
                    float(match[4] or 0),
                    match[5] or '',
                )
            )
        else:
            raise ValueError(line)
    return boxes, arrows


def _text(
    x: float, y: float, text: str, anchor: str, kind: str
) -> Iterator[str]:
    lines = text.split('|')
    top = y - (len(lines) - 1) * LINE / 2 + 4
    for number, line in enumerate(lines):
        yield (
            f'<text class="{kind}" x="{x:g}" y="{top + number * LINE:g}" '
            f'text-anchor="{anchor}">{escape(line.strip())}</text>'
        )


def _draw_arrow(arrow: Arrow, head: str) -> Iterator[str]:
    points = arrow.points()
    path = ' '.join(f'{x:g},{y:g}' for x, y in points)
    yield (
        f'<polyline class="arrow" points="{path}" marker-end="url(#{head})"/>'
    )
    (x, y), (to_x, to_y) = points[len(points) // 2 - 1 : len(points) // 2 + 1]
    if x == to_x:  # beside the line, on the side to which it was shifted
        side = -1 if arrow.shift < 0 else 1
        anchor = 'end' if side < 0 else 'start'
        yield from _text(
            x + 10 * side, (y + to_y) / 2, arrow.text, anchor, 'label'
        )
    else:
        yield from _text(
            (x + to_x) / 2, (y + to_y) / 2 - 2, arrow.text, 'middle', 'label'
        )


def draw(lines: list[str], title: str, head: str) -> str:
    """Draw a source as SVG.

    :param title: what a reader who does not see the drawing must know
    :param head: the id of the arrowhead; no other drawing of the page has it
    """
    boxes, arrows = read(lines)
    width = max(
        [box.right for box in boxes.values()]
        + [x for arrow in arrows for x, _ in arrow.points()]
    )
    height = max(box.bottom for box in boxes.values())
    out = [
        f'<svg class="drawing" role="img" width="{width + MARGIN:g}" viewBox='
        f'"0 0 {width + MARGIN:g} {height + MARGIN:g}" '
        'xmlns="http://www.w3.org/2000/svg">',
        f'<title>{escape(title)}</title>',
        f'<defs><marker id="{head}" viewBox="0 0 8 8" refX="8" refY="4" '
        'markerWidth="8" markerHeight="8" orient="auto-start-reverse">'
        '<path d="M0,0 L8,4 L0,8 z"/></marker></defs>',
    ]
    for box in boxes.values():
        kind = 'box faint' if box.faint else 'box'
        out.append(
            f'<rect class="{kind}" x="{box.left:g}" y="{box.top:g}" rx="4" '
            f'width="{box.right - box.left:g}" '
            f'height="{box.bottom - box.top:g}"/>'
        )
        out += _text(box.x, box.y, box.text, 'middle', 'name')
    for arrow in arrows:
        out += _draw_arrow(arrow, head)
    return '\n'.join([*out, '</svg>'])


class Drawing(SphinxDirective):
    has_content = True
    option_spec = {'alt': directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        title = ' '.join(self.options['alt'].split())
        head = f'arrowhead-{self.env.new_serialno("drawing")}'
        try:
            svg = draw(list(self.content), title, head)
        except ValueError as err:
            raise self.error(
                f'no line of a drawing, or too long for its box: {err}'
            ) from err
        return [nodes.raw('', svg, format='html')]


def setup(app):
    app.add_directive('drawing', Drawing)
    return {'parallel_read_safe': True, 'parallel_write_safe': True}

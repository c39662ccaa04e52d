# SPDX-License-Identifier: Apache-2.0

"""Tables that can be read on a narrow screen, and rows that do not split.

A narrow screen shows the cells of a row below each other. Each cell then
needs the heading of its column: it is added to the cell here, and os-acc.css
shows it only there.

In a simple table, a line with text in its first column begins a new row. So a
first cell of two lines becomes two rows by mistake. Such rows are warned of.
"""

from __future__ import annotations

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging

LOG = logging.getLogger(__name__)


def _entries(row: nodes.row) -> list[nodes.entry]:
    return list(row.findall(nodes.entry))


def _warn_of_split_rows(body: nodes.tbody) -> None:
    for row in body.findall(nodes.row):
        texts = [entry.astext().strip() for entry in _entries(row)]
        if not all(texts) or texts[0].endswith(','):
            LOG.warning(
                'a row of a table is empty in a column, or its first cell '
                'ends in a comma: %s. Make it a list-table',
                texts,
                location=row,
            )


def _add_headings(table: nodes.table) -> None:
    (head,) = table.findall(nodes.thead)
    headings = [entry.astext() for entry in _entries(head.children[0])]
    (body,) = table.findall(nodes.tbody)
    for row in body.findall(nodes.row):
        entries = _entries(row)
        if len(entries) != len(headings):
            continue  # a row that spans columns is a heading itself
        for entry, heading in list(zip(entries, headings, strict=True))[1:]:
            text = nodes.inline('', f'{heading}: ', classes=['column-heading'])
            if entry.children and isinstance(entry[0], nodes.paragraph):
                entry[0].insert(0, text)
            else:
                entry.insert(0, nodes.paragraph('', '', text))


def _each(app: Sphinx, doctree: nodes.document, _docname: str) -> None:
    for table in list(doctree.findall(nodes.table)):
        for body in table.findall(nodes.tbody):
            _warn_of_split_rows(body)
        if app.builder.format == 'html' and list(table.findall(nodes.thead)):
            _add_headings(table)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect('doctree-resolved', _each)
    return {'parallel_read_safe': True, 'parallel_write_safe': True}

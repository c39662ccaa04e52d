# SPDX-License-Identifier: Apache-2.0

"""The directives host-signs and host-ways: their tables, from the code."""

from docutils import nodes
from docutils.parsers.rst import Directive

from os_acc.availability.host_signs import blind_spots
from os_acc.availability.host_signs import table

_WIDTHS = (40, 45, 15)


def _entry(child):
    return nodes.entry('', nodes.paragraph('', '', child))


class _Table(Directive):
    head: str

    def rows(self):
        raise NotImplementedError

    def run(self):
        group = nodes.tgroup('', cols=len(_WIDTHS))
        group += [nodes.colspec('', colwidth=width) for width in _WIDTHS]
        heads = ('Kernel file', self.head, 'Since')
        group += nodes.thead(
            '', nodes.row('', *(_entry(nodes.Text(each)) for each in heads))
        )
        group += nodes.tbody(
            '',
            *(
                nodes.row(
                    '',
                    _entry(nodes.literal('', file)),
                    _entry(nodes.Text(meaning)),
                    _entry(nodes.Text(since)),
                )
                for file, meaning, since in self.rows()
            ),
        )
        return [nodes.table('', group)]


class HostSigns(_Table):
    head = 'What the host does'

    def rows(self):
        return [(each.file, each.meaning, each.since) for each in table.SIGNS]


class HostWays(_Table):
    head = 'What it tells'

    def rows(self):
        return blind_spots.WAYS


def setup(app):
    app.add_directive('host-signs', HostSigns)
    app.add_directive('host-ways', HostWays)
    return {'parallel_read_safe': True}

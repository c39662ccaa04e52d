# SPDX-License-Identifier: Apache-2.0

"""The directive refusals: a table of all refusals, from the code."""

import re

from docutils import nodes
from docutils.parsers.rst import Directive
import error_messages

from os_acc.availability import functions as availability
from os_acc.refusals import all_refusals

_HEADS = ('The error says', 'When', 'What to do')
_WIDTHS = (40, 30, 30)


def _shown(text):
    """A text with its values in capitals, as the other examples have them.

    A value without a blank before it is a clause that a text may lack.
    """
    text = re.sub(r'(?<=[\w}])\{\w+\}', '', text)
    return re.sub(
        r'\{(\w+)\}',
        lambda match: error_messages.SHOWN.get(match[1], match[1].upper()),
        text,
    )


def _error(category):
    """What the error of a category says around the text of a refusal."""
    return availability.Obstacle(category, 'DEVICE', '...').error()


def _sentence(text):
    return text[0].upper() + text[1:] + '.'


def _entry(*parts, **options):
    return nodes.entry('', nodes.paragraph('', '', *parts), **options)


def _head(category):
    error = _error(category)
    return nodes.row(
        '',
        _entry(
            nodes.strong('', _sentence(category.value)),
            nodes.Text(f' {type(error).__name__}: '),
            nodes.literal('', str(error)),
            morecols=len(_HEADS) - 1,
        ),
        classes=['group'],
    )


def _row(refusal):
    # The column beside it has the remedy.
    text = refusal.text.replace('{remedy}', '...')
    return nodes.row(
        '',
        _entry(nodes.literal('', _shown(text))),
        _entry(nodes.Text(refusal.when)),
        _entry(nodes.Text(_sentence(_shown(refusal.remedy)))),
    )


class Refusals(Directive):
    def run(self):
        group = nodes.tgroup('', cols=len(_HEADS))
        group += [nodes.colspec('', colwidth=width) for width in _WIDTHS]
        group += nodes.thead(
            '', nodes.row('', *(_entry(nodes.Text(each)) for each in _HEADS))
        )
        body = nodes.tbody()
        for category, found in all_refusals.table().items():
            body += _head(category)
            body += [_row(each) for each in found]
        group += body
        return [nodes.table('', group)]


def setup(app):
    app.add_directive('refusals', Refusals)
    return {'parallel_read_safe': True}

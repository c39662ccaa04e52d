# SPDX-License-Identifier: Apache-2.0

"""The directive os-acc-error: the message of an exception, and what to do.

.. os-acc-error:: DeviceBusy

   What it means, and what to do.

The message is taken from the class, so that it is the one that is printed.
"""

from __future__ import annotations

import re

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.util.docutils import SphinxDirective

from os_acc import exception

# "VAN VAN" would look like a mistake.
SHOWN = {'van': 'UUID'}


def message(error: type[exception.ExceptionBase]) -> str:
    """The message of an exception, with its values in capitals."""
    return re.sub(
        r'%\((\w+)\)[.\d]*[a-z]',
        lambda match: SHOWN.get(match[1], match[1].upper()),
        str(error.msg_fmt),
    )


class Error(SphinxDirective):
    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        error = getattr(exception, name, None)
        if error is None:
            raise self.error(f'os_acc.exception has no {name}')
        link = pending_xref(
            '',
            nodes.literal('', name),
            refdomain='py',
            reftype='exc',
            reftarget=f'os_acc.exception.{name}',
            refexplicit=True,
        )
        term = nodes.term('', '', link, ids=[f'error-{name.lower()}'])
        said = nodes.literal_block(
            '', message(error), language='none', classes=['message']
        )
        text = self.parse_content_to_nodes()
        item = nodes.definition_list_item(
            '', term, nodes.definition('', said, *text)
        )
        return [nodes.definition_list('', item)]


def setup(app):
    app.add_directive('os-acc-error', Error)
    return {'parallel_read_safe': True, 'parallel_write_safe': True}

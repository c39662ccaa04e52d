# SPDX-License-Identifier: Apache-2.0

"""Sphinx configuration of the documentation."""

import importlib.metadata
import inspect
import pathlib
import re
import sys

from docutils import nodes
from oslo_versionedobjects import base as ovo_base
from sphinx import addnodes

from os_acc import exception
from os_acc.cli import usage

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / 'ext'))

import error_messages

extensions = [
    'drawing',
    'error_messages',
    'host_signs',
    'refusal_table',
    'tables',
    'sphinx.ext.autodoc',
    'openstackdocstheme',
    'oslo_config.sphinxext',
    'oslo_config.sphinxconfiggen',
    'cliff.sphinxext',
    'reno.sphinxext',
]

project = 'os-acc'
author = 'the os-acc authors'
copyright = author  # noqa: A001
version = release = importlib.metadata.version('os-acc')

root_doc = 'index'
html_theme = 'openstackdocs'
html_theme_options = {
    # Send nothing to another site.
    'analytics_tracking_code': '',
    'display_badge': False,
    'sidebar_search': True,
}
# In place of the menus of the site openstack.org.
templates_path = ['_templates']
html_static_path = ['_static']
html_css_files = ['os-acc.css']
pygments_style = 'native'
# A block is Python only if it says so.
highlight_language = 'none'
# The list of contents shows the name of a method without its class: the class
# is the entry above it.
toc_object_entries_show_parents = 'hide'
html_domain_indices = False
# Options keep their two dashes, and what can be copied keeps its quotes.
smartquotes = False
man_pages = [
    (
        'cli',
        'os-acc',
        "show and change the accelerators of this host's instances",
        author,
        1,
    ),
]
openstackdocs_repo_name = 'openstack/os-acc'
openstackdocs_auto_name = False
openstackdocs_auto_version = False
openstackdocs_pdf_link = False

autodoc_member_order = 'bysource'
# As they are written: a number keeps its base, a function its name.
autodoc_preserve_defaults = True
autodoc_typehints = 'description'
autodoc_typehints_description_target = 'documented_params'
# Modules that have another name where they are imported.
autodoc_type_aliases = {
    'journal_module.Journal': 'os_acc.journal.Journal',
}

# Each reference must lead somewhere. The classes of other projects in type
# hints do not.
nitpicky = True
nitpick_ignore_regex = [
    ('py:class', r'(?!os_acc\.).*'),
    # Authors get these as the contract says. They do not make them.
    ('py:class', r'os_acc\.(journal\.\w+|reserved\.Reserved)'),
    # Type variables.
    ('py:class', r'os_acc\..*\._[A-Z]'),
    ('py:exc', r'cfg\..*'),
]

# The sample goes beside the other output: nothing is made in the source.
config_generator_config_file = [('config-generator.conf', '../build/os-acc')]

autoprogram_cliff_application = 'os-acc'
autoprogram_cliff_app_dist_name = 'os-acc'
# Each command has cliff's formatters: said once on the page.
autoprogram_cliff_ignored = [
    '-h', '--help', '-f', '--format', '-c', '--column', '--quote',
    '--noindent', '--max-width', '--fit-width', '--print-empty',
    '--sort-column', '--sort-ascending', '--sort-descending', '--prefix',
    '--variable',
]  # fmt: skip


def _comment_above(source, field):
    """The comment lines that stand above a field in its class."""
    match = re.search(rf"((?:^ *#.*\n)*)^ *'{field}':", source, re.MULTILINE)
    lines = match[1].splitlines() if match else []
    return ' '.join(line.strip(' #') for line in lines)


def _list_fields(_app, _what, _name, obj, _options, lines):
    """Add to the docstring of a versioned object what fields it has."""
    if not inspect.isclass(obj) or not issubclass(
        obj, ovo_base.VersionedObject
    ):
        return
    source = inspect.getsource(obj)
    own = obj.__dict__.get('fields') or {}
    if own:
        lines += ['', f'Version {obj.VERSION}. Fields:', '']
    for name in own:
        field = obj.fields[name]
        kind = type(field).__name__.removesuffix('Field')
        if hasattr(field, 'objname'):
            kind = kind.replace('Objects', field.objname)
            kind = kind.replace('Object', field.objname)
        if field.nullable:
            kind += ', may be None'
        text = _comment_above(source, name)
        lines.append(f'- ``{name}`` ({kind})' + (f': {text}' if text else ''))
    if own:
        lines.append('')


def _give_message(_app, _what, _name, obj, _options, lines):
    """Add to the docstring of an exception what it says."""
    if not inspect.isclass(obj) or not issubclass(
        obj, exception.ExceptionBase
    ):
        return
    if 'msg_fmt' in obj.__dict__:
        lines += ['', f'Message: ``{error_messages.message(obj)}``', '']


def _join_raises(_app, _what, _name, _obj, _options, lines):
    """Put the names of a :raises on one line: docutils wants them so."""
    text = re.sub(
        r':raises (?:\w+,\s+)*\w+:',
        lambda match: ' '.join(match[0].split()),
        '\n'.join(lines),
    )
    lines[:] = text.split('\n')


def _say_help(_app, doctree):
    """Give cliff's options the texts that os-acc --help has."""
    for option in doctree.findall(addnodes.desc):
        names = [each.astext() for each in option.findall(addnodes.desc_name)]
        for name in usage.TEXTS.keys() & set(names):
            (content,) = option.findall(addnodes.desc_content)
            content[:] = [nodes.paragraph('', usage.TEXTS[name])]


def _unlink_placeholders(_app, doctree):
    """Keep the form of a URI in a command's help from becoming a link."""
    for option in doctree.findall(addnodes.desc):
        for node in list(option.findall(nodes.reference)):
            if not node.get('refuri', 'http').startswith('http'):
                node.replace_self(nodes.Text(node.astext()))


def _leave_out_links(app, doctree, _docname):
    """Print only the titles of other pages in the man page."""
    if app.builder.name != 'man':
        return
    for node in list(doctree.findall(nodes.reference)):
        if not node.get('refuri', '').startswith('http'):
            node.replace_self(nodes.emphasis('', node.astext()))


def _name_description(app, doctree, _docname):
    """Put the text before the first section of the man page in a section.

    Without that, it would be in the section NAME.
    """
    if app.builder.name != 'man':
        return
    (page,) = (n for n in doctree.children if isinstance(n, nodes.section))
    first = page.first_child_matching_class(nodes.section)
    title = nodes.title('', 'Description')
    text = page.children[1:first]
    page[1:first] = [nodes.section('', title, *text, ids=['description'])]


def _hide_signature(_app, _what, _name, obj, _options, _signature, returned):
    """Hide the (**kwargs) of classes whose fields or message name them."""
    bases = (ovo_base.VersionedObject, exception.ExceptionBase)
    if inspect.isclass(obj) and issubclass(obj, bases) and obj not in bases:
        return '', returned
    return None


def _break_names(_app, _page, _template, context, _doctree):
    """Mark where inline code may break across lines.

    A short word is marked, and os-acc.css does not break it. A long one, such
    as a path, breaks after a slash or an underscore.
    """

    def breakable(match):
        if len(match[1]) <= 24:
            return f'<span class="pre short">{match[1]}</span>'
        word = re.sub(r'(?<=\w)[/_]', r'\g<0><wbr>', match[1])
        return f'<span class="pre">{word}</span>'

    context['body'] = re.sub(
        r'<span class="pre">([^<]+)</span>',
        breakable,
        context.get('body', ''),
    )


def setup(app):
    app.connect('html-page-context', _break_names)
    app.connect('doctree-read', _say_help)
    app.connect('doctree-read', _unlink_placeholders)
    app.connect('doctree-resolved', _leave_out_links)
    app.connect('doctree-resolved', _name_description)
    app.connect('autodoc-process-signature', _hide_signature)
    app.connect('autodoc-process-docstring', _list_fields)
    app.connect('autodoc-process-docstring', _give_message)
    app.connect('autodoc-process-docstring', _join_raises)

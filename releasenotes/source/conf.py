# SPDX-License-Identifier: Apache-2.0
"""Sphinx configuration of the release notes."""

extensions = ['openstackdocstheme', 'reno.sphinxext']

project = 'os-acc Release Notes'
author = 'the os-acc authors'
copyright = author  # noqa: A001
# Release notes do not need a version in the title: they cover all of them.
version = release = ''

root_doc = 'index'
html_theme = 'openstackdocs'
# As in doc/source/conf.py.
html_theme_options = {'analytics_tracking_code': '', 'display_badge': False}
templates_path = ['../../doc/source/_templates']
pygments_style = 'native'
openstackdocs_repo_name = 'openstack/os-acc'
openstackdocs_auto_name = False
openstackdocs_auto_version = False
openstackdocs_pdf_link = False

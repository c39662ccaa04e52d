# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
"""Sphinx configuration of the release notes."""

extensions = ['openstackdocstheme', 'reno.sphinxext']

project = 'os-acc Release Notes'
author = 'the os-acc authors'
copyright = author  # noqa: A001
# Release notes do not need a version in the title: they cover all of them.
version = release = ''

root_doc = 'index'
html_theme = 'openstackdocs'
pygments_style = 'native'
openstackdocs_repo_name = 'openstack/os-acc'
openstackdocs_auto_name = False
openstackdocs_auto_version = False
openstackdocs_pdf_link = False

# SPDX-License-Identifier: Apache-2.0

"""PCI addresses: what the kernel shows is read, and written as it was."""

from __future__ import annotations

import json
import pathlib
import re

from hypothesis import given
from hypothesis import strategies as st
from lxml import etree
import pytest

import os_acc
from os_acc import objects
from os_acc.cyborg import report
from os_acc.kernel import libvirt_domains
from os_acc.kernel import pci
from os_acc.spec import changing
from os_acc.spec import device_spec

VMD = '10000:e1:00.0'

_PARTS = st.tuples(*(st.integers(0, most) for most in pci.LARGEST.values()))


@given(_PARTS)
def test_every_address_survives_the_round_trip(parts):
    text = pci.join(*parts)
    assert pci.parse(text) == parts
    assert pci.parse(text.upper()) == parts
    assert pci.is_address(text)
    assert objects.PCIHandle(address=text).address == text
    node = 'pci_' + text.replace(':', '_').replace('.', '_')
    assert pci.parse_node_name(node) == parts
    assert report.controlled(report.control_path(text)) == text


@given(_PARTS)
def test_every_address_is_read_in_a_domain_of_libvirt(parts):
    """As an argument for QEMU, which need not have the zeros."""
    text = pci.join(*parts)
    domain = etree.fromstring(
        '<domain xmlns:qemu="http://libvirt.org/schemas/domain/qemu/1.0">'
        f'<qemu:arg value="vfio-pci,host={text}"/></domain>'
    )
    assert list(libvirt_domains.devices(domain)) == [text]


def test_only_one_module_writes_addresses():
    root = pathlib.Path(os_acc.__file__).parent
    plugins = root.parent / 'vif_like_plugins'
    found = [
        path.name
        for directory in (root, plugins)
        for path in directory.rglob('*.py')
        if re.search(r'04x(?:\}:\{\w+|:%)(?::?02x)', path.read_text('utf-8'))
    ]
    assert found == ['pci.py']


@given(_PARTS)
def test_device_spec_names_the_address_and_no_other(parts):
    text = pci.join(*parts)
    changing.check_names({'address': text}, text)
    (spec,) = device_spec.parse(json.dumps({'address': text}))
    assert spec.address.complete == text
    values = text.replace('.', ':').split(':')
    regexes = dict(zip(pci.LARGEST, values, strict=True))
    (spec,) = device_spec.parse(json.dumps({'address': regexes}))
    assert spec.address.complete == text


@pytest.mark.parametrize(
    'text',
    [
        '00010000:00:00.0',
        '010000:00:00.0',
        '0000:3B:00.0',
        '0000:00:20.0',
        '0000:00:00.8',
        '100000000:00:00.0',
        '3b:00.0',
        '0000:3b:00.0\n',
    ],
)
def test_what_the_kernel_does_not_show_is_not_canonical(text):
    assert not pci.is_address(text)


@pytest.mark.parametrize(
    ('entry', 'expected'),
    [
        (VMD, True),
        ('*:e1:00.0', True),
        ('10000:*:*.*', True),
        ('1000:*:*.*', False),
        ({'domain': '1000'}, False),
        ({'domain': '10000'}, True),
        ({'domain': '1000.'}, True),
    ],
)
def test_which_domains_an_entry_names(kernel, entry, expected):
    kernel.add_function(VMD)
    (spec,) = device_spec.parse(json.dumps({'address': entry}))
    assert spec.matches(pci.get(VMD)) == expected

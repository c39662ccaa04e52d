# SPDX-License-Identifier: Apache-2.0

"""os-acc export: applied at once, the document changes nothing."""

from __future__ import annotations

import applied
import devices
import pytest

import os_acc
from os_acc import exception
from os_acc.desired import export
from os_acc.operations import discovery
from os_acc.spec import device_spec


@pytest.fixture
def here(kernel, tmp_path):
    os_acc.CONF.set_override(
        'allowed_folders', [str(tmp_path)], 'os_acc_bitstreams'
    )
    return applied.Host(kernel, tmp_path)


def test_a_bitstream_stays_in_the_document(here, tmp_path):
    path = tmp_path / 'aes.bin'
    path.write_text('aes')
    first = {'device': 'fpga', 'region': '0', 'function': 'aes'}
    first['bitstream'] = str(path)
    card = {'device': 'card', 'function': 'gzip'}
    os_acc.apply({'version': 1, 'functions': [first, card]})
    found = export.export(os_acc._host)
    assert sorted(found['functions'], key=str) == sorted(
        [first, card], key=str
    )
    before = os_acc._host.journal.desired()
    assert os_acc.apply(found).results() == {'unchanged'}
    after = os_acc._host.journal.desired()
    assert str(path) in after.document
    assert len(after.document) == len(before.document)
    # The bitstream is not that of another function.
    assert os_acc.program_device('fpga', None, 'sha', '0')
    (held,) = (
        each
        for each in export.export(os_acc._host)['functions']
        if each['device'] == 'fpga'
    )
    assert held == {'device': 'fpga', 'region': '0', 'function': 'sha'}


def test_devices_that_cannot_be_listed(here, monkeypatch):
    """A document without their functions would look complete."""

    def fail(host):
        raise exception.DiscoveryFailed([], errors='a driver')

    monkeypatch.setattr(discovery, 'devices', fail)
    with pytest.raises(exception.DiscoveryFailed):
        export.export(os_acc._host)


@pytest.mark.parametrize('where', ['option', 'document'])
def test_entries_that_say_the_same(here, where):
    entries = [
        {'vendor_id': text, 'product_id': '4940'}
        for text in ('8086', '0x8086')
    ]
    devices.spec(*entries if where == 'option' else entries[:1])
    found = export.export(os_acc._host)
    if where == 'document':
        found['offered'] = entries
    assert os_acc.apply(found, check=True).steps == []
    assert os_acc.apply(found).steps == []
    known = device_spec.load(os_acc.CONF).entries
    assert {each.vendor_id for each in known} == {'8086'}


def test_other_entries_are_a_change(here):
    devices.spec({'vendor_id': '8086', 'product_id': '4940'})
    found = export.export(os_acc._host)
    found['offered'].append({'vendor_id': '8086', 'product_id': '4941'})
    (step,) = os_acc.apply(found, check=True).steps
    assert (step.part, step.result) == ('offered', 'would change')

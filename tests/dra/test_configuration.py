# SPDX-License-Identifier: Apache-2.0

"""The configuration of claims and classes: strict, and in its order."""

from __future__ import annotations

from node_parts import DRIVER
from node_parts import GPU
import pytest
import stand_in_kubelet
import vendor

import os_acc
from os_acc import exception
from os_acc_dra import attributes
from os_acc_dra import configuration
from os_acc_dra import errors
from os_acc_dra import offers

ONE = offers.name_of(f'pci/{GPU}')
HEAD = {
    'apiVersion': 'os-acc.openstack.org/v1',
    'kind': 'AcceleratorConfig',
}


def entry(source, requests=(), driver=DRIVER, **values):
    return {
        'source': source,
        'requests': list(requests),
        'opaque': {'driver': driver, 'parameters': {**HEAD, **values}},
    }


def read(*entries, requests=('a', 'b')):
    claim = {'status': {'allocation': {'devices': {'config': list(entries)}}}}
    return configuration.of_claim(claim, requests, DRIVER)


def functions(*entries, requests=('a', 'b')):
    return {
        name: each.function
        for name, each in read(*entries, requests=requests).items()
    }


def test_a_claim_without_configuration():
    none = configuration.Configuration()
    assert read() == {'a': none, 'b': none}
    assert none.selectors() == {}


def test_the_claim_has_the_last_word():
    """Wherever it is in the list; other keys of the class stay."""
    found = read(
        entry('FromClaim', function='of-claim'),
        entry('FromClass', function='of-class', bitstream='/srv/one.bin'),
    )
    assert found['a'].selectors() == {
        'function_id': 'of-claim',
        'bitstream': '/srv/one.bin',
    }


def test_of_two_entries_of_one_source_the_later_counts():
    assert functions(
        entry('FromClass', function='one'), entry('FromClass', function='two')
    ) == {'a': 'two', 'b': 'two'}


def test_an_entry_for_a_request():
    assert functions(
        entry('FromClaim', ['a'], function='one'),
        entry('FromClaim', ['b/fast'], function='two'),
        requests=('a/sub', 'a', 'b/fast', 'b/slow'),
    ) == {'a/sub': 'one', 'a': 'one', 'b/fast': 'two', 'b/slow': None}


def test_the_entries_of_other_drivers_are_theirs():
    other = entry('FromClaim', driver='other.example.org', anything=1)
    assert functions(other) == {'a': None, 'b': None}
    empty = {'source': 'FromClaim', 'requests': []}
    assert functions(empty) == {'a': None, 'b': None}


@pytest.mark.parametrize(
    ('values', 'said'),
    [
        ({'functoin': 'x'}, 'parameters.functoin is unknown; there are func'),
        ({'function': 7}, 'parameters.function is 7, expected a name'),
        ({'function': ''}, "parameters.function is '', expected a name"),
        ({'function': 'a b'}, "parameters.function is 'a b', expected"),
        ({'function': None}, 'parameters.function is None, expected'),
        ({'kind': 'Other'}, "parameters.kind is 'Other', expected 'Acc"),
        ({'apiVersion': 'v2'}, "parameters.apiVersion is 'v2', expected"),
        ({'bitstream': '/a'}, 'only a DeviceClass may have bitstream'),
        ({'env': ['A=B']}, 'parameters.env is unknown'),
    ],
)
def test_what_is_wrong_is_refused(values, said):
    good = entry('FromClass', function='aes-256')
    with pytest.raises(errors.ClaimRefused) as caught:
        read(good, entry('FromClaim', **values))
    assert str(caught.value).startswith('config[1] FromClaim')
    assert said in str(caught.value)


@pytest.mark.parametrize('parameters', [None, 'text', [], 5])
def test_parameters_that_are_no_object(parameters):
    wrong = entry('FromClaim')
    wrong['opaque']['parameters'] = parameters
    with pytest.raises(errors.ClaimRefused, match='expected an object'):
        read(wrong)


@pytest.mark.parametrize('value', ['', 5, 'x' * 5000])
def test_a_bitstream_that_is_none(value):
    with pytest.raises(errors.ClaimRefused, match=r'parameters\.bitstream is'):
        read(entry('FromClass', bitstream=value))


@pytest.mark.parametrize(
    'value',
    [
        ['https://user:s3cr3t@images/aes'],
        {'url': 'https://user:s3cr3t@images/aes'},
        'https://user:s3cr3t@images/' + 'a' * 5000,
    ],
)
def test_an_error_has_no_password(value):
    with pytest.raises(errors.ClaimRefused) as caught:
        read(entry('FromClass', bitstream=value))
    assert 's3cr3t' not in str(caught.value)
    wrong = entry('FromClass')
    wrong['opaque']['parameters'] = value
    with pytest.raises(errors.ClaimRefused) as caught:
        read(wrong, entry('FromClass', apiVersion=value))
    assert 's3cr3t' not in str(caught.value)


def test_any_key_has_an_answer(node):
    """JSON can have half of a surrogate pair, and a long key."""
    made = node.claim(
        'one', ONE, config=[entry('FromClaim', **{'\ud800' * 1000: 1})]
    )
    with pytest.raises(stand_in_kubelet.PrepareFailed, match='is unknown'):
        node.kubelet.prepare(made)


def test_a_wrong_entry_takes_no_device(node):
    claim = node.claim('one', ONE, config=[entry('FromClaim', functoin='x')])
    with pytest.raises(stand_in_kubelet.PrepareFailed, match='functoin'):
        node.kubelet.prepare(claim)
    assert len(os_acc.get_vans()) == 0


def test_the_function_is_asked_of_os_acc(node):
    """A GPU can have none, and os-acc says so."""
    claim = node.claim('one', ONE, config=[entry('FromClaim', function='x1')])
    with pytest.raises(stand_in_kubelet.PrepareFailed, match='x1'):
        node.kubelet.prepare(claim)
    assert len(os_acc.get_vans()) == 0


def test_an_fpga_is_programmed_once(node, tmp_path):
    """The next claim with the function shares it; another one is refused."""
    tool = vendor.installed(node.kernel, tmp_path / 'vendor')
    names = [offers.name_of(f'pci/{each}') for each in vendor.VFS]

    def claim(name, number, function):
        wanted = entry(
            'FromClass', function=function, bitstream=tool.bitstream(function)
        )
        return node.claim(name, names[number], config=[wanted])

    first, second = claim('one', 0, 'aes'), claim('two', 1, 'aes')
    other = claim('three', 2, 'sha')
    node.kubelet.prepare(first)
    node.kubelet.prepare(second)
    assert len(tool.calls()) == 1
    assert tool.function() == 'aes'
    with pytest.raises(
        stand_in_kubelet.PrepareFailed, match='is programmed with aes and used'
    ):
        node.kubelet.prepare(other)
    found = offers.by_name(os_acc.get_devices())
    for name in names:
        assert attributes.of(found[name])['functionID'] == {'string': 'aes'}
    node.kubelet.unprepare(first, second)
    node.kubelet.prepare(other)
    assert tool.function() == 'sha'


def test_the_request_has_function_and_bitstream(node, monkeypatch):
    asked = []
    plug = os_acc.plug

    def seen(instance, requests, **kwargs):
        asked.extend(requests)
        plain = [each.obj_clone() for each in requests]
        for each in plain:
            each.function_id = each.bitstream = None
        return plug(instance, plain, **kwargs)

    monkeypatch.setattr(os_acc, 'plug', seen)
    claim = node.claim(
        'one',
        ONE,
        config=[
            entry('FromClass', bitstream='/srv/aes.bin'),
            entry('FromClaim', function='aes-256'),
        ],
    )
    node.kubelet.prepare(claim)
    assert (asked[0].function_id, asked[0].bitstream) == (
        'aes-256',
        '/srv/aes.bin',
    )


def test_the_journal_has_no_password_of_a_url(node, tmp_path, monkeypatch):
    """After a reboot the bitstream is that of the claim."""
    tool = vendor.installed(node.kernel, tmp_path / 'vendor')
    wanted = entry(
        'FromClass', function='aes', bitstream=tool.bitstream('aes')
    )
    name = offers.name_of(f'pci/{vendor.VFS[0]}')
    claim = node.claim('one', name, config=[wanted])
    ids = node.kubelet.prepare(claim)

    def replug(instance, progress):
        raise exception.PlugException(
            instance=instance, err='its secret is not in the journal'
        )

    monkeypatch.setattr(os_acc, 'replug', replug)
    node.kubelet.prepared.clear()
    assert node.kubelet.prepare(claim) == ids
    # Without a bitstream there is nothing else to try.
    other = node.claim('two', offers.name_of(f'pci/{vendor.VFS[1]}'))
    node.kubelet.prepare(other)
    node.kubelet.prepared.clear()
    with pytest.raises(
        stand_in_kubelet.PrepareFailed, match='not in the journal'
    ):
        node.kubelet.prepare(other)

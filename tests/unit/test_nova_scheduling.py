# SPDX-License-Identifier: Apache-2.0

"""The weigher and filter for Nova's scheduler, on a stand-in for Nova."""

from __future__ import annotations

import importlib
import types

from keystoneauth1 import exceptions as keystone
import nova_double
import pytest

from os_acc.placement import functions

FPGA, AES = 'CUSTOM_FPGA', functions.trait('aes')


@pytest.fixture
def nova(monkeypatch, tmp_path):
    yield nova_double.install(monkeypatch, tmp_path / 'nova')
    nova_double.uninstall()


@pytest.fixture
def weigh(nova):
    """Weigh hosts, each given as a list of candidates.

    A candidate is a dict of providers, each with its resource class.
    """
    scheduling = importlib.import_module('os_acc_nova.scheduling')
    weigher, passing = (
        scheduling.FunctionWeigher(),
        scheduling.FunctionFilter(),
    )

    def call(hosts, with_filter=False, **extra_specs):
        states = [
            types.SimpleNamespace(
                allocation_candidates=[
                    {
                        'allocations': {
                            'root': {'resources': {'VCPU': 1}},
                            **{
                                provider: {'resources': {name: 1}}
                                for provider, name in each.items()
                            },
                        }
                    }
                    for each in candidates
                ]
            )
            for candidates in hosts
        ]
        spec = types.SimpleNamespace(
            flavor=types.SimpleNamespace(extra_specs=extra_specs)
        )
        if with_filter:
            weights = None
            assert list(passing.filter_all(iter(states), spec)) == states
        else:
            weights = weigher.weigh_objects(
                [types.SimpleNamespace(obj=each) for each in states], spec
            )
        order = [
            [
                sorted(c['allocations'].keys() - {'root'})
                for c in each.allocation_candidates
            ]
            for each in states
        ]
        return weights, order

    return call


def holds(nova, trait, *providers, status=200):
    path = f'/resource_providers?required={trait}'
    nova.placement.answers[path] = types.SimpleNamespace(
        status_code=status,
        text='No such trait',
        json=lambda: {
            'resource_providers': [{'uuid': each} for each in providers]
        },
    )


WANTS_AES = {f'resources:{FPGA}': '1', 'os_acc:function_id': 'aes'}


def test_the_function_goes_first_and_then_an_empty_device(nova, weigh):
    holds(nova, AES, 'has-aes', 'has-aes-too')
    holds(nova, functions.EMPTY, 'empty')
    weights, order = weigh(
        [
            [{'has-sha': FPGA}, {'empty': FPGA}],
            [{'has-sha-too': FPGA}],
            [{'empty': FPGA}, {'has-sha': FPGA}, {'has-aes': FPGA}],
            [],
        ],
        **WANTS_AES,
    )
    assert weights == [0.5, 0.0, 1.0, 0.0]
    # The first candidate is the one that Nova takes.
    assert order == [
        [['empty'], ['has-sha']],
        [['has-sha-too']],
        [['has-aes'], ['empty'], ['has-sha']],
        [],
    ]


def test_the_filter_puts_the_best_device_of_a_single_host_first(nova, weigh):
    holds(nova, AES)
    holds(nova, functions.EMPTY, 'empty')
    _, order = weigh(
        [[{'has-sha': FPGA}, {'empty': FPGA}]], with_filter=True, **WANTS_AES
    )
    assert order == [[['empty'], ['has-sha']]]


def test_a_provider_of_another_class_does_not_count(nova, weigh):
    holds(nova, AES, 'other')
    holds(nova, functions.EMPTY)
    weights, _ = weigh([[{'other': 'CUSTOM_DSA'}]], **WANTS_AES)
    assert weights == [0.0]


def test_each_function_of_a_flavor_counts(nova, weigh):
    holds(nova, AES, 'one')
    holds(nova, functions.trait('sha'), 'two')
    holds(nova, functions.EMPTY)
    specs = {
        f'resources1:{FPGA}': '1',
        'os_acc1:function_id': 'aes',
        'resources2:CUSTOM_OTHER': '1',
        'os_acc2:function_id': 'sha',
    }
    weights, _ = weigh(
        [
            [{'one': FPGA, 'three': 'CUSTOM_OTHER'}],
            [{'one': FPGA, 'two': 'CUSTOM_OTHER'}],
        ],
        **specs,
    )
    assert weights == [0.5, 1.0]


def test_a_function_that_no_provider_ever_had(nova, weigh):
    holds(nova, AES, status=400)
    holds(nova, functions.EMPTY, 'empty')
    weights, _ = weigh([[{'empty': FPGA}], [{'a': FPGA}]], **WANTS_AES)
    assert weights == [0.5, 0.0]


def test_other_flavors_are_not_weighed(nova, weigh):
    # Placement is not asked.
    for specs in ({}, {f'resources:{FPGA}': '1'}):
        assert weigh([[{'a': FPGA}], []], **specs)[0] == [0.0, 0.0]


def test_the_scheduler_goes_on_without_placement(nova, weigh, monkeypatch):
    def fails(*args, **kwargs):
        raise keystone.ConnectFailure('no route')

    monkeypatch.setattr(nova.placement, 'get', fails)
    assert weigh([[{'a': FPGA}]], **WANTS_AES)[0] == [0.0]
    # A flavor with a mistake is refused where it is plugged.
    assert weigh([[{'a': FPGA}]], **{'os_acc:functoin': 'a'})[0] == [0.0]


def test_it_outweighs_nova_s_weighers(nova):
    """Eight of them prefer a host by up to 1 each, and a step here is 0.5."""
    weigher = importlib.import_module(
        'os_acc_nova.scheduling'
    ).FunctionWeigher()
    assert weigher.weight_multiplier(None) * 0.5 > 8

# SPDX-License-Identifier: Apache-2.0

"""The UUIDs that os-acc makes of names."""

from __future__ import annotations

import uuid

import hypothesis
from hypothesis import strategies
import pytest

from os_acc import exception
from os_acc.state import instance_names

UUID = 'ac407c84-63e6-412c-91a9-6bf933a420ad'
NAMES = strategies.text(
    strategies.characters(codec='utf-8'), min_size=1, max_size=40
).filter(lambda text: bool(text.strip()) and text.isprintable())


def test_they_stay_the_same():
    """Journals have them: a change would lose the devices of instances."""
    web = instance_names.instance_uuid('web')
    assert web == '42dc1d6f-4c6f-5e16-a4bd-0d37972cbcb3'
    assert instance_names.request_uuid(web, 0) == (
        '50cc9cdf-cd13-5657-94a5-418c3dc3823e'
    )
    assert instance_names.attachment_uuid('net', 'c', 'acc0') == (
        '31d421c2-939a-59ce-8620-ab9a7ed14040'
    )


@pytest.mark.parametrize(
    'text',
    [UUID, UUID.upper(), UUID.replace('-', ''), f'{{{UUID}}}'],
)
def test_a_uuid_stays_a_uuid(text):
    assert instance_names.instance_uuid(text) == UUID


@pytest.mark.parametrize(
    'text',
    [
        UUID[:-1],
        UUID + '0',
        UUID.replace('-', '')[:-1],
        '',
        '  ',
        'a\nb',
        'a\x00',
        'x' * 256,
    ],
)
def test_no_name(text):
    with pytest.raises(exception.InvalidRequest) as caught:
        instance_names.instance_uuid(text)
    assert 'expected a UUID, or a name' in str(caught.value)


@hypothesis.given(strategies.lists(NAMES, min_size=2, max_size=2, unique=True))
def test_two_names_are_two_instances(names):
    try:
        made = {instance_names.instance_uuid(name) for name in names}
    except exception.InvalidRequest:
        hypothesis.reject()
    assert len(made) == 2
    assert all(str(uuid.UUID(each)) == each for each in made)


@hypothesis.given(NAMES, NAMES, NAMES)
def test_no_name_leads_to_an_attachment(network, container, interface):
    made = instance_names.attachment_uuid(network, container, interface)
    for separator in ('', '/', '-', ' ', '", "'):
        name = separator.join([network, container, interface])
        assert made != instance_names.instance_uuid('n' + name)
        assert made != str(uuid.uuid5(instance_names.INSTANCES, name))


def test_attachments_are_apart():
    parts = [('a', 'b', 'c'), ('a', 'b-c', 'd'), ('a-b', 'c', 'd')]
    made = {instance_names.attachment_uuid(*each) for each in parts}
    assert len(made) == 3


def test_a_name_that_cannot_be_encoded_is_no_service():
    """Such as one of a file in JSON with a part of a character."""
    assert instance_names.host_service(UUID, 'host:\udc80') is None

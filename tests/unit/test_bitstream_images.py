# SPDX-License-Identifier: Apache-2.0

"""Bitstreams from Glance: which images are used.

openstacksdk talks to an image service on the loopback.
"""

from __future__ import annotations

import hashlib
import os
import sys
import uuid

import downloads
from downloads import fetch
from downloads import option
from downloads import refused
import pytest
import web

from os_acc import exception
from os_acc.programming import bitstreams

CONTENT = os.urandom(300_000)
DIGEST = hashlib.sha256(CONTENT).hexdigest()
FUNCTION = 'd8424dc4-a4a3-c413-f89e-433683f9040b'
TENANT = '3c5d8e01f4a94b7e8f60c2a7d1b94e52'
FOREIGN = ('private', 'shared', 'community')


@pytest.fixture
def glance(clean, tmp_path):
    with downloads.glance(tmp_path) as made:
        yield made


@pytest.fixture
def cache(clean, tmp_path):
    return tmp_path / 'state/bitstreams'


def named(function):
    return {'accel:function_id': function}


def test_an_image(glance, cache):
    image = glance.put_image(CONTENT, **{'accel:function_id': 'aes'})
    with bitstreams.fetched(image.upper()) as found:
        assert found.function_id == 'aes'
        assert found.sha256 == DIGEST
    assert [path.name[:7] for path in cache.iterdir()] == ['sha512-']
    assert fetch(image, 'aes') == CONTENT
    assert 'its function is aes, expected sha' in refused(image, 'sha')
    path = f'/image/v2/images/{image}/file'
    assert glance.downloads(path) == [None]


@pytest.mark.parametrize(
    ('name', 'extension'),
    [('aes.xclbin', '.xclbin'), ('aes', ''), (None, ''), ('../x/..', '')],
)
def test_the_extension_of_the_name_is_kept(glance, name, extension):
    image = glance.put_image(CONTENT, name=name)
    with bitstreams.fetched(image) as found:
        assert os.path.splitext(found.path)[1] == extension


def test_an_image_with_an_empty_function(glance):
    image = glance.put_image(CONTENT, **{'accel:function_id': ''})
    with bitstreams.fetched(image) as found:
        assert found.function_id is None


def test_an_image_that_is_resumed(glance):
    image = glance.put_image(CONTENT)
    glance.drops = 2
    assert fetch(image) == CONTENT
    path = f'/image/v2/images/{image}/file'
    asked = glance.downloads(path)
    assert len(asked) == 3
    assert asked[0] is None


def test_images_that_are_no_good(glance, cache):
    unknown = '0a0a0a0a-0000-4000-8000-00000000ffff'
    assert 'HTTP 404' in refused(unknown)
    queued = glance.put_image(CONTENT, status='queued')
    assert "'queued'" in refused(queued)
    md5 = glance.put_image(CONTENT, os_hash_algo='md5')
    assert "'md5'" in refused(md5)
    bare = glance.put_image(CONTENT, os_hash_algo=None, os_hash_value=None)
    assert "'None'" in refused(bare)
    wrong = glance.put_image(CONTENT, os_hash_value='0' * 128)
    assert 'expected ' + '0' * 128 in refused(wrong)
    assert list(cache.iterdir()) == []


def test_by_function(glance):
    glance.page_size = 1
    for function in ('aes', 'sha', 'fft'):
        glance.put_image(
            function.encode(),
            **{'accel:function_id': function, 'accel:region_type_id': 'r1'},
        )
    glance.put_image(b'old', status='queued', **{'accel:function_id': 'sha'})
    assert fetch(None, 'sha') == b'sha'
    assert fetch(None, 'fft', 'r1') == b'fft'
    assert '0 images match' in refused(None, 'sha', 'r2')
    assert '0 images match' in refused(None, 'none')


def test_two_images_with_one_function(glance):
    ids = [
        glance.put_image(
            kind.encode(),
            **{'accel:function_id': 'aes', 'accel:region_type_id': kind},
        )
        for kind in ('r1', 'r2')
    ]
    glance.page_size = 1
    reason = refused(None, 'aes')
    assert '2 images match' in reason
    assert all(image in reason for image in ids)
    assert fetch(None, 'aes', 'r2') == b'r2'


def test_glance_is_not_well(glance):
    image = glance.put_image(CONTENT)
    glance.status[f'/image/v2/images/{image}'] = 500
    assert '500' in refused(image)
    option('cloud', 'elsewhere')
    assert 'elsewhere' in refused(image)


def test_without_openstacksdk(clean, monkeypatch):
    monkeypatch.setitem(sys.modules, 'openstack', None)
    assert 'os-acc[openstack]' in refused(None, 'aes')


# --- owners


@pytest.mark.parametrize('visibility', FOREIGN)
def test_an_image_of_another_tenant_is_not_counted(glance, visibility):
    """A tenant blocks nobody with an image that has the same property."""
    glance.put_image(
        b'evil', visibility=visibility, owner=TENANT, **named('aes')
    )
    good = glance.put_image(b'good', **named('aes'))
    assert fetch(None, 'aes') == b'good'
    del glance.images[good]
    reason = refused(None, 'aes')
    assert '0 images match' in reason
    assert '[os_acc_bitstreams] image_owners' in reason
    assert TENANT not in reason


def test_many_images_of_another_tenant_are_not_even_listed(glance):
    glance.page_size = 2
    for _ in range(50):
        glance.put_image(
            b'evil', visibility='private', owner=TENANT, **named('aes')
        )
    glance.put_image(b'good', **named('aes'))
    assert fetch(None, 'aes') == b'good'
    assert len(glance.downloads('/image/v2/images')) == 1


def test_an_image_service_that_ignores_the_filters(glance):
    glance.filters = False
    glance.page_size = 2
    for number in range(5):
        glance.put_image(
            b'evil', visibility='private', owner=TENANT, **named('aes')
        )
        glance.put_image(b'other', **named(f'function-{number}'))
    glance.put_image(b'good', **named('aes'))
    assert fetch(None, 'aes') == b'good'


@pytest.mark.parametrize('visibility', FOREIGN)
def test_a_private_image_of_a_trusted_project(glance, visibility):
    image = glance.put_image(
        b'ours', visibility=visibility, owner=TENANT, **named('aes')
    )
    option('image_owners', ['another', TENANT])
    assert fetch(None, 'aes') == b'ours'
    assert fetch(image) == b'ours'


def test_duplicates_of_trusted_owners_are_an_error_that_names_them(glance):
    option('image_owners', [TENANT])
    ids = [
        glance.put_image(
            b'ours', visibility='private', owner=TENANT, **named('aes')
        ),
        glance.put_image(b'public', **named('aes')),
    ]
    foreign = glance.put_image(
        b'x', visibility='private', owner='foreign', **named('aes')
    )
    reason = refused(None, 'aes')
    assert '2 images match' in reason
    assert all(image in reason for image in ids)
    assert foreign not in reason


def test_a_public_image_of_a_trusted_project_is_one_image(glance):
    option('image_owners', [web.ADMIN])
    glance.put_image(b'ours', **named('aes'))
    assert fetch(None, 'aes') == b'ours'


@pytest.mark.parametrize('visibility', FOREIGN)
def test_an_image_of_another_tenant_by_its_uuid(glance, cache, visibility):
    image = glance.put_image(CONTENT, visibility=visibility, owner=TENANT)
    reason = refused(image)
    assert image in reason
    assert f'its visibility is {visibility!r}' in reason
    assert f'its owner is project {TENANT}' in reason
    assert '[os_acc_bitstreams] image_owners' in reason
    assert not cache.exists()
    option('image_owners', [TENANT])
    assert fetch(image) == CONTENT


# --- spellings


@pytest.mark.parametrize(
    'form',
    [
        str,
        lambda text: text.upper(),
        lambda text: text.replace('-', ''),
        lambda text: '{' + text + '}',
        lambda text: f'urn:uuid:{text}',
    ],
)
def test_the_uuid_of_an_image_in_any_form(glance, form):
    assert fetch(form(glance.put_image(CONTENT))) == CONTENT


@pytest.mark.parametrize('asked', [FUNCTION, uuid.UUID(FUNCTION).hex])
@pytest.mark.parametrize(
    'there',
    [
        FUNCTION,
        FUNCTION.upper(),
        uuid.UUID(FUNCTION).hex,
        uuid.UUID(FUNCTION).hex.upper(),
    ],
)
def test_the_function_of_an_image_in_another_form(glance, asked, there):
    region = uuid.UUID(int=5)
    image = glance.put_image(
        CONTENT, **named(there), **{'accel:region_type_id': str(region)}
    )
    assert fetch(None, asked) == CONTENT
    assert fetch(None, asked, region.hex) == CONTENT
    assert fetch(image, asked) == CONTENT


def test_two_spellings_of_one_function_are_duplicates(glance):
    glance.put_image(b'one', **named(FUNCTION))
    glance.put_image(b'two', **named(FUNCTION.upper().replace('-', '')))
    assert '2 images match' in refused(None, FUNCTION)


def test_a_list_of_images_that_does_not_end(glance):
    """Each page names a next one."""
    option('download_timeout', 0.3)
    glance.page_size = 1
    glance.put_image(CONTENT, **named('aes'))

    def another(path):
        glance.put_image(CONTENT, **named('aes'))

    glance.hook = another
    reason = refused(None, 'aes', cause=exception.Timeout)
    glance.hook = lambda path: None
    assert 'accel:function_id=aes' in reason

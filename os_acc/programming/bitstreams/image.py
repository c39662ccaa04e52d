# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Bitstreams that are Glance images, through openstacksdk."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
from typing import Any

from oslo_config import cfg

from os_acc import bitstream_file
from os_acc import bitstream_opts as options
from os_acc import exception
from os_acc.programming.bitstreams import download
from os_acc.programming.bitstreams import web

# HTTP status codes of temporary failures.
_PASSING = frozenset({408, 429, 500, 502, 503, 504})


class Source:
    """A Glance image.

    :param glance: openstacksdk's client
    :param found: the image, as Glance's API v2 shows it
    :raises BitstreamError: if the image is not active
    """

    suffix = ''

    def __init__(self, glance: Any, found: dict[str, Any]) -> None:
        self._glance = glance
        self._image = found
        self.label = f'image {found.get("id")}'
        if found.get('status') != 'active':
            raise exception.BitstreamError(
                bitstream=self.label,
                reason=f'its status is {found.get("status")!r}, expected '
                "'active'",
            )

    @property
    def function_id(self) -> str | None:
        """The function that the image's property names."""
        name = cfg.CONF[options.GROUP].function_property
        # An empty property names no function.
        value: str | None = self._image.get(name) or None
        return value

    def checksum(self) -> bitstream_file.Checksum:
        """:raises BitstreamError: if the image has no usable checksum"""
        return bitstream_file.Checksum.parse(
            str(self._image.get('os_hash_algo')),
            str(self._image.get('os_hash_value')),
            self.label,
        )

    @contextlib.contextmanager
    def open_at(self, place: int) -> Iterator[download.Answer]:
        """See download.Open."""
        headers = {'Accept': 'application/octet-stream'}
        if place:
            headers['Range'] = f'bytes={place}-'
        response = _get(
            self._glance,
            f'/images/{self._image["id"]}/file',
            self.label,
            headers=headers,
            stream=True,
        )
        with contextlib.closing(response):
            chunks = response.iter_content(1 << 16)
            yield web.answer(
                response.status_code,
                response.headers,
                lambda _: next(chunks, b''),
            )


def by_id(image_id: str) -> Source:
    """Find an image.

    :param image_id: a UUID
    :raises BitstreamError: if there is none, or Glance refuses
    :raises OSError: if Glance is unavailable
    """
    glance = _connect(f'image {image_id}')
    with _talking(f'image {image_id}'):
        found = _get(glance, f'/images/{image_id}', f'image {image_id}')
    return Source(glance, found.json())


def by_function(function_id: str, region_type: str | None) -> Source:
    """Find the one active image whose properties name a function.

    :param region_type: the type of region that it must be for; None: any
    :raises BitstreamError: if no image matches, or more than one
    :raises OSError: if Glance is unavailable
    """
    conf = cfg.CONF[options.GROUP]
    wanted = {conf.function_property: function_id}
    if region_type is not None:
        wanted[conf.region_type_property] = region_type
    label = 'for ' + ', '.join(f'{k}={v}' for k, v in wanted.items())
    glance = _connect(label)
    query: dict[str, str] | None = {**wanted, 'status': 'active'}
    page: str | None = '/images'
    found: list[dict[str, Any]] = []
    with _talking(label):
        while page is not None:
            body = _get(glance, page, label, params=query).json()
            found += [
                each
                for each in body['images']
                # A server may ignore a filter that it does not know.
                if all(each.get(k) == v for k, v in wanted.items())
            ]
            page, query = body.get('next'), None
            page = page.removeprefix('/v2') if page else None
    if len(found) != 1:
        ids = ', '.join(str(each.get('id')) for each in found)
        raise exception.BitstreamError(
            bitstream=label,
            reason=f'{len(found)} images match, expected one'
            + (f': {ids}' if ids else ''),
        )
    return Source(glance, found[0])


def _connect(label: str) -> Any:
    try:
        import openstack
    except ImportError as err:
        raise exception.BitstreamError(
            bitstream=label,
            reason='Glance images need openstacksdk: install os-acc[glance]',
        ) from err
    conf = cfg.CONF[options.GROUP]
    with _talking(label):
        connection = openstack.connect(
            cloud=conf.cloud or None,
            api_timeout=conf.stall_timeout,
            app_name='os-acc',
        )
        return connection.image


def _get(glance: Any, path: str, label: str, **kwargs: Any) -> Any:
    """Send a GET request to Glance.

    :raises ConnectionError: on a temporary failure
    :raises BitstreamError: on any other failure
    """
    with _talking(label):
        response = glance.get(path, **kwargs)
    if response.status_code in (200, 206):
        return response
    with contextlib.closing(response):
        reason = f'Glance answered HTTP {response.status_code}'
        if response.status_code in _PASSING:
            raise ConnectionError(reason)
        raise exception.BitstreamError(bitstream=label, reason=reason)


@contextlib.contextmanager
def _talking(label: str) -> Iterator[None]:
    """Turn openstacksdk's errors into ours, network errors into OSError."""
    from keystoneauth1 import exceptions as keystone
    from openstack import exceptions as sdk

    try:
        yield
    except keystone.ConnectFailure as err:
        raise ConnectionError(str(err)) from err
    except (keystone.ClientException, sdk.SDKException) as err:
        raise exception.BitstreamError(
            bitstream=label, reason=f'Glance: {exception.describe(err)}'
        ) from err

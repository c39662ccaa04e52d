# SPDX-License-Identifier: Apache-2.0

"""Bitstreams that are Glance images, through openstacksdk.

Any tenant can upload an image and set the properties by which os-acc looks
for a bitstream. So only public images, and images of the projects in
image_owners, are used. By default, Glance lets only administrators make an
image public (policy publicize_image), while any tenant may share an image or
make it a community image.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import time
from typing import Any

from oslo_config import cfg

from os_acc import exception
from os_acc.bitstreams import options
from os_acc.bitstreams import reference as checksums
from os_acc.programming.bitstreams import download
from os_acc.programming.bitstreams import signature
from os_acc.programming.bitstreams import web
from os_acc.texts import forms

_Image = Mapping[str, Any]


class Source:
    """A Glance image.

    :param found: the image, as Glance's API v2 shows it
    """

    def __init__(self, connection: Any, found: _Image) -> None:
        self._connection = connection
        self._image = found
        self.label = f'image {found.get("id")}'
        if found.get('status') != 'active':
            raise exception.BitstreamError(
                bitstream=self.label,
                reason=f'its status is {found.get("status")!r}, expected '
                "'active'",
            )
        if not _is_trusted(found):
            raise exception.BitstreamError(
                bitstream=self.label,
                reason=f'its visibility is {found.get("visibility")!r} and '
                f'its owner is project {found.get("owner")}. Only public '
                'images and images of the projects in [os_acc_bitstreams] '
                'image_owners are used',
            )

    @property
    def suffix(self) -> str:
        """The extension of the image's name; some vendors' tools need it."""
        return web.suffix_of(str(self._image.get('name') or ''))

    @property
    def function_id(self) -> str | None:
        """The function that the image's property names."""
        name = cfg.CONF[options.GROUP].function_property
        # An empty property names no function.
        value: str | None = self._image.get(name) or None
        return value

    def checksum(self) -> checksums.Checksum:
        """:raises BitstreamError: if the image has no usable checksum"""
        return checksums.Checksum.parse(
            str(self._image.get('os_hash_algo')),
            str(self._image.get('os_hash_value')),
            self.label,
        )

    def signature(self) -> signature.Signature | None:
        """Read the image's signature; see signature.of_image()."""
        auth = self._connection.session.auth
        return signature.of_image(self._image, auth, self.label)

    @contextlib.contextmanager
    def open_at(self, place: int) -> Iterator[download.Answer]:
        """See download.Open."""
        headers = {'Accept': 'application/octet-stream'}
        if place:
            headers['Range'] = f'bytes={place}-'
        response = _get(
            self._connection.image,
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
    """Find an image."""
    label = f'image {image_id}'
    connection = _connect(label)
    found = _get(_glance(connection, label), f'/images/{image_id}', label)
    return Source(connection, found.json())


def by_function(function_id: str, region_type: str | None) -> Source:
    """Find the one active image whose properties name a function.

    Other tenants' images are not counted, see _is_trusted().

    :param function_id: if it is a UUID, the image may have it in another of
        the usual spellings
    """
    conf = cfg.CONF[options.GROUP]
    wanted = {conf.function_property: function_id}
    if region_type is not None:
        wanted[conf.region_type_property] = region_type
    label = 'for ' + ', '.join(f'{k}={v}' for k, v in wanted.items())
    deadline = time.monotonic() + conf.download_timeout
    connection = _connect(label)
    found: dict[str, _Image] = {}
    # Glance compares texts, and lists the images of one owner at a time.
    for spelling in _spellings(function_id):
        for whose in (
            {'visibility': 'public'},
            # Without visibility, the list has no community images.
            *(
                {'visibility': 'all', 'owner': owner}
                for owner in conf.image_owners
            ),
        ):
            query = {
                conf.function_property: spelling,
                'status': 'active',
                **whose,
            }
            for image in _listed(connection, query, label, deadline):
                # A server may ignore a filter that it does not know.
                if _is_trusted(image) and all(
                    forms.same_function(image.get(name), value)
                    for name, value in wanted.items()
                ):
                    found[str(image.get('id'))] = image
    if len(found) != 1:
        ids = ', '.join(found)
        raise exception.BitstreamError(
            bitstream=label,
            reason=f'{len(found)} images match, expected one'
            + (f': {ids}' if ids else '')
            + '. Only active images count that are public or belong to a '
            'project in [os_acc_bitstreams] image_owners',
        )
    (image,) = found.values()
    return Source(connection, image)


def _is_trusted(image: _Image) -> bool:
    return image.get('visibility') == 'public' or (
        image.get('owner') in cfg.CONF[options.GROUP].image_owners
    )


def _listed(
    connection: Any, query: dict[str, str], label: str, deadline: float
) -> Iterator[_Image]:
    """List images, page by page."""
    glance = _glance(connection, label)
    answer = _get(glance, '/images', label, params=query).json()
    yield from answer['images']
    while page := answer.get('next'):
        download.check_deadline(deadline, label)
        answer = _get(glance, page.removeprefix('/v2'), label).json()
        yield from answer['images']


def _connect(label: str) -> Any:
    try:
        import openstack
    except ImportError as err:
        raise exception.BitstreamError(
            bitstream=label,
            reason='Glance images need openstacksdk: install '
            'os-acc[openstack]',
        ) from err
    conf = cfg.CONF[options.GROUP]
    with _talking(label):
        return openstack.connect(
            cloud=conf.cloud or None,
            api_timeout=conf.stall_timeout,
            app_name='os-acc',
        )


def _glance(connection: Any, label: str) -> Any:
    # Reading the attribute asks Keystone and Glance for the endpoint.
    with _talking(label):
        return connection.image


def _get(glance: Any, path: str, label: str, **kwargs: Any) -> Any:
    """Send a GET request to Glance."""
    with _talking(label):
        response = glance.get(path, **kwargs)
    if response.status_code in (200, 206):
        return response
    with contextlib.closing(response):
        reason = f'Glance answered HTTP {response.status_code}'
        if response.status_code in web.PASSING:
            raise download.TemporaryFailure(reason)
        raise exception.BitstreamError(bitstream=label, reason=reason)


@contextlib.contextmanager
def _talking(label: str) -> Iterator[None]:
    """Turn openstacksdk's errors into BitstreamError or TemporaryFailure."""
    from keystoneauth1 import exceptions as keystone
    from openstack import exceptions as sdk

    try:
        yield
    except keystone.ConnectFailure as err:
        raise download.TemporaryFailure(str(err)) from err
    except (keystone.ClientException, sdk.SDKException) as err:
        raise exception.BitstreamError(
            bitstream=label, reason=f'Glance: {exception.describe(err)}'
        ) from err


def _spellings(text: str) -> list[str]:
    """List the usual ways to write an id, for services that compare texts.

    :returns: the text itself first; for a UUID also its forms in lower and
        upper case, with and without hyphens
    """
    found = [text]
    if (uuid := forms.uuid(text)) is not None:
        short = uuid.replace('-', '')
        for form in (uuid, short, uuid.upper(), short.upper()):
            if form not in found:
                found.append(form)
    return found

# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Bitstreams from a path, a URL or Glance, verified before they are used."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import dataclasses
import os
import re
from typing import Any
import urllib.parse

from oslo_config import cfg

from os_acc import bitstream_opts as options
from os_acc import exception

_UUID = re.compile(r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}', re.I)


@dataclasses.dataclass(frozen=True)
class Bitstream:
    """A file that was verified.

    :ivar path: its absolute path, valid while fetched() holds it
    :ivar sha256: SHA-256 of its content, hex
    :ivar function_id: the function that its Glance image names; None: unknown
    """

    path: str
    sha256: str
    function_id: str | None = None


def _ignore(fraction: float | None, message: str) -> None:
    pass


@contextlib.contextmanager
def fetched(
    reference: str | None,
    function_id: str | None = None,
    region_type: str | None = None,
    report: Any = _ignore,
) -> Iterator[Bitstream]:
    """Provide a bitstream as a file while the context is open.

    :param reference: a path or file URL in allowed_folders, an https URL, or
        the UUID of an image; None: the image that has the function
    :param function_id: the function that the image must have, if it names one
    :param region_type: the type of region that the image must be for; only
        used if reference is None
    :param report: called with the progress of the download: a fraction or
        None, and a text
    :raises InvalidRequest: if the reference has none of these forms
    :raises BitstreamError: if the bitstream is unavailable, or fails its
        verification
    :raises Timeout: if the download took longer than download_timeout
    """
    if reference is None and function_id is None:
        _refuse('nothing')
    path = _local_path(reference)
    if path is not None:
        with _local(path) as found:
            yield found
        return
    try:
        source = _remote(reference, function_id, region_type)
    except OSError as err:
        raise exception.BitstreamError(
            bitstream=label(reference), reason=exception.describe(err)
        ) from err
    there = getattr(source, 'function_id', None)
    if function_id is not None and there not in (None, function_id):
        raise exception.BitstreamError(
            bitstream=source.label,
            reason=f'its function is {there}, expected {function_id}',
        )
    from os_acc.programming.bitstreams import cache
    from os_acc.programming.bitstreams import download

    with cache.held(
        source.checksum(),
        source.suffix,
        source.label,
        lambda file: download.download(
            source.open_at, file, source.label, report
        ),
    ) as (path, digest):
        yield Bitstream(path, digest, there)


def label(reference: str | None) -> str:
    """Name a bitstream in messages, without anything that may be secret."""
    from os_acc.programming.bitstreams import web

    return '(by function)' if reference is None else web.mask(reference)


def _local_path(reference: str | None) -> str | None:
    if reference is None:
        return None
    if reference.startswith('/'):
        return reference
    if reference.lower().startswith('file:'):
        parts = urllib.parse.urlsplit(reference)
        if parts.netloc not in ('', 'localhost') or not parts.path:
            _refuse(label(reference))
        return urllib.parse.unquote(parts.path)
    return None


@contextlib.contextmanager
def _local(path: str) -> Iterator[Bitstream]:
    from os_acc import bitstream_file
    from os_acc.programming.bitstreams import web

    conf = cfg.CONF
    folders = conf[options.GROUP].allowed_folders
    most = options.max_bytes(conf)
    with bitstream_file.opened(path, folders, most) as (real, file):
        if os.path.lexists(path + web.SIDECAR):
            beside = bitstream_file.opened(path + web.SIDECAR, folders, 4096)
            with beside as (_, text):
                words = text.read(4096).decode(errors='replace').split()
            wanted = bitstream_file.Checksum.parse(
                'sha256', (words or [''])[0], path
            )
            digest = bitstream_file.verify(file, wanted, path, most)
        else:
            # The folder belongs to the operator: no checksum is required.
            digest = bitstream_file.of_file(file, path, most)['sha256']
        yield Bitstream(real, digest)


def _remote(
    reference: str | None, function_id: str | None, region_type: str | None
) -> Any:
    from os_acc.programming.bitstreams import image
    from os_acc.programming.bitstreams import web

    if reference is None:
        assert function_id is not None
        return image.by_function(function_id, region_type)
    if _UUID.fullmatch(reference):
        return image.by_id(reference.lower())
    scheme = reference.partition(':')[0].lower()
    if scheme == 'https' or (
        scheme == 'http' and cfg.CONF[options.GROUP].allow_http
    ):
        return web.Source(reference)
    return _refuse(label(reference))


def _refuse(value: str) -> Any:
    raise exception.InvalidRequest(
        subject='os_acc',
        field='bitstream',
        value=value,
        expected='an absolute path, a file or https URL, or the UUID of an '
        'image (http only where [os_acc_bitstreams] allow_http is set)',
    )

# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Bitstreams: from a path, a URL or Glance, verified before use."""

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
    """A file that is what it should be.

    :ivar path: where it is, as long as it is held
    :ivar sha256: of its content, hex
    :ivar function_id: as its image says; None: nothing says it
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
    """Have a bitstream as a file, while it is used.

    :param reference: a path or file URL (in allowed_folders), an https URL,
        an image's UUID; None: the image that has the function
    :param function_id: what it must be, where an image tells
    :param region_type: what the image must be for, if it is sought by its
        function
    :param report: is told how far the download is: a fraction or None, and a
        text
    :raises InvalidRequest: the reference is none of these
    :raises BitstreamError: it is not to be had, or is not what it should be
    :raises Timeout: the download took too long
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
            reason=f'it has function {there}, expected {function_id}',
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
    """What to call a bitstream: without what may be a secret."""
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
    from os_acc import bitstream_checksum as checksum
    from os_acc import bitstream_local as local
    from os_acc.programming.bitstreams import web

    conf = cfg.CONF
    folders = conf[options.GROUP].allowed_folders
    most = options.max_bytes(conf)
    with local.opened(path, folders, most) as (real, file):
        if os.path.lexists(path + web.SIDECAR):
            beside = local.opened(path + web.SIDECAR, folders, 4096)
            with beside as (_, text):
                words = text.read(4096).decode(errors='replace').split()
            wanted = checksum.Checksum.parse(
                'sha256', (words or [''])[0], path
            )
            digest = checksum.verify(file, wanted, path, most)
        else:
            # It is the operator's own folder: it may do without.
            digest = checksum.of_file(file, path, most)['sha256']
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

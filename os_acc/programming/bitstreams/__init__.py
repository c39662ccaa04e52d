# SPDX-License-Identifier: Apache-2.0

"""Bitstreams from a path, a URL or Glance, verified before they are used."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import dataclasses
import os
from typing import TYPE_CHECKING
from typing import Any

from oslo_config import cfg

from os_acc import exception
from os_acc.bitstreams import file as bitstream_file
from os_acc.bitstreams import options
from os_acc.bitstreams import reference as bitstream_reference
from os_acc.texts import forms

# The other modules of this package import urllib and ssl, which takes time:
# they are imported only when a bitstream is downloaded.
if TYPE_CHECKING:
    from os_acc.programming.bitstreams import image
    from os_acc.programming.bitstreams import web


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


def ignore(fraction: float | None, message: str) -> None:
    """Report no progress."""


@contextlib.contextmanager
def fetched(
    reference: str | None,
    function_id: str | None = None,
    region_type: str | None = None,
    report: Any = ignore,
) -> Iterator[Bitstream]:
    """Provide a bitstream as a file while the context is open.

    :param reference: a path or file URL in allowed_folders, an https URL, or
        the UUID of an image; None: the image that has the function
    :param function_id: the function that the image must have, if it names one
    :param region_type: the type of region that the image must be for; only
        used if reference is None
    :param report: called with the progress of the download: a fraction or
        None, and a text
    :raises InvalidRequest: if the reference has none of these forms. No error
        contains the secrets of a URL
    :raises BitstreamError: if the bitstream is unavailable, or fails its
        verification
    :raises Timeout: if the download took longer than download_timeout
    """
    if reference is None and function_id is None:
        raise exception.InvalidRequest(
            subject='os_acc',
            field='bitstream',
            value=None,
            expected='a bitstream or a function_id',
        )
    parsed = None
    if reference is not None:
        parsed = bitstream_reference.parse(reference)
    if isinstance(parsed, bitstream_reference.Path):
        with _local(parsed.path) as found:
            yield found
        return
    from os_acc.programming.bitstreams import cache
    from os_acc.programming.bitstreams import download

    try:
        source = _source(parsed, function_id, region_type)
    except OSError as err:
        raise exception.BitstreamError(
            bitstream=bitstream_reference.masked(reference),
            reason=download.describe(err),
        ) from err
    found_function = source.function_id
    if function_id is not None and (
        found_function is not None
        and not forms.same_function(found_function, function_id)
    ):
        raise exception.BitstreamError(
            bitstream=source.label,
            reason=f'its function is {found_function}, expected {function_id}',
        )
    signature = source.signature()
    with cache.held(
        source.checksum(),
        source.suffix,
        source.label,
        lambda file: download.download(
            source.open_at, file, source.label, report
        ),
    ) as (path, digest):
        if signature is not None:
            signature.check(path)
        yield Bitstream(path, digest, found_function)


@contextlib.contextmanager
def local(reference: str | None) -> Iterator[Bitstream | None]:
    """Provide a bitstream that is a file of this host, and download nothing.

    :returns: None: the reference is not a path
    """
    parsed = None
    if reference is not None:
        parsed = bitstream_reference.parse(reference)
    if not isinstance(parsed, bitstream_reference.Path):
        yield None
        return
    with _local(parsed.path) as found:
        yield found


@contextlib.contextmanager
def _local(path: str) -> Iterator[Bitstream]:
    conf = cfg.CONF
    directories = conf[options.GROUP].allowed_folders
    most = options.max_bytes(conf)
    with bitstream_file.opened(path, directories, most) as (real, file):
        if os.path.lexists(path + options.SIDECAR):
            beside = bitstream_file.opened(
                path + options.SIDECAR, directories, 4096
            )
            with beside as (_, text):
                words = text.read(4096).decode(errors='replace').split()
            wanted = bitstream_reference.Checksum.parse(
                'sha256', (words or [''])[0], path
            )
            digest = bitstream_reference.verify(file, wanted, path, most)
        else:
            # The directory belongs to the operator: no checksum is required.
            digest = bitstream_file.of_file(file, path, most)['sha256']
        yield Bitstream(real, digest)


def _source(
    reference: bitstream_reference.Web | bitstream_reference.Image | None,
    function_id: str | None,
    region_type: str | None,
) -> web.Source | image.Source:
    from os_acc.programming.bitstreams import image
    from os_acc.programming.bitstreams import web

    if reference is None:
        assert function_id is not None
        return image.by_function(function_id, region_type)
    if isinstance(reference, bitstream_reference.Image):
        return image.by_id(reference.uuid)
    return web.Source(reference)

# SPDX-License-Identifier: Apache-2.0

"""Fetches bitstreams from a web server on the loopback."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import hashlib
import pathlib
from typing import Any

import pytest
import web

import os_acc
from os_acc import exception
from os_acc.programming import bitstreams

TOKEN = 'gAAAAABnWQ3fTz8r'


def option(name: str, value: Any) -> None:
    """Set an option of [os_acc_bitstreams]."""
    os_acc.CONF.set_override(name, value, 'os_acc_bitstreams')


@contextlib.contextmanager
def server() -> Iterator[web.Server]:
    """Run a web server, and allow http."""
    option('allow_http', True)
    option('retry_interval', 0)
    with web.serving() as made:
        yield made


@contextlib.contextmanager
def glance(directory: pathlib.Path) -> Iterator[web.Server]:
    """Run an image service. openstacksdk sends it the token TOKEN.

    :param directory: where clouds.yaml is written
    """
    with server() as made, pytest.MonkeyPatch.context() as patch:
        clouds = directory / 'clouds.yaml'
        clouds.write_text(
            'clouds:\n'
            '  here:\n'
            '    auth_type: admin_token\n'
            '    auth:\n'
            f'      endpoint: {made.url}\n'
            f'      token: {TOKEN}\n'
            f'    image_endpoint_override: {made.url}/image\n'
        )
        patch.setenv('OS_CLIENT_CONFIG_FILE', str(clouds))
        option('cloud', 'here')
        yield made


def fetch(reference: str | None, *args: Any, **kwargs: Any) -> bytes:
    """Fetch a bitstream.

    :returns: its content
    """
    with bitstreams.fetched(reference, *args, **kwargs) as found:
        content = pathlib.Path(found.path).read_bytes()
        assert found.sha256 == hashlib.sha256(content).hexdigest()
        return content


def refused(
    reference: str | None,
    *args: Any,
    cause: type[Exception] = exception.BitstreamError,
) -> str:
    """:returns: the text of the error that fetching fails with"""
    with pytest.raises(cause) as caught:
        fetch(reference, *args)
    return str(caught.value)

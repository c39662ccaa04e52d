# SPDX-License-Identifier: Apache-2.0

"""The errors of the driver, and how any error is reported to the kubelet."""

from __future__ import annotations

from os_acc import exception

#: Characters of an error at most. An event of Kubernetes keeps 1024.
MOST = 4096


class DRAError(Exception):
    """Base class of the errors of this driver."""


class ClaimRefused(DRAError):
    """The claim must not be prepared as it is now."""


class StillWorking(DRAError):
    """The work goes on, and the next call joins it."""


class ServerError(DRAError):
    """The API server did not answer, or refused.

    :ivar status: the HTTP status code; 0: it did not answer
    """

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class ConfigurationError(DRAError):
    """An option of this driver is wrong, or its directories cannot be used."""


def text_of(err: BaseException) -> str:
    """Describe any error, in text that a message of gRPC can have.

    It is never empty: '' means success to a kubelet.
    """
    text = str(err)
    if not isinstance(err, DRAError | exception.ExceptionBase):
        text = f'{type(err).__name__}: {text}'
    return plain(text)[:MOST] or type(err).__name__


def plain(text: str) -> str:
    """Escape what UTF-8 cannot have: half of a surrogate pair, as of JSON."""
    return text.encode('utf-8', 'backslashreplace').decode()

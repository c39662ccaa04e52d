# SPDX-License-Identifier: Apache-2.0

"""The errors of the driver, and how any error is reported to the kubelet."""

from __future__ import annotations

from os_acc import exception


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
    """Describe any error. It is never empty: '' means success to a kubelet."""
    if isinstance(err, DRAError | exception.ExceptionBase):
        return str(err) or type(err).__name__
    return f'{type(err).__name__}: {err}'

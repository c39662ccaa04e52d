# SPDX-License-Identifier: Apache-2.0

"""Errors of os-acc, as errors that Nova knows how to treat.

Nova's compute manager decides by the class of an error what it does next
(_build_and_run_instance in nova/compute/manager.py):

* after a BuildAbortException it gives up and sets the instance to ERROR;
* after any other error it asks the scheduler for another host.

The text of a NovaException becomes the message of the instance's fault, at
most 255 characters of it. Of other errors, Nova keeps only the name of the
class. The errors here have the code 500, with which Nova shows the traceback
to administrators only.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib

from nova import exception as nova_exception

from os_acc import exception


class AcceleratorPlugFailure(nova_exception.NovaException):
    """The accelerators could not be plugged. Another host may serve."""

    msg_fmt = 'Failed to plug the accelerators: %(reason)s'


class AcceleratorUnplugFailure(nova_exception.NovaException):
    """Some accelerators could not be released. Delete the instance again."""

    msg_fmt = 'Failed to release the accelerators: %(reason)s'


@contextlib.contextmanager
def building(instance_uuid: str) -> Iterator[None]:
    """Raise the errors of os-acc in the block as errors of a build.

    :param instance_uuid: the instance whose guest is made on this host now;
        another host may do it in its place
    :raises BuildAbortException: if the request itself is invalid, so that no
        host can serve it
    :raises AcceleratorPlugFailure: after any other error of os-acc
    """
    try:
        yield
    except exception.ExceptionBase as err:
        if is_invalid(err):
            raise nova_exception.BuildAbortException(
                instance_uuid=instance_uuid, reason=reason(err)
            ) from err
        raise AcceleratorPlugFailure(reason=reason(err)) from err


@contextlib.contextmanager
def plugging() -> Iterator[None]:
    """Raise the errors of os-acc in the block as AcceleratorPlugFailure."""
    try:
        yield
    except exception.ExceptionBase as err:
        raise AcceleratorPlugFailure(reason=reason(err)) from err


@contextlib.contextmanager
def unplugging() -> Iterator[None]:
    """Raise the errors of os-acc in the block as AcceleratorUnplugFailure."""
    try:
        yield
    except exception.ExceptionBase as err:
        raise AcceleratorUnplugFailure(reason=reason(err)) from err


def is_invalid(err: BaseException | None) -> bool:
    """Say whether the request is invalid, so that no host can serve it.

    An ARQ that is not bound is not such an error: its binding failed on this
    host, and Nova makes new ARQs for another host.

    :param err: the error of os-acc; its causes are examined too
    """
    while err is not None:
        if isinstance(err, exception.ARQNotBound):
            return False
        if isinstance(err, exception.InvalidRequest):
            return True
        err = err.__cause__
    return False


def reason(err: exception.ExceptionBase) -> str:
    """Describe an error without the beginning that Nova's own text repeats.

    A PlugException begins with the UUID of the instance. The reader of an
    instance's fault knows it, and the text of a fault is short.
    """
    text = str(err)
    if not isinstance(err, exception.AttachException):
        return text
    return text.partition(f'{err.kwargs.get("instance")}: ')[2] or text

# SPDX-License-Identifier: Apache-2.0
"""Reports the failures of a call: to its caller, and to the journal."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
from typing import NoReturn

from os_acc import exception
from os_acc import journal
from os_acc import objects


@contextlib.contextmanager
def raised_as(
    cls: type[exception.AttachException], instance_uuid: str
) -> Iterator[None]:
    """Raise every Exception of the block as cls, chained to its cause.

    A BaseException that is not an Exception passes unchanged, such as
    KeyboardInterrupt, or an eventlet.Timeout that the caller has set. So does
    a MigrationConflict, because nothing was touched.
    """
    try:
        yield
    except (exception.AttachException, exception.MigrationConflict):
        raise
    except Exception as err:
        fail(cls, instance_uuid, [], err)


def fail(
    cls: type[exception.AttachException],
    instance_uuid: str,
    errors: Sequence[exception.ExceptionBase],
    cause: BaseException | None = None,
) -> NoReturn:
    """Raise cls from the first failure.

    If the first failure is a StepFailed, the error of the driver or plugin
    becomes the cause, because StepFailed only adds the name of the step.

    :param errors: the errors of the undos that failed
    :param cause: the first failure; None: the first of errors
    """
    text = 'some VANs could not be released'
    if cause is not None:
        text = exception.describe(cause)
    first = cause or errors[0]
    if isinstance(first, exception.StepFailed) and first.__cause__:
        first = first.__cause__
    raise cls(instance=instance_uuid, err=text, undo_errors=errors) from first


def texts(
    entries: Iterable[journal.Entry],
    errors: Mapping[str, exception.ExceptionBase],
) -> list[tuple[objects.VAN, str]]:
    """Return the VANs that failed, each with the text of its error."""
    return [
        (entry.van, str(errors[entry.van.uuid]))
        for entry in entries
        if entry.van.uuid in errors
    ]

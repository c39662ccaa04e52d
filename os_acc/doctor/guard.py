# SPDX-License-Identifier: Apache-2.0

"""Turns an error in one check of the doctor into a finding."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator

from os_acc import exception
from os_acc import finding


def guarded(
    subject: str, look: Callable[[], Iterable[finding.Finding]]
) -> Iterator[finding.Finding]:
    """Yield the findings of look(). If it raises an error, yield that too.

    :param subject: what look() checks
    """
    try:
        for each in look():
            if not isinstance(each, finding.Finding):
                raise TypeError(
                    f'it returned a {type(each).__name__}, expected '
                    'os_acc.finding.Finding'
                )
            yield each
    except Exception as err:
        yield finding.Finding(
            subject,
            finding.ERROR,
            exception.describe(err),
            'fix this first: this check did not finish',
        )

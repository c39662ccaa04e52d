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
    """Yield the findings of look(). If it raises an error, yield that too."""
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


def once(
    found: Iterable[finding.Finding], before: Iterable[finding.Finding]
) -> Iterator[finding.Finding]:
    """Yield findings, each error with its text once.

    What one driver cannot read, such as the journal, the others cannot read
    either. One finding at the end names those that were kept from their check.
    """
    subjects = {
        each.text: each.subject
        for each in before
        if each.verdict == finding.ERROR
    }
    kept: dict[str, dict[str, None]] = {}
    for each in found:
        first = subjects.get(each.text)
        if each.verdict != finding.ERROR:
            yield each
        elif first is None:
            subjects[each.text] = each.subject
            yield each
        elif each.subject != first:
            kept.setdefault(first, {})[each.subject] = None
    for first, others in kept.items():
        yield finding.Finding(
            ', '.join(others),
            finding.ERROR,
            f'not fully checked: {first} has the error that stopped it',
            f'follow the advice for {first} above',
        )

# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

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

# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""What is wrong on this host, and what to do about it.

It only looks: nothing is created, bound, loaded into the kernel or recovered.
Whatever is broken becomes a finding, and the rest is looked at all the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from os_acc import finding
from os_acc import host as host_module
from os_acc.doctor import extensions
from os_acc.doctor import guard
from os_acc.doctor import privileges
from os_acc.doctor import state


def findings(host: host_module.Host) -> Iterator[finding.Finding]:
    """Look at the whole host, except for its configuration.

    :param host: made with read_only=True, which opens a damaged journal too.
        It can only be made if configuration.findings() finds nothing
    """
    yield from guard.guarded(
        'drivers and plugins', lambda: extensions.loaded(host)
    )
    yield from guard.guarded(state.subject(host), lambda: state.findings(host))
    yield from guard.guarded('privsep daemon', privileges.findings)
    yield from extensions.findings(host)

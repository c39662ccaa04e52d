# SPDX-License-Identifier: Apache-2.0

"""Which host the calls of os_acc are for, if a test runs several at once.

A process is one host. Only tests start the services of several hosts in one
process. They select the host of a call by os_acc.fixture.
"""

from __future__ import annotations

import contextvars
import dataclasses
from typing import Any


@dataclasses.dataclass
class Selected:
    """A host whose service a test runs in this process.

    :ivar conf: the configuration of this host
    :ivar host: the os_acc.host.Host of this host; None: os_acc.initialize()
        was not called for it
    """

    conf: Any
    host: Any = None


#: The host of the calls in this context, for tests only.
selected: contextvars.ContextVar[Selected | None] = contextvars.ContextVar(
    'os_acc_selected_host', default=None
)


class Process:
    """The host of the calls outside any such context, for tests only.

    :ivar selected: None: the process is one host, as in production
    """

    selected: Selected | None = None


def current() -> Selected | None:
    """Return the host that a test has selected; None: none."""
    return selected.get() or Process.selected

# SPDX-License-Identifier: Apache-2.0

"""Python imports this module at its start; see nova_tests.py.

It replaces the option compute_driver in Nova's own tests: where they ask for
Nova's libvirt driver, they get that of os-acc. It also repairs a fixture of
Nova, see nova_cell_lock.py.
"""

from __future__ import annotations

import importlib
from typing import Any

from oslo_config import cfg

_set_override = cfg.ConfigOpts.set_override


def _switched(
    self: cfg.ConfigOpts, name: str, override: Any, *args: Any, **kwargs: Any
) -> None:
    if (name, override) == ('compute_driver', 'libvirt.LibvirtDriver'):
        override = 'os_acc.LibvirtDriver'
        # Now, because the tests replace methods of Nova's driver later, and
        # the check of os-acc-nova would refuse those.
        importlib.import_module('nova.virt.os_acc')
        importlib.import_module('nova_cell_lock').repair()
    _set_override(self, name, override, *args, **kwargs)


cfg.ConfigOpts.set_override = _switched

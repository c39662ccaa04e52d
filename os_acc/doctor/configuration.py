# SPDX-License-Identifier: Apache-2.0

"""Checks the values of the options."""

from __future__ import annotations

from collections.abc import Iterator

from oslo_config import cfg

from os_acc import finding
from os_acc import host as host_module
from os_acc import loader
from os_acc import opts


def findings(
    conf: cfg.ConfigOpts, extensions: loader.Extensions
) -> Iterator[finding.Finding]:
    """Yield a finding for each invalid option.

    A Host cannot be made if there is one.
    """
    for fault in opts.faults(conf, extensions.options()):
        yield finding.Finding(
            'configuration',
            finding.ERROR,
            fault,
            'fix this first: nothing else was checked',
        )


def ignored(host: host_module.Host) -> Iterator[finding.Finding]:
    """Yield a finding for each line that sets an unknown option."""
    for each in opts.unknown(host.conf, host.extensions.options()):
        yield finding.Finding(
            'configuration',
            finding.ERROR if each.mistyped else finding.WARNING,
            each.text,
            'correct the name, or remove the line: it is ignored',
        )

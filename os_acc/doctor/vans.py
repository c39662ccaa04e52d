# SPDX-License-Identifier: Apache-2.0
"""Checks each VAN: its driver, its plugin, its handle and its hardware."""

from __future__ import annotations

from collections.abc import Iterator

from os_acc import exception
from os_acc import finding
from os_acc import host as host_module
from os_acc import journal
from os_acc.attach import plan
from os_acc.kernel import sysfs
from os_acc.objects import van as states


def findings(
    host: host_module.Host, entry: journal.Entry
) -> Iterator[finding.Finding]:
    """Report what is wrong with a VAN; nothing if it is in order."""
    van = entry.van
    yield from _extensions(host, entry)
    yield from _state(entry)
    if van.state == states.PLUGGED and van.boot_id == sysfs.boot_id():
        yield from _hardware(host, entry)


def _finding(
    entry: journal.Entry, verdict: str, text: str, advice: str
) -> finding.Finding:
    return finding.Finding(
        f'VAN {entry.van.uuid}',
        verdict,
        f'instance {entry.called}: {text}',
        advice,
    )


def _extensions(
    host: host_module.Host, entry: journal.Entry
) -> Iterator[finding.Finding]:
    """Report a driver or plugin that is not loaded."""
    van = entry.van
    for kind, name, loaded in (
        ('driver', van.driver, host.extensions.drivers),
        ('plugin', van.plugin, host.extensions.plugins),
    ):
        if name not in loaded:
            yield _finding(
                entry,
                finding.ERROR,
                f'its {kind} {name!r} is not loaded, so it cannot be released',
                f'reinstall the package of the {kind}; if that is impossible, '
                f'run os-acc van forget {van.uuid}',
            )


def _state(entry: journal.Entry) -> Iterator[finding.Finding]:
    """Report a VAN that is half done, or from before a reboot."""
    van = entry.van
    if van.state == states.ERROR:
        yield _finding(
            entry,
            finding.ERROR,
            str(van.error),
            'remove the cause, then run os-acc recover or os-acc unplug '
            f'{entry.called}',
        )
    elif van.state in states.MOVING:
        yield _finding(
            entry,
            finding.WARNING,
            f'it is {van.state}, by migration {van.migration_uuid}',
            'if the migration has ended, see os-acc migration list',
        )
    elif van.state != states.PLUGGED:
        yield _finding(
            entry,
            finding.WARNING,
            f'its state is {van.state}',
            'if no service is working on this VAN now, run os-acc recover',
        )
    elif van.boot_id != sysfs.boot_id():
        yield _finding(
            entry,
            finding.WARNING,
            'the host was rebooted after the VAN was prepared',
            'run os-acc recover, or start the service, which does the same',
        )


def _hardware(
    host: host_module.Host, entry: journal.Entry
) -> Iterator[finding.Finding]:
    """Report a handle that does not fit, and hardware that was changed."""
    van = entry.van
    driver = host.extensions.drivers.get(van.driver)
    plugin = host.extensions.plugins.get(van.plugin)
    if van.handle is None:
        yield _finding(
            entry,
            finding.ERROR,
            'it is plugged, but has no attach handle',
            f'unplug it: os-acc unplug {entry.called} --van {van.uuid}',
        )
        return
    again = (
        'stop the guest, and have the service plug the instance again (a hard '
        f'reboot does); or: os-acc unplug {entry.called}'
    )
    try:
        if plugin is not None:
            plan.check_handle(van.handle, plan.takes(plugin))
        if driver is not None and not driver.is_intact(van):
            yield _finding(
                entry,
                finding.ERROR,
                f'{van.handle.identity} is not as driver {van.driver!r} has '
                'prepared it; somebody may have unbound, removed or '
                'reprogrammed it by hand',
                again,
            )
        elif plugin is not None and not plugin.is_intact(van):
            yield _finding(
                entry,
                finding.ERROR,
                f'what plugin {van.plugin!r} has left on the host for it is '
                'missing or was changed',
                again,
            )
    except exception.UnsupportedHandle as err:
        yield _finding(
            entry,
            finding.ERROR,
            str(err),
            f'install the version of plugin {van.plugin} that plugged it',
        )
    except Exception as err:
        yield _finding(
            entry,
            finding.ERROR,
            f'its hardware cannot be examined: {exception.describe(err)}',
            'fix the cause; until then os-acc cannot say whether the device '
            'is in order',
        )

# SPDX-License-Identifier: Apache-2.0

"""Which devices the control group of a process allows.

With cgroup v1, the file devices.list shows it:
Documentation/admin-guide/cgroup-v1/devices.rst in the kernel. With cgroup v2,
a BPF program decides. Reading it takes CAP_SYS_ADMIN (bpf(2)), which the
privileged daemon does not have, so the answer is unknown then.
"""

from __future__ import annotations

from collections.abc import Collection
import pathlib

from os_acc import exception
from os_acc.kernel import device_files
from os_acc.kernel import sysfs

_CONTROLLER = 'devices'


def of_task(task: str) -> str:
    """The control group of a process or thread, with its hierarchy.

    Such as 'devices:/machine/libpod-1b4e28ba'; empty for a root group, and if
    the task has ended.

    :param task: its directory in /proc, as for all functions here
    """
    found = _groups(task)
    for controllers in (_CONTROLLER, ''):
        if (path := found.get(controllers, '/')) != '/':
            return f'{controllers}:{path}'
    return ''


def allowed(
    task: str, numbers: Collection[device_files.Number]
) -> list[device_files.Number]:
    """The device numbers that a control group names as allowed.

    A group that allows all devices, or all of a type, names none of them. Its
    processes may be those of the host, or of a privileged container.
    """
    rules = _rules(task) or []
    return [each for each in numbers if any(_names(x, each) for x in rules)]


def names_devices(task: str) -> bool:
    """Whether a control group allows some devices only, or none.

    False also with cgroup v2, where it is unknown.
    """
    rules = _rules(task)
    return rules is not None and all(kind != 'a' for kind, *_ in rules)


def _rules(task: str) -> list[list[str]] | None:
    """The rules of the control group; None with cgroup v2."""
    path = _groups(task).get(_CONTROLLER)
    if path is None:
        return None
    file = f'{sysfs.SYS}/fs/cgroup/{_CONTROLLER}{path}/devices.list'
    try:
        # Not sysfs.read_long(): an empty list allows nothing, and one that is
        # not there says nothing.
        text = pathlib.Path(file).read_text(encoding='ascii')
    except (OSError, ValueError) as err:
        if _groups(task).get(_CONTROLLER) != path:
            # It has ended, or is in another group now.
            return _rules(task)
        raise exception.PrivilegeError(
            reason=f'{file} cannot be read ({exception.describe(err)}), so '
            'it is unknown which devices a container may open; if os-acc '
            "runs in a container, mount the host's /sys/fs/cgroup there"
        ) from err
    return [line.split() for line in text.splitlines() if line.strip()]


def _names(rule: list[str], number: device_files.Number) -> bool:
    """Whether a rule such as ['c', '136:*', 'rwm'] is about a number."""
    kind, device, access = rule
    major, _, minor = device.partition(':')
    return (
        kind == number.kind
        and major == str(number.major)
        and minor in ('*', str(number.minor))
        # Permission to make a device file is not permission to open it.
        and access != 'm'
    )


def _groups(task: str) -> dict[str, str]:
    """The path of a task's control group by controller: cgroups(7).

    The controller of a cgroup v2 group is ''.
    """
    found = {}
    for line in sysfs.read_long(f'{task}/cgroup').splitlines():
        # such as '5:devices,freezer:/machine/libpod-1b4e28ba'
        _, controllers, path = line.split(':', 2)
        for each in controllers.split(','):
            found[each] = path
    return found

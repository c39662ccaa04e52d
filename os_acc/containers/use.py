# SPDX-License-Identifier: Apache-2.0

"""Which containers have a device, whether a program has opened it or not.

A program in a container can hide a device file: delete it, move it, mount
something over its directory, leave its root directory. So two things count
besides the file: what the container's control group allows, and whether the
container was seen with the device before. Such a container has the device
until it ends. Needs the privileges that open_files needs.
"""

from __future__ import annotations

from collections.abc import Collection
import dataclasses
import os
import stat

from os_acc.containers import spec as container_spec
from os_acc.kernel import descriptors
from os_acc.kernel import device_cgroup
from os_acc.kernel import device_files
from os_acc.kernel import open_files
from os_acc.kernel import sysfs

# The number of CAP_SYS_MODULE, CAP_SYS_RAWIO and CAP_SYS_ADMIN:
# include/uapi/linux/capability.h
_RIGHTS = 1 << 16 | 1 << 17 | 1 << 21

# The devices of the kernel's memory, such as /dev/mem and /dev/kmsg: char
# devices with this major (Documentation/admin-guide/devices.txt).
_MEMORY = 1
# null, zero, full, random and urandom, which each container has: "Default
# Devices" in config-linux.md of the OCI runtime specification.
_OF_EACH = {3, 5, 7, 8, 9}


@dataclasses.dataclass(frozen=True)
class User:
    """A process in a container that has a device.

    :ivar reason: a clause, such as 'process 4711 (python3) is in a container
        that has /dev/vfio/12'
    :ivar container: what distinguishes the container from others until the
        host reboots: its PID namespace with the start time of the first
        process in it, or its control group if it has no PID namespace of its
        own; empty if it has neither
    """

    reason: str
    container: str


def users_of(
    nodes: Collection[container_spec.Node], seen: Collection[str] = ()
) -> list[User]:
    """Find the processes in containers that have one of the device files.

    A container has a /dev of its own. It has a device

    - if its /dev has a device file with the number: the path of the file does
      not matter, and no link is followed, because it would lead into the /dev
      of the host;
    - if one of its processes has the device open;
    - if its control group allows the number, whatever /dev shows;
    - if it was seen with the device before.

    A container that has all devices of the host, a privileged one, has this
    device only while one of its processes has it open: see _has_all().
    Processes with the /dev and the PID namespace of the host do not count:
    whether they use the device is the business of its driver.

    :param seen: User.container of the containers that had the device before
    :raises PrivilegeError: if not all processes of the host can be seen, or
        the control group of a container cannot be read
    """
    open_files.check_all_seen()
    if not nodes:
        return []
    scan = _Scan(nodes, seen)
    contained = {
        pid: tasks
        for pid in descriptors.processes()
        if (tasks := scan.tasks_in_container(pid))
    }
    for pid, tasks in contained.items():
        scan.note_first_process(pid, tasks[0])
    return [
        user
        for pid, tasks in contained.items()
        if (user := scan.user(pid, tasks)) is not None
    ]


class _Scan:
    """One scan of all processes."""

    def __init__(
        self, nodes: Collection[container_spec.Node], seen: Collection[str]
    ) -> None:
        self._nodes = nodes
        self._seen = seen
        self._by_number = {node.number: node.path for node in nodes}
        # Process 1 is the host's, also if this process is in a container.
        self._hosts = (
            _identity(f'{sysfs.PROC}/1/root{device_files.DIRECTORY}'),
            _identity(sysfs.DEV),
        )
        self._pid_namespace = _pid_namespace(f'{sysfs.PROC}/self')
        # Many processes share the /dev of a container.
        self._known: dict[tuple[int, int] | None, str | None] = {None: None}
        # When the first process of each PID namespace was started.
        self._starts: dict[str, str] = {}

    def tasks_in_container(self, pid: str) -> list[str]:
        """The directories in /proc of a process and its threads.

        A thread can have a root directory of its own, and those of a main
        thread that has ended cannot be read.

        :returns: empty for a process of the host
        """
        own = f'{sysfs.PROC}/{pid}'
        if self._is_of_host(own):
            return []
        tids = sysfs.names(f'{own}/task')
        threads = [f'{own}/task/{tid}' for tid in tids if tid != pid]
        if threads and all(map(self._is_of_host, threads)):
            return []
        return [own, *threads]

    def note_first_process(self, pid: str, task: str) -> None:
        """Note the start of a process if it is the first of its namespace.

        The kernel ends all others with it: pid_namespaces(7).
        """
        status = sysfs.read(f'{task}/status') or ''
        for line in status.splitlines():
            # Its ids, in the namespace of the host first: proc(5).
            if line.startswith('NSpid:') and line.split()[-1] == '1':
                self._starts[_pid_namespace(task)] = _start(pid)

    def user(self, pid: str, tasks: list[str]) -> User | None:
        """Describe a process in a container that has one of the devices."""
        container = self._container(tasks)
        shown = next(filter(None, map(self._shown, tasks)), None)
        is_seen = bool(container) and container in self._seen
        if (shown or is_seen) and any(map(_has_all, tasks)):
            shown, is_seen = None, False
        has = shown or next(
            (
                self._by_number[number]
                for number in open_files.open_devices(pid)
                if number in self._by_number
                and not any(map(self._sees_hosts_dev, tasks))
            ),
            None,
        )
        if has is not None:
            what = f'has {has}'
        elif (number := self._allowed(tasks)) is not None:
            what = f'may open {self._by_number[number]}'
        elif is_seen:
            what = f'has had {next(iter(self._nodes)).path}'
        else:
            return None
        name = sysfs.read(f'{sysfs.PROC}/{pid}/comm') or '?'
        return User(
            f'process {pid} ({name}) is in a container that {what}', container
        )

    def _allowed(self, tasks: list[str]) -> device_files.Number | None:
        for task in tasks:
            for number in device_cgroup.allowed(task, self._by_number):
                return number
        return None

    def _container(self, tasks: list[str]) -> str:
        for task in tasks:
            namespace = _pid_namespace(task)
            if namespace and namespace != self._pid_namespace:
                return f'{namespace} {self._starts.get(namespace, "")}'
        # A main thread that has ended is shown in the root control group.
        groups = map(device_cgroup.of_task, tasks)
        return next((f'cgroup {each}' for each in groups if each), '')

    def _shown(self, task: str) -> str | None:
        """The path of one of the devices in the /dev that a task sees."""
        root = f'{task}/root'
        directory = _identity(root + device_files.DIRECTORY)
        if directory in self._hosts:
            return None
        if directory not in self._known:
            self._known[directory] = _has(root, self._nodes)
        return self._known[directory]

    def _sees_hosts_dev(self, task: str) -> bool:
        directory = _identity(f'{task}/root{device_files.DIRECTORY}')
        return directory is not None and directory in self._hosts

    def _is_of_host(self, task: str) -> bool:
        return self._sees_hosts_dev(task) and _pid_namespace(task) in (
            '',
            self._pid_namespace,
        )


def _pid_namespace(task: str) -> str:
    """The PID namespace of a process, such as 'pid:[4026531836]'.

    :returns: empty if it has ended, or if this process may not see it
    """
    try:
        return sysfs.link(f'{task}/ns/pid') or ''
    except PermissionError:
        return ''


def _start(pid: str) -> str:
    """When a process was started; empty if it has ended."""
    text = sysfs.read(f'{sysfs.PROC}/{pid}/stat')
    return descriptors.state_and_start(text)[1] if text else ''


def _has(root: str, nodes: Collection[container_spec.Node]) -> str | None:
    """The path of a device file in a container's /dev that is one of nodes."""
    for node in nodes:
        if not _below_link(root, node.path) and (
            device_files.number_of(root + node.path, follow=False)
            == node.number
        ):
            return node.path
    numbers = {node.number for node in nodes}
    # Not os.walk(), which calls itself for each directory: a container could
    # end the scan by deep ones.
    left = [root + device_files.DIRECTORY]
    while left:
        for entry in _entries(left.pop()):
            if not _is_directory(entry):
                found = device_files.number_of(entry.path, follow=False)
                if found in numbers:
                    return entry.path.removeprefix(root)
            # A file system of the container need not answer.
            elif not os.path.ismount(entry.path):
                left.append(entry.path)
    return None


def _entries(directory: str) -> list[os.DirEntry[str]]:
    """What is in a directory of a container; nothing if it cannot be read."""
    try:
        with os.scandir(directory) as found:
            return list(found)
    except OSError:
        return []


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def _below_link(root: str, path: str) -> bool:
    """Whether a directory of a path is a link."""
    above = os.path.dirname(path)
    while above != '/':
        if os.path.islink(root + above):
            return True
        above = os.path.dirname(above)
    return False


def _identity(path: str) -> tuple[int, int] | None:
    """What distinguishes a directory from others; None: it does not exist."""
    try:
        found = os.lstat(path)
    except OSError:
        # The process has ended; its root directory has no /dev; or that is on
        # a file system in user space, which not even root may look into.
        return None
    return (
        (found.st_dev, found.st_ino) if stat.S_ISDIR(found.st_mode) else None
    )


def _has_all(task: str) -> bool:
    """Whether a process is in a container that has all devices of the host.

    A runtime gives a privileged container each device file that the host has
    then, and the capabilities of root. On a node of Kubernetes, kube-proxy and
    the agents of the network run so. Such a file does not say that the
    container uses the device. Nor would it keep a device safe to wait for such
    a container: its processes can load code into the kernel, and so open any
    device at any time.

    Its control group must not name devices, it must have the rights of root in
    the user namespace of the host, and its /dev must have all of the host's
    files of the kernel's memory, of which no container needs all.

    :param task: the directory of a process or thread in /proc
    :returns: False: it is in none, or that is unknown
    """
    if not _is_root(task) or device_cgroup.names_devices(task):
        return False
    hosts = _memory(sysfs.DEV) - _OF_EACH
    return bool(hosts) and hosts <= _memory(
        f'{task}/root{device_files.DIRECTORY}'
    )


def _is_root(task: str) -> bool:
    """Whether it may have the rights, in the user namespace of the host."""
    rights = 0
    for line in (sysfs.read(f'{task}/status') or '').splitlines():
        if line.startswith('CapBnd:'):
            rights = int(line.split()[1], 16)
    try:
        own = sysfs.link(f'{sysfs.PROC}/self/ns/user')
        other = sysfs.link(f'{task}/ns/user')
    except PermissionError:
        return False
    return rights & _RIGHTS == _RIGHTS and own == other is not None


def _memory(directory: str) -> set[int]:
    """The minor numbers of the files of the kernel's memory there."""
    try:
        names = os.listdir(directory)
    except OSError:  # it has ended, or its /dev cannot be read
        return set()
    found = (
        device_files.number_of(os.path.join(directory, name), follow=False)
        for name in names
    )
    return {
        each.minor
        for each in found
        if each is not None and (each.kind, each.major) == ('c', _MEMORY)
    }

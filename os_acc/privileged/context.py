# SPDX-License-Identifier: Apache-2.0

"""os-acc's own privileged context, and what its daemon reports on itself."""

from __future__ import annotations

import atexit
import importlib
import logging
import os
import threading

from oslo_privsep import capabilities

from os_acc import exception
from os_acc.kernel import device_files
from os_acc.kernel import open_files
from os_acc.privileged import privsep
from os_acc.privileged import root_folder

LOG = logging.getLogger(__name__)

SECTION = 'os_acc_privileged'

# The modules of the calls that every plug makes.
_MODULES = (
    'os_acc.privileged.devfile.device_files',
    'os_acc.privileged.device_users',
    'os_acc.privileged.mdev.devices',
    'os_acc.privileged.pci.functions',
)

# To write to sysfs, the user id of root is enough. Capabilities are needed to
# see which files other users' processes have open, to set up VFs of NICs, and
# to change the owner and the permissions of device files.
CAPABILITIES = (
    capabilities.CAP_SYS_PTRACE,  # to read the links in /proc/PID/fd
    capabilities.CAP_DAC_READ_SEARCH,  # to look into /proc/PID/fd
    capabilities.CAP_NET_ADMIN,  # to set a VF's MAC address on its PF
    capabilities.CAP_CHOWN,  # to give a device file to a user or group
    capabilities.CAP_FOWNER,  # to restore the mode of a file of another user
)

pctxt = privsep.Context(f'{__name__}.pctxt', SECTION, CAPABILITIES)
entry = pctxt.entry


@entry
def whoami() -> tuple[int, list[str]]:
    """Describe the daemon, for ``os-acc doctor``.

    :returns: its user id, and what it lacks: names of capabilities, or the
        PID namespace of the host
    """
    effective = 0
    with open('/proc/self/status', encoding='ascii') as file:
        for line in file:
            if line.startswith('CapEff:'):
                effective = int(line.split()[1], 16)
    missing = [each for each in CAPABILITIES if not effective >> each & 1]
    names = [capabilities.CAPS_BYVALUE.get(e, str(e)) for e in missing]
    try:
        open_files.check_all_seen()
    except exception.PrivilegeError:
        names.append("the host's PID namespace")
    return os.geteuid(), names


@entry
def check_users() -> None:
    """Look for the users of a device as each plug does, for the doctor.

    :raises PrivilegeError: if the open files of a process cannot be read
    """
    nothing = device_files.DeviceFile('no device', device_files.NO_DEVICE)
    open_files.users_of([nothing])


@entry
def check_directory() -> None:
    """Check the directory of the record, for ``os-acc doctor``.

    :raises PrivilegeError: if users other than root could change it
    """
    root_folder.check()


@entry
def load() -> None:
    """Import the modules of the calls that every plug makes."""
    for name in _MODULES:
        importlib.import_module(name)


def start_in_background() -> None:
    """Start the daemon in a thread, so that the first plug need not wait.

    If it cannot be started, this only logs a warning, and the first call that
    needs the daemon raises an error.
    """
    if pctxt.client_mode and pctxt.channel is None:
        thread = threading.Thread(
            target=_start, name='os-acc privsep start', daemon=True
        )
        thread.start()
        # A process that ends before the daemon has started would leave the
        # socket in the directory of temporary files, and privsep-helper with
        # nobody to connect to.
        atexit.register(thread.join, privsep.LONGEST_WAIT)


def _start() -> None:
    try:
        load()
    except Exception as err:
        LOG.warning(
            'The privileged daemon was not started in advance: %s',
            exception.describe(err),
        )

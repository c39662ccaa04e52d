# SPDX-License-Identifier: Apache-2.0

"""os-brick's NVMe-oF connector in the privileged daemon, and its commands.

os-brick would run its commands in a daemon of its own. It runs them through a
function that its caller can replace (the parameter ``execute`` of its
connectors), so here they run in os-acc's daemon, with os-acc's deadlines. The
same function adds to ``nvme connect`` what os-brick cannot say:

* the host id that belongs to the host NQN: Linux 6.5 and later refuses two
  host NQNs with one host id (nvmf_host_add() in drivers/nvme/host/fabrics.c);
* the secret for DH-HMAC-CHAP, in a JSON file (nvme-connect(1), ``--config``).
  The command line of a process can be read by everybody; the file is in the
  memory of this process only.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import json
import os
import re
import shutil
import stat
from typing import Any

from oslo_concurrency import processutils
from oslo_config import cfg

from os_acc import exception
from os_acc.deadlines import waiting
from os_acc.kernel import nvme_of
from os_acc.kernel import sysfs
from os_acc.privileged import command
from os_acc.privileged import root_folder
from os_acc.spec import files

# The commands of the package nvme-cli that os-brick may run here. It calls
# disconnect after a connect has failed, also for what is not os-acc's.
_ALLOWED = ('connect', 'ns-rescan')

# NVMe Base Specification 2.0, 8.13.5.8: the form of a secret.
_SECRET = re.compile(r'DHHC-1:0[0-3]:[A-Za-z0-9+/]+={0,2}:')
_LONGEST_SECRET = 4096

_ONE_HOST = (
    'nvme-cli before 2.6 connects only one instance to a portal of a '
    'subsystem. Upgrade it, or give each namespace its own subsystem'
)


class Commands:
    """Runs commands for os-brick.

    :param held: locks that the commands inherit, see command.run()
    :param config: a JSON file for ``nvme connect``; None: none
    :ivar failure: the output of the last command that failed; empty: none has
    """

    def __init__(
        self,
        device: str,
        deadline: waiting.Deadline,
        held: Sequence[int],
        host_id: str | None = None,
        config: str | None = None,
    ) -> None:
        self._device, self._deadline, self._held = device, deadline, held
        self._more = []
        if host_id is not None:
            self._more.append(f'--hostid={host_id}')
        if config is not None:
            self._more.append(f'--config={config}')
        self.failure = ''

    def __call__(self, *words: str, **_options: Any) -> tuple[str, str]:
        """Run a command, as os_brick.privileged.rootwrap.execute() does.

        :returns: the output, and an empty text
        """
        if words[0] != 'nvme' or words[1] not in _ALLOWED:
            raise self._failed(words, 'os-acc does not run it', None)
        left = self._deadline.left()
        if left <= 0:
            raise exception.Timeout(
                what=f'nvme {words[1]} for {self._device}',
                seconds=self._deadline.seconds,
            )
        arguments = [program('nvme', 'nvme-cli', self._device), *words[1:]]
        if words[1] == 'connect':
            arguments += self._more
        try:
            output = command.run(self._device, arguments, left, self._held)
        except exception.DeviceError as err:
            self.failure = err.kwargs['reason']
            if 'already connected' in self.failure:
                self.failure += f'. {_ONE_HOST}'
            raise self._failed(
                words, err.kwargs['reason'], err.kwargs.get('code')
            ) from err
        return output.text, ''

    @staticmethod
    def _failed(
        words: Sequence[str], output: str, code: int | None
    ) -> processutils.ProcessExecutionError:
        return processutils.ProcessExecutionError(
            stdout=output,
            stderr='',
            exit_code=1 if code is None else code,
            cmd=' '.join(words),
        )


def program(name: str, package: str, device: str) -> str:
    """Find a program, also where the PATH of the daemon lacks /usr/sbin."""
    path = f'{os.environ.get("PATH", "")}:/usr/sbin:/sbin'
    found = shutil.which(name, path=path)
    if found is None:
        raise exception.DeviceError(
            device=device,
            reason=f'the program {name} is missing: install {package}',
        )
    return found


def connector(commands: Commands, multipath: bool) -> Any:
    """Make an os_brick.initiator.connectors.nvmeof.NVMeOFConnector."""
    try:
        from os_brick.initiator.connectors import nvmeof
    except ImportError as err:
        raise exception.PrivilegeError(
            reason='os-brick is missing: install os-acc[remote]'
        ) from err
    _set_lock_path(cfg.CONF)
    return nvmeof.NVMeOFConnector(
        root_helper='', use_multipath=multipath, execute=commands
    )


def _set_lock_path(conf: cfg.ConfigOpts) -> None:
    """Make os-brick keep its lock files in a directory of root's.

    In the directory of Nova's locks, root would make files that Nova cannot
    open. The two need no common lock, because they connect with different host
    NQNs.
    """
    os.close(root_folder.open_directory('os-brick'))
    path = f'{root_folder.PATH}/os-brick'
    if 'privsep_context' in conf:
        conf.set_override('lock_path', path, 'os_brick')
    else:
        # A service that runs as root may have its own directory.
        conf.set_default('lock_path', path, 'os_brick')


def check_secrets(device: str) -> None:
    """Check that the kernel supports secrets.

    Another kernel would write the secret to its log, as an option that it does
    not know: nvmf_parse_options() in drivers/nvme/host/fabrics.c.
    """
    try:
        options = sysfs.read(f'{sysfs.DEV}/nvme-fabrics') or ''
    except OSError:
        # Linux before 5.17 does not list its options, and has no secrets.
        options = ''
    if 'dhchap_secret=' not in options:
        raise exception.DeviceError(
            device=device,
            reason='dhchap_secret_file cannot be used, because this kernel '
            'has no DH-HMAC-CHAP for NVMe: Linux 6.0 or later is required',
        )


@contextlib.contextmanager
def secret_config(
    path: str | None, instance_uuid: str
) -> Iterator[str | None]:
    """Make a file for ``nvme connect`` that contains a host's secret.

    :returns: the path of the file, which only root can open; None: none
    :raises InvalidRequest: if users other than root could read or write the
        secret, or it is malformed. The error does not contain it
    """
    if path is None:
        yield None
        return
    text = json.dumps(
        [
            {
                'hostnqn': nvme_of.host_nqn(instance_uuid),
                'hostid': instance_uuid,
                'dhchap_key': _secret(path),
            }
        ]
    )
    # It has no name in any file system, and is gone when this process is.
    fd = os.memfd_create('os-acc nvme', os.MFD_CLOEXEC)
    try:
        os.write(fd, text.encode())
        yield f'/proc/{os.getpid()}/fd/{fd}'
    finally:
        os.close(fd)


def _secret(path: str) -> str:
    files.check_file(path)
    with open(path, encoding='ascii', errors='replace') as file:
        mode = os.fstat(file.fileno()).st_mode
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            files.refuse(
                path,
                'mode',
                stat.filemode(mode),
                'one that lets only root read the secret, such as 0600',
            )
        found = file.read(_LONGEST_SECRET).strip()
    if not _SECRET.fullmatch(found):
        files.refuse(
            path,
            'content',
            '(not shown)',
            'a secret such as DHHC-1:00:...:, as nvme gen-dhchap-key '
            'generates it',
        )
    return found

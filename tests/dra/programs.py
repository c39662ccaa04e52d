# SPDX-License-Identifier: Apache-2.0

"""The program os-acc-dra as a process of its own."""

from __future__ import annotations

from collections.abc import Sequence
import os
import pathlib
import signal
import subprocess
import sys
import time

DRIVER = 'os-acc.openstack.org'
#: Seconds; a busy machine is no failure.
LONG = 600.0


class Program:
    """A process of os-acc-dra.

    :param place: a directory of the test, for the configuration and the log
    :param directory: stands for /var/lib/kubelet
    :param kubeconfig: how it reaches the API server
    :param more: lines of the configuration
    :param before: the beginning of the command that starts it
    :param pod_uid: of its Pod, if it has one
    """

    def __init__(
        self,
        place: pathlib.Path,
        directory: pathlib.Path,
        kubeconfig: str,
        more: str = '',
        before: Sequence[str] = (),
        pod_uid: str = '',
    ) -> None:
        part = f'-{pod_uid}' if pod_uid else ''
        self.registration = (
            directory / f'plugins_registry/{DRIVER}{part}-reg.sock'
        )
        self._log = place / f'os-acc-dra{part}.log'
        self._before = self._made()
        config = place / f'os-acc{part}.conf'
        config.write_text(
            f"""
[os_acc]
state_path = {place}/state
device_spec_dir = {place}/device_spec.d
{more}
[os_acc_dra]
node_name = node-1
kubelet_path = {directory}
kubeconfig = {kubeconfig}
"""
        )
        with open(self._log, 'a') as log:
            self.process = subprocess.Popen(
                [
                    *before,
                    sys.executable,
                    '-W',
                    'ignore',
                    '-m',
                    'os_acc_dra.main',
                    '--config-file',
                    str(config),
                ],
                stdout=log,
                stderr=log,
                env={
                    **os.environ,
                    'PYTHONUNBUFFERED': '1',
                    'POD_UID': pod_uid,
                },
            )

    def _made(self) -> int:
        try:
            return self.registration.stat().st_ctime_ns
        except FileNotFoundError:
            return 0

    def wait_until_it_serves(self) -> None:
        end = time.monotonic() + LONG
        while self._made() in (0, self._before):
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < end, self.log()
            time.sleep(0.05)
        # The socket is there a moment before the file has its mode.
        while self.registration.stat().st_mode & 0o077:
            assert time.monotonic() < end, self.log()
            time.sleep(0.05)

    def log(self) -> str:
        return self._log.read_text()

    def end(self, number: int = signal.SIGTERM) -> int:
        """End the process, and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(LONG)

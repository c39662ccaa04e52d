# SPDX-License-Identifier: Apache-2.0

"""A deploy and service step of Ironic: os-acc apply on the node."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from typing import Any

from ironic_python_agent import errors
from ironic_python_agent import hardware
from oslo_concurrency import processutils

STEP = 'apply_os_acc_document'

_ARGUMENTS = {
    'document': {
        'description': 'The document of os-acc apply, as an object.',
        'required': True,
    },
    'config_file': {
        'description': 'The configuration file of os-acc in the ramdisk.',
        'required': False,
    },
}


class OsAccHardwareManager(hardware.HardwareManager):
    """Programs and sets up the accelerators of a node from one document."""

    HARDWARE_MANAGER_NAME = 'OsAccHardwareManager'
    HARDWARE_MANAGER_VERSION = '1.0'

    def evaluate_hardware_support(self) -> int:
        """Whether the ramdisk has the command os-acc."""
        if shutil.which('os-acc') is None:
            return int(hardware.HardwareSupport.NONE)
        return int(hardware.HardwareSupport.SERVICE_PROVIDER)

    def get_deploy_steps(
        self, node: dict[str, Any], ports: list[Any]
    ) -> list[dict[str, Any]]:
        """The step, which a deploy template names."""
        return [_step()]

    def get_service_steps(
        self, node: dict[str, Any], ports: list[Any]
    ) -> list[dict[str, Any]]:
        """The step, which the operator names."""
        return [_step()]

    def apply_os_acc_document(
        self,
        node: dict[str, Any],
        ports: list[Any],
        document: dict[str, Any],
        config_file: str | None = None,
    ) -> list[dict[str, Any]]:
        """Apply a document, and return the rows of os-acc apply -f json.

        :param document: see "Describe a host" in the documentation of os-acc
        :param config_file: of os-acc; None: its own
        :raises CommandExecutionError: if something is wrong, or not done
        """
        words = ['--config-file', config_file] if config_file else []
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, 'host.json')
            with open(path, 'w', encoding='utf-8') as file:
                json.dump(document, file)
            try:
                out, _ = processutils.execute(
                    'os-acc', *words, 'apply', path, '-f', 'json'
                )
            except processutils.ProcessExecutionError as err:
                raise errors.CommandExecutionError(
                    f'os-acc apply ended with {err.exit_code}: '
                    f'{err.stderr} {err.stdout}'
                ) from err
        rows: list[dict[str, Any]] = json.loads(out)
        return rows


def _step() -> dict[str, Any]:
    # Priority 0: only if it is asked for, because it needs a document.
    return {
        'step': STEP,
        'priority': 0,
        'interface': 'deploy',
        'reboot_requested': False,
        'abortable': False,
        'argsinfo': _ARGUMENTS,
    }

# SPDX-License-Identifier: Apache-2.0

"""Options as root has configured them, which no caller can change."""

from __future__ import annotations

from collections.abc import Callable
import glob
import os

from oslo_config import cfg

from os_acc import exception
from os_acc.options import nova as nova_options
from os_acc.spec import files


def reread(
    conf: cfg.ConfigOpts, register: Callable[[cfg.ConfigOpts], None]
) -> cfg.ConfigOpts:
    """Read again the files that a configuration was read from.

    Environment variables do not count: the caller could have set them.
    """
    arguments = []
    for path in conf.config_file or ():
        files.check_file(path)
        arguments += ['--config-file', path]
    for directory in conf.config_dir or ():
        # The default directories need not exist.
        if not os.path.isdir(directory):
            continue
        files.check_directory(directory)
        for path in sorted(glob.glob(f'{glob.escape(directory)}/*.conf')):
            files.check_file(path)
        arguments += ['--config-dir', directory]
    fresh = cfg.ConfigOpts()
    register(fresh)
    nova_options.register(fresh)
    try:
        fresh(
            arguments,
            project='os-acc',
            default_config_files=[],
            default_config_dirs=[],
            use_env=False,
        )
        nova_options.set_defaults(fresh)
    except cfg.Error as err:
        raise exception.InvalidRequest(
            f'configuration: {exception.describe(err)}'
        ) from err
    return fresh

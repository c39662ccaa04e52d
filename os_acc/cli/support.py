# SPDX-License-Identifier: Apache-2.0
"""os-acc support: pack what a bug report needs into one file."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shlex
import tarfile
import time
from typing import IO
from typing import Any

from oslo_config import cfg

from os_acc import exception
from os_acc.cli import base
from os_acc.cli import bundle
from os_acc.cli import output_files

_EXPECTED = 'a new file that can be written'
_DIRECTORY = 'os-acc-support'


class Support(base.Command):
    """Pack what a bug report needs into one file, without secrets.

    The file is a compressed tar archive of JSON files: the findings of os-acc
    doctor, the journal, its last events, the devices, the configuration and
    the versions of the packages. Secret options, options that do not belong to
    os-acc, and the names and projects of instances are masked. Only its owner
    can read the file.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            'file',
            metavar='FILE',
            help='the file to write, such as report.tar.gz; it must not exist '
            'yet',
        )
        return parser

    def check_configuration(self) -> None:
        """Let a configuration that cannot be read be a part of the report.

        :raises cfg.ConfigFilesNotFoundError: if a file is missing: its name
            may be mistyped
        """
        if isinstance(
            self.app.configuration_error, cfg.ConfigFilesNotFoundError
        ):
            raise self.app.configuration_error

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        path = parsed_args.file
        # Before the rest, which takes long: it may be impossible.
        number = _create(path)
        try:
            parts = bundle.collect(self.app.configuration_error)
            try:
                with open(number, 'wb') as file:
                    _write(file, parts)
            except OSError as err:
                raise _error(path, err) from err
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise
        for line in bundle.faults(parts):
            self.say(line)
        self.out(
            f'{path}: {", ".join(sorted(parts))}. Look at it before you send '
            f'it, with tar -xzOf {shlex.quote(path)} | less: it names the '
            'devices of this host'
        )


def _error(path: str, err: OSError) -> Exception:
    return output_files.error('support', 'FILE', path, _EXPECTED, err)


def _create(path: str) -> int:
    """Create a file that only its owner can read.

    :returns: its file descriptor
    :raises InvalidRequest: if there can be no such file
    :raises OSError: if the disk is full or broken
    """
    if path == '-':
        raise exception.InvalidRequest(
            subject='support',
            field='FILE',
            value=path,
            expected=f'{_EXPECTED}; the report is not for a terminal',
        )
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as err:
        raise _error(path, err) from err


def _write(file: IO[bytes], parts: dict[str, Any]) -> None:
    """Write the archive into a file."""
    with tarfile.open(fileobj=file, mode='w:gz') as archive:
        for name, part in parts.items():
            text = json.dumps(part, indent=2, default=str) + '\n'
            member = tarfile.TarInfo(f'{_DIRECTORY}/{name}.json')
            content = text.encode('utf-8', 'backslashreplace')
            member.size, member.mode = len(content), 0o600
            member.mtime = int(time.time())
            archive.addfile(member, io.BytesIO(content))

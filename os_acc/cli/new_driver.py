# SPDX-License-Identifier: Apache-2.0

"""os-acc new-driver: the skeleton of a distribution with a driver."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from importlib import resources
import os
import re
import shlex
import shutil

from os_acc import exception
from os_acc import loader
from os_acc.cli import base
from os_acc.cli import errors

#: The name of the driver in the files of the skeleton.
_NAME = 'acme'

# Each file of the skeleton, and its place in the directory of the
# distribution.
_FILES = {
    'pyproject.toml': 'pyproject.toml',
    'README.rst': 'README.rst',
    '__init__.py': 'os_acc_acme/__init__.py',
    'devices.py': 'os_acc_acme/devices.py',
    'privileged.py': 'os_acc_acme/privileged.py',
    'driver.py': 'os_acc_acme/driver.py',
    'test_driver.py': 'tests/test_acme_driver.py',
}

_LONGEST = 32


class NewDriver(base.Command):
    """Write the skeleton of a driver's distribution, with tests.

    It is a complete driver for devices that appear as files. Adapt it to your
    device: see "From nothing to a conformant driver" in the
    documentation.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            'name',
            metavar='NAME',
            help='the name of the driver: letters a to z, digits and _',
        )
        parser.add_argument(
            '--directory',
            metavar='DIR',
            default='.',
            help='where to create the directory os-acc-NAME (default: here)',
        )
        return parser

    def check_configuration(self) -> None:
        """Do nothing: the command reads no option."""

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        name: str = parsed_args.name
        _check(name)
        files = {
            _renamed(place, name): _renamed(_text(file), name)
            for file, place in _FILES.items()
        }
        directory = os.path.join(
            parsed_args.directory, f'os-acc-{name.replace("_", "-")}'
        )
        try:
            os.mkdir(directory)
            _write(directory, files)
        except OSError as err:
            raise errors.unwritable(
                'new-driver',
                'directory',
                directory,
                'a new directory, in a directory where files can be written',
                err,
            ) from err
        for place in files:
            self.app.stdout.write(f'{os.path.join(directory, place)}\n')
        self.say(
            f'Next: cd {shlex.quote(directory)}; pip install --editable '
            "'.[test]'; python -m pytest. README.rst says what an operator "
            'does'
        )
        return 0


def _write(directory: str, files: Mapping[str, str]) -> None:
    """Write the files into a new directory. After an error, remove it."""
    try:
        for place, text in files.items():
            path = os.path.join(directory, place)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, 'x', encoding='utf-8') as file:
                file.write(text)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise


def _check(name: str) -> None:
    if not re.fullmatch(r'[a-z][a-z0-9]*(_[a-z0-9]+)*', name) or (
        len(name) > _LONGEST
    ):
        raise exception.InvalidRequest(
            subject='new-driver',
            field='NAME',
            value=name,
            expected='a letter a to z, then letters, digits and single '
            f'underscores; {_LONGEST} characters at most',
        )
    if name in loader.names(loader.DRIVERS):
        raise exception.InvalidRequest(
            subject='new-driver',
            field='NAME',
            value=name,
            expected='a name that no installed driver has (see host show)',
        )


def _text(file: str) -> str:
    skeleton = resources.files('os_acc.cli') / 'skeleton'
    return (skeleton / f'{file}.in').read_text(encoding='utf-8')


def _renamed(text: str, name: str) -> str:
    """Put the name of the driver in the place of the skeleton's."""
    new = {
        'os-acc-acme': f'os-acc-{name.replace("_", "-")}',
        _NAME: name,
        _NAME.capitalize(): ''.join(
            each.capitalize() for each in name.split('_')
        ),
        _NAME.upper(): name.upper(),
    }
    # In one pass, because the new name may contain the old one.
    return re.sub('|'.join(new), lambda match: new[match[0]], text)

# SPDX-License-Identifier: Apache-2.0
"""os-acc support: pack what a bug report needs into one file."""

from __future__ import annotations

import argparse
from collections.abc import Callable
import contextlib
import dataclasses
import functools
from importlib import metadata
import io
import json
import os
import platform
import shlex
import sys
import tarfile
import time
from typing import IO
from typing import Any

from oslo_config import cfg
from oslo_config import iniparser

import os_acc
from os_acc import exception
from os_acc import journal as journal_module
from os_acc import loader
from os_acc.cli import base
from os_acc.cli import doctor
from os_acc.cli import errors
from os_acc.kernel import sysfs
from os_acc.operations import discovery
from os_acc.texts import masking

# Further packages whose versions matter.
_PACKAGES = (
    'cliff',
    'eventlet',
    'libvirt-python',
    'lxml',
    'nova',
    'openstack-cyborg',
    'os-brick',
    'oslo.concurrency',
    'oslo.config',
    'oslo.privsep',
    'oslo.versionedobjects',
    'pypowervm',
    'pyroute2',
    'pyudev',
    'stevedore',
)

# The report has this number of events: the last ones.
_EVENTS = 500

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
        """Let a configuration that cannot be read be a part of the report."""
        if isinstance(
            self.app.configuration_error, cfg.ConfigFilesNotFoundError
        ):
            raise self.app.configuration_error

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        path = parsed_args.file
        # Before the rest, which takes long: it may be impossible.
        number = _create(path)
        try:
            parts = collect(self.app.configuration_error)
            try:
                with open(number, 'wb') as file:
                    _write(file, parts)
            except OSError as err:
                raise _error(path, err) from err
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise
        for line in faults(parts):
            self.say(line)
        self.out(
            f'{path}: {", ".join(sorted(parts))}. Look at it before you send '
            f'it, with tar -xzOf {shlex.quote(path)} | less: it names the '
            'devices of this host'
        )


def _error(path: str, err: OSError) -> Exception:
    return errors.unwritable('support', 'FILE', path, _EXPECTED, err)


def _create(path: str) -> int:
    """Create a file that only its owner can read.

    :returns: its file descriptor
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
    with tarfile.open(fileobj=file, mode='w:gz') as archive:
        for name, part in parts.items():
            text = json.dumps(part, indent=2, default=str) + '\n'
            member = tarfile.TarInfo(f'{_DIRECTORY}/{name}.json')
            content = text.encode('utf-8', 'backslashreplace')
            member.size, member.mode = len(content), 0o600
            member.mtime = int(time.time())
            archive.addfile(member, io.BytesIO(content))


def collect(configuration_error: Exception | None) -> dict[str, Any]:
    """Collect all parts. A part that fails has an error in its place.

    :param configuration_error: why the configuration cannot be read; then
        the parts that need it are left out
    :returns: values for JSON, by the name of the part
    """
    wanted: dict[str, Callable[[], Any]] = {'versions': _versions}
    if configuration_error is None:
        # The drivers and plugins register their options.
        extensions = loader.load_all()
        wanted |= {
            'configuration': _configuration,
            'journal': lambda: _journal(extensions),
            'events': _events,
            'devices': lambda: _devices(extensions),
            'doctor': lambda: list(
                map(dataclasses.asdict, doctor.examine(extensions))
            ),
        }
    parts = {
        name: masking.masked(_guarded(make)) for name, make in wanted.items()
    }
    if configuration_error is not None:
        parts['configuration'] = {
            'error': masking.masked(
                masking.without_line(exception.describe(configuration_error))
            )
        }
    return parts


def faults(parts: dict[str, Any]) -> list[str]:
    """Say in lines what is missing in the parts, and why."""
    found = [
        f'{name}: {part["error"]}'
        for name, part in parts.items()
        if isinstance(part, dict) and part.get('error')
    ]
    if 'journal' not in parts:
        found.append(
            'Without a configuration that can be read, the journal, its '
            'events, the devices and what doctor says are not in the report'
        )
    elif parts['journal'].get('exists') is False:
        found.append(
            f'There is no journal {parts["journal"]["path"]} yet: nothing was '
            'plugged'
        )
    return found


def _guarded(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except iniparser.ParseError as err:
        return {'error': masking.without_line(exception.describe(err))}
    except Exception as err:
        return {'error': exception.describe(err)}


def _versions() -> dict[str, Any]:
    uname = platform.uname()
    found = {'os-acc': metadata.version('os-acc')}
    for name in (*_PACKAGES, *_providers()):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        'python': sys.version,
        'system': _system(),
        'kernel': f'{uname.release} {uname.version} {uname.machine}',
        'boot_id': sysfs.boot_id(),
        'user_id': os.geteuid(),
        'packages': found,
    }


def _system() -> str | None:
    """The name of the distribution; None: a small container has no name."""
    try:
        return platform.freedesktop_os_release().get('PRETTY_NAME')
    except OSError:
        return None


def _providers() -> set[str]:
    """The names of the distributions that bring drivers and plugins."""
    return {
        point.dist.name
        for group in (loader.DRIVERS, loader.PLUGINS)
        for point in metadata.entry_points(group=group)
        if point.dist is not None
    }


def _configuration() -> dict[str, Any]:
    known = {
        (group, option.dest): option
        for group, options in loader.list_opts()
        for option in options
    }
    values: dict[str, dict[str, Any]] = {}
    for (group, name), option in known.items():
        try:
            value = os_acc.CONF[group][name]
        except (cfg.Error, ValueError) as err:
            value = {'error': exception.describe(err)}
        values.setdefault(group, {})[name] = (
            masking.MASK if option.secret else value
        )
    return {
        'values': values,
        'files': {
            path: _guarded(functools.partial(_file, path, known))
            for path in os_acc.CONF.config_file or ()
        },
    }


def _file(
    path: str, known: dict[tuple[str, str], cfg.Opt]
) -> dict[str, dict[str, Any]]:
    """Read the options that a file sets, by group and name.

    Secret options, and options that os-acc does not know, are masked.
    """
    sections: dict[str, dict[str, list[str]]] = {}
    cfg.ConfigParser(path, sections).parse()
    found: dict[str, dict[str, Any]] = {}
    for group, options in sections.items():
        for name, value in options.items():
            option = known.get((group, name.replace('-', '_')))
            shown = option is not None and not option.secret
            found.setdefault(group, {})[name] = (
                value if shown else masking.MASK
            )
    return found


def _journal(extensions: loader.Extensions) -> dict[str, Any]:
    with contextlib.closing(base.look(extensions)) as host:
        journal: journal_module.Journal = host.journal
        return {
            'path': journal.path,
            'exists': journal.exists(),
            'vans': [_entry(entry) for entry in journal.entries()],
            'unreadable': [
                dataclasses.asdict(row) for row in journal.unreadable()
            ],
            'programs': [str(each) for each in journal.programs()],
            'reservations': [str(each) for each in journal.reservations()],
            'unhealthy': [str(each) for each in journal.unhealthy()],
        }


def _entry(entry: journal_module.Entry) -> dict[str, Any]:
    info = entry.instance_info.obj_clone()
    for name in ('name', 'project_id', 'image_id', 'hypervisor_id'):
        # They identify a tenant, and do not help to find a fault.
        if getattr(info, name):
            setattr(info, name, masking.MASK)
    return {
        'van': entry.van.obj_to_primitive(),
        'request': entry.request.obj_to_primitive(),
        'instance': info.obj_to_primitive(),
        'live': entry.live,
        'attached': entry.attached,
        'started': entry.started,
    }


def _events() -> list[dict[str, Any]]:
    with base.reading() as journal:
        found = journal.events()[-_EVENTS:]
    return [
        each._asdict() | {'instance_name': masking.MASK}
        if each.instance_name
        else each._asdict()
        for each in found
    ]


def _devices(extensions: loader.Extensions) -> dict[str, Any]:
    host = base.look(extensions)
    error = None
    try:
        # First, because every driver would repeat the journal's error.
        host.journal.reservations()
        found = discovery.devices(host)
    except exception.DiscoveryFailed as err:
        found, error = err.devices, str(err)
    finally:
        host.close()
    return {
        'error': error,
        'devices': [device.obj_to_primitive() for device in found],
    }

# SPDX-License-Identifier: Apache-2.0

"""What the doctor says about the container runtimes that Kubernetes uses.

podman and Docker always read the directories of CDI. containerd and CRI-O read
those that their configuration names:
https://github.com/containerd/containerd, docs/cri/config.md, and
https://github.com/cri-o/cri-o, docs/crio.conf.5.md
"""

from __future__ import annotations

from collections.abc import Iterator
import glob
import os
import tomllib
from typing import Any

from os_acc import exception
from os_acc import finding
from os_acc.kernel import sysfs

_DEFAULT = ['/etc/cdi', '/var/run/cdi']
#: The tables of version 3 of the configuration, and of earlier ones.
_CONTAINERD, _CONTAINERD_1 = (
    'io.containerd.cri.v1.runtime',
    'io.containerd.grpc.v1.cri',
)


def findings(spec_dir: str) -> Iterator[finding.Finding]:
    """Report a runtime that does not read the specs of os-acc.

    A runtime without a configuration file is not reported.

    :param spec_dir: the directory of the specs
    """
    for name, read in (('containerd', _containerd), ('CRI-O', _crio)):
        subject = f'{name} and CDI'
        try:
            yield from read(subject, spec_dir)
        except (OSError, ValueError, AttributeError, TypeError) as err:
            # ValueError: not TOML. The others: a value of another type.
            yield finding.Finding(
                subject,
                finding.WARNING,
                f'its configuration cannot be read: {exception.describe(err)}',
                f'check that {name} reads CDI specs in {spec_dir}',
            )


def _containerd(subject: str, spec_dir: str) -> Iterator[finding.Finding]:
    path = f'{sysfs.ETC}/containerd/config.toml'
    if not os.path.exists(path):
        return
    main = _read(path)
    is_new = main.get('version', 1) >= 3
    table = _CONTAINERD if is_new else _CONTAINERD_1
    options: dict[str, Any] = {}
    for each in (main, *_imported(main, os.path.dirname(path))):
        options |= each.get('plugins', {}).get(table, {})
    where = f'[plugins."{table}"] of {path}'
    enabled = options.get('enable_cdi', True if is_new else None)
    if not enabled:
        yield finding.Finding(
            subject,
            finding.WARNING if enabled is None else finding.ERROR,
            'enable_cdi is not set, and containerd 1.7 then gives a container '
            'no CDI device; containerd 2 gives it'
            if enabled is None
            else 'enable_cdi is false: a container gets no CDI device',
            f'set enable_cdi = true in {where}, and restart containerd',
        )
        if enabled is False:
            return
    yield from _directories(subject, options, spec_dir, where)


def _crio(subject: str, spec_dir: str) -> Iterator[finding.Finding]:
    path = f'{sysfs.ETC}/crio/crio.conf'
    paths = [path, *sorted(glob.glob(f'{sysfs.ETC}/crio/crio.conf.d/*'))]
    there = [each for each in paths if os.path.isfile(each)]
    options: dict[str, Any] = {}
    for each in there:
        options |= _read(each).get('crio', {}).get('runtime', {})
    if there:
        where = f'[crio.runtime] of {there[-1]}'
        yield from _directories(subject, options, spec_dir, where)


def _directories(
    subject: str, options: dict[str, Any], spec_dir: str, where: str
) -> Iterator[finding.Finding]:
    read = options.get('cdi_spec_dirs', _DEFAULT)
    if os.path.realpath(spec_dir) in map(os.path.realpath, read):
        yield finding.Finding(
            subject, finding.OK, f'it reads the specs in {spec_dir}'
        )
        return
    yield finding.Finding(
        subject,
        finding.ERROR,
        f'it reads CDI specs in {", ".join(read) or "no directory"}, but '
        f'os-acc writes them into {spec_dir}: no container gets a device',
        f'add it to cdi_spec_dirs in {where}, and restart the runtime; or set '
        '[os_acc_cdi] spec_dir to a directory that it reads',
    )


def _imported(
    main: dict[str, Any], directory: str
) -> Iterator[dict[str, Any]]:
    """The files that containerd reads after its main one."""
    for pattern in main.get('imports', ()):
        for path in sorted(glob.glob(os.path.join(directory, pattern))):
            yield _read(path)


def _read(path: str) -> dict[str, Any]:
    with open(path, 'rb') as file:
        return tomllib.load(file)

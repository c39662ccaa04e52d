# SPDX-License-Identifier: Apache-2.0

"""Checks whether this host's libvirt can be used, for os-acc doctor."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
from typing import Any

from acc_plug_libvirt import connection
from os_acc import exception
from os_acc import finding
from os_acc.deadlines import waiting
from os_acc.kernel import vfio

# The first libvirt that opens PCI functions through iommufd: 12.1.0, as
# virConnectGetLibVersion() gives it.
IOMMUFD_SINCE = 12001000
NO_IOMMUFD = 'libvirt before 12.1 does not know iommufd'


def _ask(libvirt: Any, uri: str) -> tuple[int, int]:
    """Ask libvirt for its version and the number of running guests."""
    # openReadOnly() would use another socket, with other permissions.
    with contextlib.closing(libvirt.open(uri)) as opened:
        return opened.getLibVersion(), opened.numOfDomains()


def findings(uri: str, seconds: float) -> Iterator[finding.Finding]:
    """Report whether libvirt can be used. See ExtensionBase.diagnose.

    :param uri: the connection URI of libvirt
    :param seconds: how long libvirt may take to answer
    """
    subject = f'libvirt {uri}'
    try:
        libvirt = connection.module()
    except exception.HypervisorError:
        yield finding.Finding(
            subject,
            finding.WARNING,
            'libvirt-python is not installed: no device can be attached to '
            'a running guest',
            "pip install 'os-acc[libvirt]'",
        )
        return
    try:
        version, running = waiting.at_most(
            lambda: _ask(libvirt, uri), seconds, f'libvirt at {uri} to answer'
        )
    except (libvirt.libvirtError, exception.Timeout) as err:
        yield finding.Finding(
            subject,
            finding.WARNING,
            f'libvirt cannot be reached: {err}',
            'start libvirtd, correct [os_acc_libvirt] connection_uri, or give '
            "the service's user access to libvirt's socket",
        )
        return
    text = f'{version // 1000000}.{version // 1000 % 1000}.{version % 1000}'
    yield finding.Finding(
        subject, finding.OK, f'version {text}, {running} running guests'
    )
    if version < IOMMUFD_SINCE and not vfio.has_groups():
        yield finding.Finding(
            subject,
            finding.ERROR,
            'this kernel has no VFIO groups (CONFIG_VFIO_GROUP), so guests '
            f'need iommufd, but {NO_IOMMUFD}',
            'upgrade libvirt, or boot a kernel with CONFIG_VFIO_GROUP',
        )

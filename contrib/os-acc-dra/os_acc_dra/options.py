# SPDX-License-Identifier: Apache-2.0

"""The options of the driver, in the group [os_acc_dra]."""

from __future__ import annotations

import os
import re
import socket

from oslo_config import cfg

from os_acc_dra import errors

GROUP = 'os_acc_dra'

OPTS = (
    cfg.StrOpt(
        'driver_name',
        default='os-acc.openstack.org',
        help='Name of the driver in ResourceSlices, claims and DeviceClasses.',
    ),
    cfg.StrOpt(
        'node_name',
        default='',
        sample_default='<environment variable NODE_NAME, or the host name>',
        help='Name of this node in Kubernetes.',
    ),
    cfg.StrOpt(
        'pod_uid',
        default='',
        sample_default='<environment variable POD_UID, or none>',
        help='UID of the Pod of this driver. The sockets are named after it, '
        'so that two Pods can serve the driver during a rolling update.',
    ),
    cfg.StrOpt(
        'kubelet_path',
        default='/var/lib/kubelet',
        help="The kubelet's directory (its --root-dir). The path must be the "
        'same in the container of this driver and on the host.',
    ),
    cfg.StrOpt(
        'kubeconfig',
        default='',
        help='File that says how to reach the API server. Without it, the '
        'service account of the Pod is used.',
    ),
    cfg.FloatOpt(
        'answer_timeout',
        default=40.0,
        min=0.1,
        max=44.0,
        help='Seconds after which a kubelet call is answered with what is '
        'still in progress. The kubelet itself gives up after 45.',
    ),
    cfg.IntOpt(
        'max_claims',
        default=32,
        min=1,
        max=256,
        help='How many claims are prepared and unprepared at the same time. '
        'It should be greater than the number of devices that take long to '
        'program.',
    ),
    cfg.BoolOpt(
        'binding_conditions',
        default=False,
        help='Let the scheduler bind a Pod only after its device is '
        'programmed. All claims of the cluster are read every '
        'publish_interval seconds for it.',
    ),
    cfg.FloatOpt(
        'publish_interval',
        default=10.0,
        min=0.1,
        help='Seconds between two checks of the devices for the '
        'ResourceSlices.',
    ),
    cfg.FloatOpt(
        'orphan_interval',
        default=600.0,
        min=1,
        help='Seconds between two searches for devices of claims that neither '
        'the kubelet nor the API server still has.',
    ),
    cfg.FloatOpt(
        'orphan_age',
        default=600.0,
        min=0,
        help='Seconds for which such a claim must be unchanged before its '
        'devices are released.',
    ),
)

# What os-acc waits for by default is longer than the kubelet waits. The error
# that names who still has the device is to come in time.
_RELEASE_TIMEOUT = 30.0

_SUBDOMAIN = re.compile(
    r'(?=.{1,63}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?'
    r'(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*'
)
# The kubelet's own, for a static Pod, is not a UUID.
_POD_UID = re.compile(r'[A-Za-z0-9-]{1,63}')


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """For oslo-config-generator."""
    return [(GROUP, list(OPTS))]


def register(conf: cfg.ConfigOpts) -> None:
    """Register the options, and set defaults that fit the kubelet."""
    conf.register_opts(OPTS, GROUP)
    conf.set_default('release_timeout', _RELEASE_TIMEOUT, 'os_acc')


def check(conf: cfg.ConfigOpts) -> None:
    """Check what the types of the options do not.

    :raises ConfigurationError: if a value is wrong
    """
    name = conf.os_acc_dra.driver_name
    if not _SUBDOMAIN.fullmatch(name):
        raise errors.ConfigurationError(
            f'[{GROUP}] driver_name is {name!r}, expected a DNS subdomain of '
            'at most 63 characters'
        )
    uid = pod_uid(conf)
    if uid and not _POD_UID.fullmatch(uid):
        raise errors.ConfigurationError(
            f'[{GROUP}] pod_uid is {uid!r}, expected letters, digits and '
            'hyphens, at most 63'
        )


def node_name(conf: cfg.ConfigOpts) -> str:
    """The name of this node in Kubernetes."""
    return (
        conf.os_acc_dra.node_name
        or os.environ.get('NODE_NAME')
        or socket.gethostname().lower()
    )


def pod_uid(conf: cfg.ConfigOpts) -> str:
    """The UID of the Pod of this process; '': it runs in none."""
    return conf.os_acc_dra.pod_uid or os.environ.get('POD_UID') or ''


def data_path(directory: str, driver: str) -> str:
    """The directory that belongs to this driver alone.

    :param directory: the kubelet's directory
    """
    return os.path.join(directory, 'plugins', driver)

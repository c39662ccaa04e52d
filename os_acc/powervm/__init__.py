# SPDX-License-Identifier: Apache-2.0

"""PowerVM's REST API through pypowervm: connection, LPAR UUIDs, errors.

The driver drc and the plugin powervm share this package; neither imports the
other. The module inventory lists the I/O slots. pypowervm (the extra powervm)
is imported only when it is used.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import threading
from typing import Any

from oslo_config import cfg

from os_acc import exception
from os_acc import objects

GROUP = 'os_acc_powervm'

OPTS = (
    cfg.StrOpt(
        'host',
        default='localhost',
        help='REST API host: localhost for NovaLink, or the name of an HMC.',
    ),
    cfg.PortOpt(
        'port',
        help='REST API port. Unset: 12080 for http, 12443 for https.',
    ),
    cfg.StrOpt(
        'protocol',
        choices=[
            ('http', 'NovaLink on this host.'),
            ('https', 'The default if a password is set.'),
        ],
        help='REST API protocol. Unset: https if a password is set, else '
        'http.',
    ),
    cfg.StrOpt(
        'username', help='User name for the log-on. NovaLink needs none.'
    ),
    cfg.StrOpt(
        'password',
        secret=True,
        help='Password for the log-on. Unset: log on with the token file of '
        'NovaLink.',
    ),
    cfg.StrOpt(
        'cert_path',
        default='/etc/ssl/certs/',
        help='Directory with the certificate of the https server.',
    ),
    cfg.StrOpt(
        'cert_ext',
        default='.crt',
        help='Suffix of the certificate file. The file has the name of the '
        'host.',
    ),
    cfg.IntOpt(
        'request_timeout',
        default=60,
        min=1,
        help='Seconds to wait for the response to one request. Changes of an '
        'LPAR have their own limit: operation_timeout.',
    ),
    cfg.StrOpt(
        'managed_system',
        help='The managed system of this host, if the server (an HMC) manages '
        'several: its name, its UUID or its MTMS, such as 8247-22L*2125D1A. '
        'Unset: the only system, or the system that has the LPAR.',
    ),
)

_adapters: dict[tuple[Any, ...], Any] = {}
_connecting = threading.Lock()


def register(conf: cfg.ConfigOpts) -> None:
    """Register the options. May be called again."""
    conf.register_opts(OPTS, group=GROUP)


def adapter() -> Any:
    """Return a pypowervm Adapter that is logged on.

    The process keeps one Adapter for each set of option values. pypowervm
    logs on again by itself when the session expires.
    """
    conf = cfg.CONF[GROUP]
    wanted = tuple(conf[option.dest] for option in OPTS)
    with _connecting:
        if wanted not in _adapters:
            with errors(f'log-on to {conf.host}'):
                _adapters[wanted] = _connect(conf)
        return _adapters[wanted]


def close() -> None:
    """Log off. The next call of adapter() logs on again."""
    with _connecting:
        # pypowervm logs off when an Adapter's session is garbage collected.
        _adapters.clear()


def _connect(conf: Any) -> Any:
    from pypowervm import adapter as pvm_adapter
    from pypowervm.helpers import log_helper
    from pypowervm.helpers import vios_busy

    session = pvm_adapter.Session(
        host=conf.host,
        port=conf.port,
        protocol=conf.protocol,
        username=conf.username,
        password=conf.password,
        auditmemento='os-acc',
        timeout=conf.request_timeout,
        certpath=conf.cert_path,
        certext=conf.cert_ext,
    )
    # The helpers that Nova's PowerVM driver used.
    helpers = [log_helper.log_helper, vios_busy.vios_busy_retry_helper]
    return pvm_adapter.Adapter(session, helpers=helpers)


def lpar_uuid(instance_info: objects.InstanceInfo) -> str:
    """Return the UUID of an instance's LPAR.

    It is the hypervisor_id if the instance has one. Otherwise it is the
    instance's UUID with the first bit cleared, as in Nova's PowerVM driver
    (pypowervm.utils.uuid.convert_uuid_to_pvm).
    """
    if instance_info.hypervisor_id is not None:
        chosen: str = instance_info.hypervisor_id
        return chosen.upper()
    first, rest = instance_info.uuid[0], instance_info.uuid[1:]
    return f'{int(first, 16) & 7:x}{rest}'.upper()


@contextlib.contextmanager
def errors(what: str) -> Iterator[None]:
    """Turn errors of pypowervm into errors of os-acc with the same message."""
    try:
        from pypowervm import exceptions as pvm_exceptions
    except ImportError as err:
        raise exception.HypervisorError(
            what=what,
            reason=f'the package pypowervm is unavailable ({err}); install '
            'os-acc[powervm]',
        ) from err
    try:
        yield
    except pvm_exceptions.HttpNotFound as err:
        raise exception.DeviceNotFound(wanted=what, reason=str(err)) from err
    except pvm_exceptions.TimeoutError as err:
        raise exception.Timeout(
            what=f'{what}: {err}', seconds=cfg.CONF[GROUP].request_timeout
        ) from err
    except pvm_exceptions.Error as err:
        raise exception.HypervisorError(what=what, reason=str(err)) from err

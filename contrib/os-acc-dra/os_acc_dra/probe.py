# SPDX-License-Identifier: Apache-2.0

"""The program os-acc-dra-probe: whether the driver of this node answers.

The kubelet runs it in the driver's Pod. It calls both services as the kubelet
does, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
import sys
from typing import Any

import grpc
from oslo_config import cfg

from os_acc_dra import messages
from os_acc_dra import options
from os_acc_dra import process

#: Seconds for each of the two calls.
_TIMEOUT = 4.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask the driver. It needs the configuration of os-acc-dra.

    :returns: 0 if it answers; 1 if not, with the reason on the standard error
    """
    conf = cfg.ConfigOpts()
    conf.register_opts(options.OPTS, options.GROUP)
    try:
        conf(
            list(sys.argv[1:] if arguments is None else arguments),
            project='os-acc',
        )
        own = conf.os_acc_dra
        _ask(
            process.Process(
                own.kubelet_path, own.driver_name, options.pod_uid(conf)
            ).registration
        )
    except cfg.Error as err:
        return _failed(str(err))
    except grpc.RpcError as err:
        return _failed(f'no answer: {err.code().name}: {err.details()}')
    return 0


def _failed(reason: str) -> int:
    sys.stderr.write(f'os-acc-dra-probe: {reason}\n')
    return 1


def _ask(registration: str) -> None:
    """Ask for the registration, and unprepare no claim at all.

    :param registration: the path of the socket
    :raises RpcError: if one of the services does not answer in time
    """
    info = _call(
        registration,
        'pluginregistration.Registration/GetInfo',
        messages.REGISTRATION['InfoRequest'](),
        messages.REGISTRATION['PluginInfo'],
    )
    _call(
        info.endpoint,
        'k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources',
        messages.DRA['NodeUnprepareResourcesRequest'](),
        messages.DRA['NodeUnprepareResourcesResponse'],
    )


def _call(path: str, method: str, request: Any, response: Any) -> Any:
    with grpc.insecure_channel(f'unix:{path}') as channel:
        call = channel.unary_unary(
            f'/{method}', type(request).SerializeToString, response.FromString
        )
        return call(request, timeout=_TIMEOUT)


if __name__ == '__main__':
    sys.exit(main())

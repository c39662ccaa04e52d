# SPDX-License-Identifier: Apache-2.0

"""Tells the kubelet which devices are healthy, in a stream that it opens.

The kubelet shows it in the status of the Pods that have the devices. It does
not keep Pods away from a device: the taints do that.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import threading
from typing import Any

from os_acc_dra import messages
from os_acc_dra import offers

#: The kubelet's numbers of a device's health.
_UNKNOWN, _HEALTHY, _UNHEALTHY = 0, 1, 2
_NUMBERS = {'ok': _HEALTHY, 'unhealthy': _UNHEALTHY, 'reboot': _UNHEALTHY}
_LONGEST = 1024
#: Seconds after which the kubelet takes a device's health as unknown: this
#: many periods, and its own default at least.
_PERIODS, _LEAST = 3, 30.0


@dataclasses.dataclass(frozen=True)
class Observed:
    """The devices of this node, as a discovery has found them.

    :ivar offers: by their names
    :ivar at: seconds since the epoch
    """

    offers: Mapping[str, offers.Offer]
    at: float


class Health:
    """Answers NodeWatchResources.

    :param observed: returns what the last complete discovery found, or None
    :param node: the name of this node, which is that of its pool
    :param period: seconds between two messages
    """

    def __init__(
        self,
        observed: Callable[[], Observed | None],
        node: str,
        period: float,
    ) -> None:
        self._observed, self._node, self._period = observed, node, period
        self._ended = threading.Event()

    def watch(self, request: Any, context: Any) -> Iterator[Any]:
        """Send the health of all devices, again and again."""
        while context.is_active() and not self._ended.is_set():
            observed = self._observed()
            if observed is not None:
                yield self._message(observed)
            self._ended.wait(self._period)

    def stop(self) -> None:
        """End all streams."""
        self._ended.set()

    def _message(self, observed: Observed) -> Any:
        identifier = messages.HEALTH['DeviceIdentifier']
        return messages.HEALTH['NodeWatchResourcesResponse'](
            devices=[
                messages.HEALTH['DeviceHealth'](
                    device=identifier(pool_name=self._node, device_name=name),
                    health=_NUMBERS.get(offer.device.health, _UNKNOWN),
                    last_updated_time=int(observed.at),
                    health_check_timeout_seconds=int(
                        max(_PERIODS * self._period, _LEAST)
                    ),
                    message=(offer.device.health_reason or '')[:_LONGEST],
                )
                for name, offer in observed.offers.items()
            ]
        )

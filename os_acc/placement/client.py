# SPDX-License-Identifier: Apache-2.0
"""Placement's REST API, as far as os-acc calls it.

It is described in Placement's "API reference". A provider is a resource
provider. Its generation grows with each change of its inventories and traits:
a change names the generation that it is based on, and Placement refuses it if
the generation is another one by now.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
import contextlib
import dataclasses
from typing import TYPE_CHECKING
from typing import Any

from os_acc import exception
from os_acc.placement import inventory

if TYPE_CHECKING:
    from keystoneauth1 import adapter

# How often a request is repeated if Placement is not there or fails, and
# the seconds before the first repetition. keystoneauth doubles them each time.
_RETRIES = 2
_RETRY_DELAY = 0.2

# The microversion of all calls. From 1.23 on, an error has a code.
_MICROVERSION = '1.23'

# Of the answer 400 to a PUT of traits, if one of them does not exist
# (update_traits_for_resource_provider in placement/handlers/trait.py).
_NO_TRAIT = 'No such trait'


@dataclasses.dataclass(frozen=True)
class Traits:
    """The traits of a provider.

    :ivar names: the traits
    :ivar generation: that of the provider when they were read
    """

    names: frozenset[str]
    generation: int


class Client:
    """Calls Placement. All calls raise RemoteServiceError if that fails.

    :param adapter: see os_acc.cyborg.connections. Its user must have the role
        ``service`` or ``admin``
    """

    def __init__(self, adapter: adapter.Adapter) -> None:
        self._adapter = adapter

    def inventories(self, uuid: str) -> dict[str, inventory.Inventory] | None:
        """Read the inventories of a provider, by resource class.

        :returns: None if there is no such provider
        """
        found = self._get(f'/resource_providers/{uuid}/inventories')
        if found is None:
            return None
        with _understood(f'the inventories of {uuid}'):
            return {
                name: inventory.Inventory(
                    total=int(each['total']), reserved=int(each['reserved'])
                )
                for name, each in found['inventories'].items()
            }

    def traits(self, uuid: str) -> Traits | None:
        """Read the traits of a provider; None: there is no such provider."""
        found = self._get(f'/resource_providers/{uuid}/traits')
        if found is None:
            return None
        with _understood(f'the traits of {uuid}'):
            return Traits(
                names=frozenset(map(str, found['traits'])),
                generation=int(found['resource_provider_generation']),
            )

    def create_trait(self, name: str) -> None:
        """Create a custom trait, if Placement does not have it yet."""
        self._request('PUT', f'/traits/{name}', allowed=(201, 204))

    def set_traits(
        self, uuid: str, names: Iterable[str], generation: int
    ) -> bool:
        """Replace the traits of a provider.

        :param names: all its traits. Placement must have each of them
        :returns: False if somebody else has changed or deleted the provider
            since, or deleted one of the traits; then nothing is changed
        """
        path = f'/resource_providers/{uuid}/traits'
        answer = self._request(
            'PUT',
            path,
            allowed=(200, 400, 404, 409),
            json={
                'traits': sorted(names),
                'resource_provider_generation': generation,
            },
        )
        if answer.status_code == 400 and _NO_TRAIT not in answer.text:
            raise _refused('PUT', path, answer)
        return bool(answer.status_code == 200)

    def _get(self, path: str) -> dict[str, Any] | None:
        answer = self._request('GET', path, allowed=(200, 404))
        # Any web server may answer 404. Placement then lists the errors.
        with _understood(f'GET {path}'):
            found: dict[str, Any] = answer.json()
            if answer.status_code == 200:
                return found
            if found['errors']:
                return None
            raise ValueError('HTTP 404 without a reason')

    def _request(
        self, method: str, path: str, allowed: Collection[int], **more: Any
    ) -> Any:
        try:
            answer = self._adapter.request(
                path,
                method,
                microversion=_MICROVERSION,
                raise_exc=False,
                connect_retries=_RETRIES,
                connect_retry_delay=_RETRY_DELAY,
                status_code_retries=_RETRIES,
                status_code_retry_delay=_RETRY_DELAY,
                retriable_status_codes=[500, 502, 503, 504],
                **more,
            )
        except Exception as err:
            raise _failure(exception.describe(err)) from err
        if answer.status_code not in allowed:
            raise _refused(method, path, answer)
        return answer


@contextlib.contextmanager
def _understood(what: str) -> Iterator[None]:
    try:
        yield
    except (
        AttributeError,
        KeyError,
        RecursionError,
        TypeError,
        ValueError,
    ) as err:
        raise _failure(
            f'{what}: this is not an answer of Placement: '
            f'{exception.describe(err)}'
        ) from err


def _refused(
    method: str, path: str, answer: Any
) -> exception.RemoteServiceError:
    try:
        why = str(answer.json()['errors'][0]['detail'])
    except (LookupError, TypeError, ValueError):
        why = answer.text
    text = ' '.join(why.split())
    return _failure(f'{method} {path}: HTTP {answer.status_code}: {text:.500}')


def _failure(reason: str) -> exception.RemoteServiceError:
    return exception.RemoteServiceError(service='placement', reason=reason)

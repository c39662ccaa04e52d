# SPDX-License-Identifier: Apache-2.0

"""Which traits of a provider os-acc has set, so that a deployer's stay.

Placement does not say who has set a trait. So the traits that os-acc sets are
noted in a file of its state directory.
"""

from __future__ import annotations

from collections.abc import Collection
import json
import logging
import os

import os_acc
from os_acc import exception
from os_acc.placement import functions
from os_acc.state import atomic_file

LOG = logging.getLogger(__name__)

_FILE = 'placement-traits.json'


class SetTraits:
    """The notes: the traits that os-acc has set, by provider.

    Without the file, all traits count as a deployer's, except those that only
    os-acc sets: see functions.is_own().
    """

    def __init__(self) -> None:
        self._path = os.path.join(os_acc.CONF.os_acc.state_path, _FILE)
        self._old = self._read()
        self._new: dict[str, list[str]] = {}

    def merged(
        self, provider: str, there: Collection[str], wanted: Collection[str]
    ) -> set[str]:
        """Say which traits a provider must have.

        :param provider: its name
        :param there: the traits that it has
        :param wanted: those of its device
        :returns: the wanted ones, and those that a deployer has set
        """
        noted = set(self._old.get(provider, ()))
        own = {t for t in there if t in noted or functions.is_own(t)}
        others = set(there) - own
        # What is to be removed stays noted until it is seen to be gone,
        # because Placement may refuse the change.
        self._new[provider] = sorted(own | (set(wanted) - others))
        return others | set(wanted)

    def keep(self, provider: str) -> None:
        """Keep the notes of a provider that is not changed now."""
        if provider in self._old:
            self._new[provider] = self._old[provider]

    def save(self) -> None:
        """Write the notes of all providers that were named. Never raises."""
        if self._new == self._old:
            return
        text = json.dumps(self._new, indent=1, sort_keys=True) + '\n'
        try:
            atomic_file.write(self._path, text, 0o644, 0o755)
        except OSError as err:
            LOG.error('%s is not written: %s', self._path, err)

    def _read(self) -> dict[str, list[str]]:
        try:
            with open(self._path, encoding='utf-8') as file:
                found = json.load(file)
            return {str(k): [str(t) for t in v] for k, v in found.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError, TypeError) as err:
            LOG.error(
                '%s cannot be read, so all traits of the providers count as '
                "a deployer's: %s",
                self._path,
                exception.describe(err),
            )
            return {}

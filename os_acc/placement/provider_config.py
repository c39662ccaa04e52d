# SPDX-License-Identifier: Apache-2.0

"""The provider.yaml that nova-compute reads when it starts.

Nova reads all files ``*.yaml`` of ``[compute] provider_config_location``
(get_provider_configs in nova/compute/provider_config.py).
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterator
import dataclasses
import glob
import os
from typing import Any

import yaml

from os_acc import exception
from os_acc.placement import inventory
from os_acc.state import atomic_file
from os_acc.texts import yaml_documents

#: The name of the file that os-acc writes.
FILE = 'os-acc.yaml'
#: The default of Nova's option [compute] provider_config_location.
DIRECTORY = '/etc/nova/provider_config/'
#: The compute node of the nova-compute that reads the file.
THIS_NODE = '$COMPUTE_NODE'

_MAKER = 'os-acc'
_HEAD = """\
# os-acc provider-config has written this file. Do not edit it: run the command
# again. nova-compute reads it only when it starts.
"""


@dataclasses.dataclass(frozen=True)
class Published:
    """What the file of os-acc tells Nova.

    :ivar classes: the resource classes
    :ivar traits: the traits
    """

    classes: frozenset[str] = frozenset()
    traits: frozenset[str] = frozenset()


def text(offer: inventory.Offer) -> str:
    """Write an offer as a provider.yaml of schema version 1.0."""
    content: dict[str, Any] = {
        'meta': {'schema_version': '1.0', 'generated_by': _MAKER},
        'providers': [],
    }
    if offer.inventories:
        provider: dict[str, Any] = {
            'identification': {'uuid': THIS_NODE},
            'inventories': {
                'additional': [
                    {name: _fields(each)}
                    for name, each in sorted(offer.inventories.items())
                ]
            },
        }
        if offer.traits:
            provider['traits'] = {'additional': sorted(offer.traits)}
        content['providers'].append(provider)
    body: str = yaml.safe_dump(content, sort_keys=False)
    return _HEAD + body


def _fields(each: inventory.Inventory) -> dict[str, int | float]:
    return {
        'total': each.total,
        'reserved': each.reserved,
        'min_unit': 1,
        'max_unit': each.total,
        'step_size': 1,
        'allocation_ratio': 1.0,
    }


def published(directory: str) -> Published:
    """Read what the file of os-acc tells Nova.

    :param directory: Nova's option [compute] provider_config_location
    :returns: nothing, if os-acc has not written a file there
    :raises InvalidRequest: if the file cannot be read
    """
    return _published(_load(os.path.join(directory, FILE)))


def _published(content: Any) -> Published:
    if not _is_own(content):
        return Published()
    classes: set[str] = set()
    traits: set[str] = set()
    for provider in _providers(content):
        for each in _additional(provider, 'inventories'):
            if isinstance(each, dict):
                classes.update(each)
        traits.update(map(str, _additional(provider, 'traits')))
    return Published(frozenset(classes), frozenset(traits))


def others(directory: str) -> Iterator[str]:
    """Say which providers the other files of the directory define by a name.

    :raises InvalidRequest: if another file also defines $COMPUTE_NODE, or
        cannot be read. nova-compute would not start with such a file
    """
    for path in sorted(glob.glob(os.path.join(directory, '*.yaml'))):
        if os.path.basename(path) == FILE:
            continue
        for provider in _providers(_load(path)):
            by = provider.get('identification')
            names = list(by.values()) if isinstance(by, dict) else []
            if THIS_NODE in names:
                raise exception.InvalidRequest(
                    subject='provider-config',
                    field=path,
                    value=THIS_NODE,
                    expected=f'no other file for {THIS_NODE}, because '
                    'nova-compute does not start with two. Print the '
                    'inventories without --install, and add them to that file',
                )
            for name in names:
                yield (
                    f'{path} defines the provider {name}. If that is this '
                    f'host, nova-compute ignores {FILE}: add the inventories '
                    'to that file instead'
                )


def install(
    directory: str,
    offer: inventory.Offer,
    used: Collection[str],
    force: bool = False,
) -> bool:
    """Write the file, in one step.

    :param directory: it is made if it does not exist
    :param used: the resource classes that instances have now
    :param force: also replace a file that os-acc has not written, and remove
        resource classes that instances have
    :returns: False if the file has this content already
    :raises InvalidRequest: if it must not be written; nothing is changed
    :raises PrivilegeError: if it cannot be written
    """
    path = os.path.join(directory, FILE)
    new = text(offer)
    if not force:
        content = _load(path)
        _check_own(path, content)
        _check_used(path, _published(content), offer, used)
    try:
        if os.path.exists(path):
            with open(path, encoding='utf-8') as file:
                if file.read() == new:
                    return False
        atomic_file.write(path, new, 0o644, 0o755)
    except (OSError, UnicodeDecodeError) as err:
        raise exception.PrivilegeError(
            reason=f'{path} cannot be written: {err}. Run the command as root'
        ) from err
    return True


def _check_own(path: str, content: Any) -> None:
    if content is not None and not _is_own(content):
        raise exception.InvalidRequest(
            subject='provider-config',
            field=path,
            value="somebody else's file",
            expected=f'a file with meta.generated_by {_MAKER!r}, or none. '
            'Rename it, or replace it with --force',
        )


def _check_used(
    path: str,
    old: Published,
    offer: inventory.Offer,
    used: Collection[str],
) -> None:
    """Check that no class vanishes while an instance has some of it.

    Placement refuses to delete such an inventory, and nova-compute then does
    not start (_update_to_placement in nova/compute/resource_tracker.py).
    """
    gone = sorted((old.classes - offer.inventories.keys()) & set(used))
    if gone:
        raise exception.InvalidRequest(
            subject='provider-config',
            field=path,
            value=gone,
            expected='no resource class to vanish that an instance of this '
            'host has (os-acc van list), because nova-compute would not start '
            'then. Offer the devices again, or delete the instances first, or '
            'use --force',
        )


def _load(path: str) -> Any:
    """Read a YAML file; None if it does not exist.

    :raises InvalidRequest: if it cannot be read, or is no YAML
    """
    try:
        with open(path, 'rb') as file:
            content = yaml_documents.yaml_of(file.read())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as err:
        raise exception.InvalidRequest(
            subject='provider-config',
            field=path,
            value=' '.join(str(err).split()),
            expected='a readable YAML file',
        ) from err
    # An empty file is there all the same.
    return {} if content is None else content


def _is_own(content: Any) -> bool:
    meta = content.get('meta') if isinstance(content, dict) else None
    return isinstance(meta, dict) and meta.get('generated_by') == _MAKER


def _providers(content: Any) -> list[dict[str, Any]]:
    found = content.get('providers') if isinstance(content, dict) else None
    if not isinstance(found, list):
        return []
    return [each for each in found if isinstance(each, dict)]


def _additional(provider: dict[str, Any], key: str) -> list[Any]:
    found = provider.get(key)
    added = found.get('additional') if isinstance(found, dict) else None
    return added if isinstance(added, list) else []

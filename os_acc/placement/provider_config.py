# SPDX-License-Identifier: Apache-2.0

"""The files provider.yaml that nova-compute reads when it starts.

Nova reads all files ``*.yaml`` of ``[compute] provider_config_location``
(get_provider_configs in nova/compute/provider_config.py). Earlier versions of
os-acc wrote one of them.
"""

from __future__ import annotations

from collections.abc import Iterator
import glob
import os
from typing import Any

from os_acc import exception
from os_acc.texts import yaml_documents

_MAKER = 'os-acc'


def classes(directory: str) -> dict[str, str]:
    """List the resource classes that the files add to providers.

    :param directory: Nova's option [compute] provider_config_location
    :returns: the path of a file that has it, by resource class
    """
    return {
        str(name): path
        for path, content in _files(directory)
        for provider in _list(content, 'providers')
        if isinstance(provider, dict)
        for each in _list(provider.get('inventories'), 'additional')
        if isinstance(each, dict)
        for name in each
    }


def own(directory: str) -> str | None:
    """Find the file that an earlier version of os-acc has written.

    :returns: its path; None: there is none
    """
    for path, content in _files(directory):
        meta = content.get('meta') if isinstance(content, dict) else None
        if isinstance(meta, dict) and meta.get('generated_by') == _MAKER:
            return path
    return None


def _files(directory: str) -> Iterator[tuple[str, Any]]:
    for path in sorted(glob.glob(os.path.join(directory, '*.yaml'))):
        try:
            with open(path, 'rb') as file:
                yield path, yaml_documents.yaml_of(file.read())
        except (OSError, ValueError) as err:
            raise exception.InvalidRequest(
                subject='provider configuration',
                field=path,
                value=' '.join(str(err).split()),
                expected='a readable YAML file',
            ) from err


def _list(content: Any, key: str) -> list[Any]:
    found = content.get(key) if isinstance(content, dict) else None
    return found if isinstance(found, list) else []

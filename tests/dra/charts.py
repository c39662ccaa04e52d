# SPDX-License-Identifier: Apache-2.0

"""The Helm chart of os-acc-dra, rendered by Helm's own library.

Run as a program, it writes the plain manifests again.
"""

from __future__ import annotations

import pathlib
from typing import Any

import helm_python
import yaml

DEPLOY = pathlib.Path(__file__).parents[2] / 'contrib/os-acc-dra/deploy'
CHART = DEPLOY / 'chart'
PLAIN = DEPLOY / 'os-acc-dra.yaml'
NAMESPACE = 'os-acc'
_ORDER = (
    'namespace',
    'access',
    'policy',
    'classes',
    'configuration',
    'daemonset',
)
_HEAD = """\
# SPDX-License-Identifier: Apache-2.0

# Generated from the chart in this directory by tests/dra/charts.py. Before you
# apply it, set the image in the DaemonSet and the devices in the ConfigMap.
"""


def render(**values: Any) -> str:
    """Render the chart.

    :param values: what differs from values.yaml
    """
    with helm_python.Chart.load(str(CHART)) as chart:
        texts = chart.render(values, name='os-acc-dra', namespace=NAMESPACE)
    by_name = {pathlib.PurePath(path).stem: texts[path] for path in texts}
    assert set(by_name) == set(_ORDER)
    parts = (by_name[name].strip().removeprefix('---') for name in _ORDER)
    return '---\n'.join(f'{part.strip()}\n' for part in parts if part.strip())


def plain() -> str:
    """The plain manifests."""
    return _HEAD + render(createNamespace=True)


def objects(text: str) -> list[dict[str, Any]]:
    """The objects of manifests."""
    return [each for each in yaml.safe_load_all(text) if each]


def of_kind(found: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """The one object of a kind."""
    (made,) = (each for each in found if each['kind'] == kind)
    return made


if __name__ == '__main__':
    PLAIN.write_text(plain())

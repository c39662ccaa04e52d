# SPDX-License-Identifier: Apache-2.0

"""Ansible module: calls os-acc apply, with check mode and diff."""

from __future__ import annotations

import json
import os
import tempfile

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: os_acc_apply
short_description: Give the devices of a host the state in a document
description:
  - Calls C(os-acc apply). Devices that already have this state or are in use
    are not touched.
options:
  document:
    description: The document, as a dictionary. Either this or I(path).
    type: dict
  path:
    description: A file or a directory on the host with the document.
    type: path
  config_file:
    description: The configuration file of the service that uses os-acc.
    type: path
  wait:
    description: How many seconds to wait for devices that are in use.
    type: float
  allow_in_the_way:
    description: Whether the task succeeds if a device is in use. A service
      does that step once the device is no longer in use.
    type: bool
    default: false
  command:
    description: The command os-acc.
    type: str
    default: os-acc
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
"""

EXAMPLES = r"""
- os_acc_apply:
    path: /etc/os-acc/host.yaml
    config_file: /etc/nova/nova.conf
    wait: 300
"""

RETURN = r"""
steps:
  description: The rows of os-acc apply -f json.
  returned: always
  type: list
in_the_way:
  description: The steps that were not done because a device is in use.
  returned: always
  type: list
"""

_OPTIONS = {
    'document': {'type': 'dict'},
    'path': {'type': 'path'},
    'config_file': {'type': 'path'},
    'wait': {'type': 'float'},
    'allow_in_the_way': {'type': 'bool', 'default': False},
    'command': {'type': 'str', 'default': 'os-acc'},
}


def main() -> None:
    module = AnsibleModule(
        _OPTIONS,
        mutually_exclusive=[('document', 'path')],
        required_one_of=[('document', 'path')],
        supports_check_mode=True,
    )
    path = module.params['path'] or _written(module)
    words = [module.params['command']]
    if module.params['config_file']:
        words += ['--config-file', module.params['config_file']]
    words += ['apply', path, '-f', 'json']
    if module.check_mode:
        words.append('--check')
    elif module.params['wait'] is not None:
        words += ['--wait', str(module.params['wait'])]
    code, out, err = module.run_command(words)
    try:
        steps = json.loads(out)
    except ValueError:
        module.fail_json(msg=err or out, rc=code, steps=[], in_the_way=[])
    _end(module, steps, err)


def _written(module: AnsibleModule) -> str:
    """Write the document to a file, which Ansible removes."""
    fd, path = tempfile.mkstemp('.json', dir=module.tmpdir)
    with os.fdopen(fd, 'w', encoding='utf-8') as file:
        json.dump(module.params['document'], file)
    return path


def _end(module: AnsibleModule, steps: list[dict], err: str) -> None:
    names = {
        result: [
            f'{each["part"]} {each["name"]}: {each["reason"]}'
            for each in steps
            if each['result'] == result
        ]
        for result in ('failed', 'in the way', 'changed', 'would change')
    }
    found = {
        'steps': steps,
        'in_the_way': names['in the way'],
        'changed': bool(names['changed'] or names['would change']),
        'diff': [
            {
                'before_header': f'{each["part"]} {each["name"]}',
                'after_header': f'{each["part"]} {each["name"]}',
                'before': each['before'] + '\n',
                'after': each['after'] + '\n',
            }
            for each in steps
            if each['result'] in ('changed', 'would change')
        ],
    }
    wrong = names['failed']
    if not module.params['allow_in_the_way']:
        wrong = wrong + names['in the way']
    if wrong:
        module.fail_json(msg='; '.join(wrong), stderr=err, **found)
    module.exit_json(**found)


if __name__ == '__main__':
    main()

# SPDX-License-Identifier: Apache-2.0

"""os-acc migration target: the target's half of os-acc migrate."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from collections.abc import Mapping
import json
import sys
from typing import Any

import os_acc
from os_acc import exception
from os_acc import host
from os_acc import migration
from os_acc import objects
from os_acc.cli import base
from os_acc.cli import exit_codes
from os_acc.moving import answers
from os_acc.moving import plans
from os_acc.moving import remote
from os_acc.moving import storage
from os_acc.operations import preview
from os_acc.texts import documents

_SUBJECT = 'migration target'


class MigrationTarget(base.Command):
    """Answer the calls of os-acc migrate, which runs this on the target.

    Each line of standard input is a call in JSON, and each line of standard
    output its answer. It ends with its standard input.
    """

    configured = True

    creates = True

    announces = False

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        while line := sys.stdin.buffer.readline(remote.LONGEST):
            answer = answer_to(line, self.initialize)
            self.app.stdout.write(json.dumps(answer) + '\n')
            self.app.stdout.flush()


def answer_to(line: bytes, initialize: Callable[[], object]) -> dict[str, Any]:
    """Make one call.

    :param initialize: initializes os_acc, unless that is done; each call but
        ``look`` needs it
    :returns: the answer; its ``error`` says what has failed
    """
    try:
        return _done(line, initialize)
    except Exception as err:
        return {
            'error': {
                'class': type(err).__name__,
                'text': exception.describe(err),
                'code': exit_codes.of(err),
            }
        }


def _done(line: bytes, initialize: Callable[[], object]) -> dict[str, Any]:
    asked = _read(line)
    name = asked.get('call')
    info = _instance(asked.get('instance'))
    if name == 'look':
        return _look(info, asked)
    uuid: Any = asked.get('migration_uuid')
    if name == 'prepare':
        initialize()
        vans = migration.prepare(info, asked.get('plan', {}), uuid)
    elif name == 'switch':
        initialize()
        vans = migration.switch(info, uuid, live=asked.get('live') is True)
    elif name == 'abort':
        initialize()
        return {'aborted': migration.abort(info, uuid)}
    else:
        raise _refused('call', name, 'look, prepare, switch or abort')
    return {'vans': vans.obj_to_primitive()}


def _read(line: bytes) -> Mapping[str, Any]:
    try:
        asked = json.loads(documents.text_of(line))
    except ValueError as err:
        raise _refused('line', line[:80], f'JSON ({err})') from err
    if not isinstance(asked, Mapping):
        raise _refused('line', asked, 'a JSON object')
    version = asked.get('protocol')
    if version != remote.PROTOCOL:
        raise _refused(
            'protocol',
            version,
            f'{remote.PROTOCOL}: install the same version of os-acc on both '
            'hosts',
        )
    return asked


def _instance(found: Any) -> objects.InstanceInfo:
    try:
        made = objects.InstanceInfo.obj_from_primitive(found)
    except Exception as err:
        raise _refused(
            'instance', found, 'the primitive of an InstanceInfo'
        ) from err
    if not isinstance(made, objects.InstanceInfo):
        raise _refused('instance', found, 'the primitive of an InstanceInfo')
    return made


def _look(
    info: objects.InstanceInfo, asked: Mapping[str, Any]
) -> dict[str, Any]:
    """Say what prepare() would meet. It changes nothing."""
    files = asked.get('files', [])
    if not (
        isinstance(files, list)
        and len(files) <= storage.MAX_FILES
        and all(isinstance(each, str) for each in files)
    ):
        raise _refused('files', files, f'at most {storage.MAX_FILES} paths')
    wanted = plans.read(asked.get('plan', {}), info.uuid)
    obstacles: list[str] = []
    plugins: set[str] = set()
    opened = host.Host.open(os_acc.CONF, read_only=True, owner=base.OWNER)
    try:
        planned = preview.plug(opened, info, [w.request for w in wanted])
        plugins = {each.plugin for each in planned}
        obstacles += [
            f'VAN {each.van}: {each.obstacle}'
            for each in planned
            if each.obstacle is not None
        ]
        if opened.journal.entries(info.uuid):
            obstacles.append(
                'it has VANs of this instance already: see os-acc van list'
            )
    except exception.ExceptionBase as err:
        obstacles.append(exception.describe(err))
    finally:
        opened.close()
    return answers.of_look(obstacles, plugins, storage.look(files))


def _refused(
    field: str, value: Any, expected: str
) -> exception.InvalidRequest:
    return exception.InvalidRequest(
        subject=_SUBJECT, field=field, value=value, expected=expected
    )

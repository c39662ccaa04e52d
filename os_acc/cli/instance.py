# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""os-acc plug, unplug: an instance's accelerators, by hand."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from collections.abc import Sequence
import json
import sys
from typing import Any

from cliff import lister

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc.cli import base
from os_acc.cli import progress


class Plug(base.Command, lister.Lister):
    """Plug the accelerators of an instance: all of them, or none."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument('instance', metavar='INSTANCE', help='its UUID')
        parser.add_argument(
            '--arqs',
            metavar='FILE',
            required=True,
            help="the instance's bound ARQs as JSON, as Cyborg's API gives "
            'them; - reads standard input',
        )
        parser.add_argument(
            '--live',
            action='store_true',
            help='attach them to the running guest too',
        )
        parser.add_argument(
            '--driver', metavar='NAME', help='use this driver for all of them'
        )
        parser.add_argument('--name', help="the instance's name")
        parser.add_argument('--project-id', help="the instance's project")
        parser.add_argument(
            '--hypervisor-id', help="the hypervisor's id of the instance"
        )
        return parser

    def take_action(
        self, parsed_args: argparse.Namespace
    ) -> tuple[Sequence[str], Iterable[Any]]:
        arqs = _read(parsed_args.arqs)
        requests = objects.AcceleratorRequest.from_arqs(arqs)
        if parsed_args.driver:
            for request in requests:
                request.driver = parsed_args.driver
        project_id = parsed_args.project_id
        if project_id is None:
            project_id = str(arqs[0].get('project_id', '')) if arqs else ''
        info = objects.InstanceInfo(
            uuid=parsed_args.instance,
            name=parsed_args.name or parsed_args.instance,
            project_id=project_id,
            hypervisor_id=parsed_args.hypervisor_id,
        )
        base.initialize()
        vans = os_acc.plug(
            info,
            requests,
            live=parsed_args.live,
            progress=progress.Bar(sys.stderr),
        )
        columns = (*base.VAN_COLUMNS, 'Guest config')
        return columns, [
            (*base.van_row(van), base.Nullable(van.guest_config))
            for van in vans
        ]


class Unplug(base.Command):
    """Unplug the accelerators of an instance: all, or those named."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument('instance', metavar='INSTANCE', help='its UUID')
        parser.add_argument(
            '--van',
            metavar='UUID',
            action='append',
            help='only this VAN; may be repeated',
        )
        parser.add_argument(
            '--live',
            action='store_true',
            help='detach them from the running guest, and wait until it has '
            'let go',
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        info = objects.InstanceInfo(
            uuid=parsed_args.instance, name=parsed_args.instance, project_id=''
        )
        requests = None
        if parsed_args.van is not None:
            requests = [
                objects.AcceleratorRequest(uuid=van) for van in parsed_args.van
            ]
        base.initialize()
        count = os_acc.unplug(
            info,
            requests,
            live=parsed_args.live,
            progress=progress.Bar(sys.stderr),
        )
        self.app.stdout.write(f'released {count}\n')


def _read(path: str) -> list[dict[str, Any]]:
    """The ARQs of a file: Cyborg's whole answer, or its list."""
    try:
        if path == '-':
            content = json.load(sys.stdin)
        else:
            with open(path, encoding='utf-8') as file:
                content = json.load(file)
    except (OSError, ValueError, RecursionError) as err:
        raise exception.InvalidRequest(
            subject='plug',
            field='--arqs',
            value=path,
            expected=f'a file with JSON ({err})',
        ) from err
    if isinstance(content, dict) and 'arqs' in content:
        content = content['arqs']
    if not isinstance(content, list) or not content:
        raise exception.InvalidRequest(
            subject='plug',
            field='--arqs',
            value=path,
            expected="a JSON list of ARQs, or Cyborg's answer with 'arqs'",
        )
    return content

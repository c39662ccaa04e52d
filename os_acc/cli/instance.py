# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""os-acc plug, unplug: the accelerators of one instance."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from collections.abc import Sequence
import sys
from typing import Any

from cliff import lister

import os_acc
from os_acc import objects
from os_acc.cli import arqs
from os_acc.cli import base
from os_acc.cli import progress


class Plug(base.Command, lister.Lister):
    """Plug the accelerators of an instance: all of them, or none."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            'instance', metavar='INSTANCE', help='UUID of the instance'
        )
        arqs.add_options(parser)
        parser.add_argument(
            '--live',
            action='store_true',
            help='also attach the accelerators to the running guest',
        )
        parser.add_argument(
            '--driver', metavar='NAME', help='use this driver for all ARQs'
        )
        parser.add_argument('--name', help='name of the instance')
        parser.add_argument('--project-id', help='project of the instance')
        parser.add_argument(
            '--hypervisor-id', help='id of the instance in the hypervisor'
        )
        return parser

    def take_action(
        self, parsed_args: argparse.Namespace
    ) -> tuple[Sequence[str], Iterable[Any]]:
        bound = arqs.read(parsed_args)
        if parsed_args.driver:
            for request in bound.requests:
                request.driver = parsed_args.driver
        project_id = parsed_args.project_id
        if project_id is None:
            project_id = bound.project_id
        info = objects.InstanceInfo(
            uuid=parsed_args.instance,
            name=parsed_args.name or parsed_args.instance,
            project_id=project_id,
            hypervisor_id=parsed_args.hypervisor_id,
        )
        os_acc.initialize(owner=base.OWNER)
        vans = os_acc.plug(
            info,
            bound.requests,
            live=parsed_args.live,
            progress=progress.Bar(sys.stderr),
        )
        columns = (*base.VAN_COLUMNS, 'Guest config')
        return columns, [
            (*base.van_row(van), base.Nullable(van.guest_config))
            for van in vans
        ]


class Unplug(base.Command):
    """Unplug all accelerators of an instance, or those of --van."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            'instance', metavar='INSTANCE', help='UUID of the instance'
        )
        parser.add_argument(
            '--van',
            metavar='UUID',
            action='append',
            help='unplug only this VAN; may be repeated',
        )
        parser.add_argument(
            '--live',
            action='store_true',
            help='also detach the accelerators from the running guest, and '
            'wait until the guest has released them',
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        info = objects.InstanceInfo(
            uuid=parsed_args.instance, name=parsed_args.instance, project_id=''
        )
        os_acc.initialize(owner=base.OWNER)
        count = os_acc.unplug(
            info,
            parsed_args.van,
            live=parsed_args.live,
            progress=progress.Bar(sys.stderr),
        )
        self.app.stdout.write(f'released {count}\n')

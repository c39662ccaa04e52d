# SPDX-License-Identifier: Apache-2.0

"""os-acc plug, unplug: the accelerators of one instance."""

from __future__ import annotations

import argparse
import functools
from typing import Any
from typing import NamedTuple

import os_acc
from os_acc import host
from os_acc import journal
from os_acc import objects
from os_acc.cli import answers
from os_acc.cli import arqs
from os_acc.cli import base
from os_acc.cli import dry_run
from os_acc.cli import exit_codes
from os_acc.cli import interruption
from os_acc.cli import listing
from os_acc.cli import names
from os_acc.cli import selectors
from os_acc.cli import waiting
from os_acc.cyborg import requests
from os_acc.operations import planned as planned_module
from os_acc.operations import preview
from os_acc.texts import forms

_INSTANCE = (
    'UUID of the instance, or any name, from which os-acc derives a fixed '
    'UUID; host:NAME is a service of this host. For an instance that has '
    'accelerators, the first 8 or more characters of its UUID also work'
)


class Plug(answers.Command, listing.Listing):
    """Plug the accelerators of an instance, all or nothing."""

    configured = True

    creates = True

    columns = (
        *(
            # The operator has named the instance.
            column._replace(long=column.long or column.key == 'instance_uuid')
            for column in base.VAN_COLUMNS
        ),
        listing.Column('guest_config', long=True),
    )

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            'instance',
            metavar='INSTANCE',
            help=f'{_INSTANCE}. ARQs require the UUID',
        )
        arqs.add_options(parser)
        parser.add_argument(
            '--live',
            action='store_true',
            help='also attach the accelerators to the running guest',
        )
        parser.add_argument(
            '--driver', metavar='NAME', help='use this driver for all requests'
        )
        parser.add_argument(
            '--plugin',
            metavar='NAME',
            help='the plugin for the accelerators that are not plugged yet, '
            'such as cdi (default: the option plugin of the group [os_acc])',
        )
        dry_run.add_option(parser)
        parser.add_argument('--name', help='name of the instance')
        parser.add_argument('--project-id', help='project of the instance')
        parser.add_argument(
            '--hypervisor-id', help='ID of the instance in the hypervisor'
        )
        return parser

    def run(self, parsed_args: argparse.Namespace) -> int:
        if parsed_args.dry_run:
            # mypy takes it for a variable of the class.
            self.columns = dry_run.COLUMNS  # type: ignore[misc]
        return super().run(parsed_args)

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Table:
        if parsed_args.dry_run:
            return dry_run.table(self._preview(parsed_args)[1])
        info, vans = self._plug(parsed_args)
        called = info.host_service or info.uuid
        return self.keys(), [
            (*base.van_row(van, called), van.guest_config) for van in vans
        ]

    def answer(self, parsed_args: argparse.Namespace) -> dict[str, Any]:
        if parsed_args.dry_run:
            return dry_run.answer(*self._preview(parsed_args))
        info, vans = self._plug(parsed_args)
        return {
            'instance': answers.instance(info),
            'vans': [answers.van(van) for van in vans],
        }

    def _plug(
        self, parsed_args: argparse.Namespace
    ) -> tuple[objects.InstanceInfo, objects.VANList]:
        info, bound = _read(parsed_args)
        selected = parsed_args.resource_class is not None

        def plug() -> objects.VANList:
            self.initialize()
            if selected:
                selectors.check_count(
                    info.uuid, len(bound.requests), os_acc.get_vans(info)
                )
            return os_acc.plug(
                info,
                bound.requests,
                live=parsed_args.live,
                progress=watched,
                plugin=parsed_args.plugin,
            )

        with interruption.Plugging(self.say, self.show_progress) as watched:
            return info, waiting.retry(
                plug,
                # With --from-cyborg it was the time for the bind.
                None if parsed_args.from_cyborg else parsed_args.wait,
                self.say,
                functools.partial(waiting.release_ended, self.say),
                bound.requests,
            )

    def _preview(
        self, parsed_args: argparse.Namespace
    ) -> tuple[objects.InstanceInfo, list[planned_module.Planned]]:
        info, bound = _read(parsed_args)

        def plan(opened: host.Host) -> list[planned_module.Planned]:
            if parsed_args.resource_class is not None:
                selectors.check_count(
                    info.uuid,
                    len(bound.requests),
                    opened.journal.vans(info.uuid),
                )
            return preview.plug(
                opened,
                info,
                bound.requests,
                parsed_args.live,
                parsed_args.plugin,
            )

        planned = dry_run.look(plan, self.say)
        self.failed = dry_run.blocked(planned)
        return info, planned


def _read(
    parsed_args: argparse.Namespace,
) -> tuple[objects.InstanceInfo, requests.Bound]:
    with base.reading() as read:
        names.refuse_beginning(read, parsed_args.instance)
    bound = arqs.read(parsed_args)
    if parsed_args.driver:
        for request in bound.requests:
            request.driver = parsed_args.driver
    project_id = parsed_args.project_id
    if project_id is None:
        project_id = bound.project_id
    info = base.instance_info(
        parsed_args.instance,
        name=parsed_args.name or parsed_args.instance,
        project_id=project_id,
        hypervisor_id=parsed_args.hypervisor_id,
    )
    return info, bound


class Unplug(answers.Command):
    """Unplug all accelerators of an instance, or those of --van."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument('instance', metavar='INSTANCE', help=_INSTANCE)
        parser.add_argument(
            '--van',
            metavar='UUID',
            action='append',
            help=f'unplug only this VAN: {names.VAN_HELP}; may be repeated',
        )
        parser.add_argument(
            '--live',
            action='store_true',
            help='also detach the accelerators from the running guest, and '
            'wait until the guest has released them',
        )
        arqs.add_wait(
            parser,
            'wait while another process works on the instance or writes to '
            'the journal',
        )
        dry_run.add_option(parser)
        parser.add_argument(
            '--must-exist',
            action='store_true',
            help='if the journal has no accelerator of the instance, or '
            'lacks one of --van, change nothing, and exit with code '
            f'{exit_codes.NOT_FOUND}',
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        if parsed_args.dry_run:
            planned = self._preview(parsed_args)[1]
            for line in dry_run.lines(planned) or ['would release nothing']:
                self.out(line)
            return
        done = self._unplug(parsed_args)
        text = f'released {done.total}'
        if done.before:
            text += f' ({done.before} by the recovery before this command)'
        if not done.total:
            which = ' of these' if parsed_args.van else ''
            text += f': instance {parsed_args.instance} has none{which}'
        self.app.stdout.write(text + '\n')

    def answer(self, parsed_args: argparse.Namespace) -> dict[str, Any]:
        if parsed_args.dry_run:
            return dry_run.answer(*self._preview(parsed_args))
        done = self._unplug(parsed_args)
        return {
            'instance': answers.instance(done.info),
            'released': done.total,
            'released_by_recovery': done.before,
        }

    def _unplug(self, parsed_args: argparse.Namespace) -> _Released:
        with base.reading() as read:
            info, wanted = _to_unplug(read, parsed_args)
            if read.exists() and (
                text := names.never_known(
                    read, parsed_args.instance, info.uuid
                )
            ):
                self.say(text)
            if base.is_missing(read):
                base.tell_if_empty(read)
                return _Released(info, 0, 0)
        # The recovery may release what this command was to release.
        before: list[objects.VAN] = []

        def unplug() -> int:
            report = self.initialize()
            before.extend(
                van
                for van in (report.released if report is not None else [])
                if van.instance_uuid == info.uuid
                and (wanted is None or van.uuid in wanted)
            )
            return os_acc.unplug(
                info, wanted, live=parsed_args.live, progress=watched
            )

        with interruption.Unplugging(self.say, self.show_progress) as watched:
            count = waiting.retry(unplug, parsed_args.wait, self.say)
        return _Released(info, count + len(before), len(before))

    def _preview(
        self, parsed_args: argparse.Namespace
    ) -> tuple[objects.InstanceInfo, list[planned_module.Planned]]:
        with base.reading() as read:
            info, wanted = _to_unplug(read, parsed_args)
        planned = dry_run.look(
            lambda opened: preview.unplug(
                opened, info, wanted, parsed_args.live
            ),
            self.say,
        )
        self.failed = dry_run.blocked(planned)
        return info, planned


class _Released(NamedTuple):
    """What unplug did.

    :ivar total: how many VANs were released
    :ivar before: how many of them the recovery before it has released
    """

    info: objects.InstanceInfo
    total: int
    before: int


def _wanted(
    read: journal.Journal, instance_uuid: str, called: list[str] | None
) -> list[str] | None:
    """Return the UUIDs of the VANs to unplug; None: all of the instance.

    A UUID that is not in the journal is not an error: unplug may be repeated.
    """
    if called is None:
        return None
    known = names.vans(read, instance_uuid)
    return [
        forms.uuid(each)
        or names.van(
            known,
            each,
            'unplug: --van',
            f'a VAN of instance {instance_uuid} (see os-acc van list)',
        )
        for each in called
    ]


def _to_unplug(
    read: journal.Journal, parsed_args: argparse.Namespace
) -> tuple[objects.InstanceInfo, list[str] | None]:
    """Return the instance, and the UUIDs of the VANs; None: all of them."""
    parsed_args.instance = names.instance(read, parsed_args.instance, 'unplug')
    info = base.instance_info(parsed_args.instance, project_id='')
    wanted = _wanted(read, info.uuid, parsed_args.van)
    if parsed_args.must_exist:
        names.check_has(
            read, parsed_args.instance, info.uuid, wanted, 'unplug'
        )
    return info, wanted

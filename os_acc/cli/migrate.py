# SPDX-License-Identifier: Apache-2.0

"""os-acc migrate: moves an instance with its accelerators to another host."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
import contextlib
import dataclasses
import shlex
from typing import Any
import uuid

import os_acc
from os_acc import exception
from os_acc import guest_move
from os_acc import host
from os_acc import objects
from os_acc.cli import answers
from os_acc.cli import base
from os_acc.cli import interruption
from os_acc.cli import names
from os_acc.moving import carrying
from os_acc.moving import destination
from os_acc.moving import plans
from os_acc.moving import remote
from os_acc.objects import van as states
from os_acc.texts import ways

_TIMEOUT = 600.0
_DEVICE = 'os-acc cannot tell whether the target has the same device'


@dataclasses.dataclass(frozen=True)
class _Planned:
    """A move that has been looked at, on both hosts."""

    carrying: carrying.Carrying
    plan: objects.MigrationPlan
    target: str
    obstacles: list[str]

    @property
    def downtime(self) -> str:
        if not self.carrying.guest.runs:
            return carrying.OFF
        return carrying.DOWNTIME[self.carrying.way]

    @property
    def left_behind(self) -> list[str]:
        return [
            f'VAN {each.uuid}: {each.left_behind}'
            for each in self.plan.accelerators
            if each.left_behind is not None
        ]


class Migrate(answers.Command):
    """Move an instance with its accelerators to another host.

    The guest is moved too, for guests of libvirt. Both hosts must share its
    disks: os-acc moves none. If something fails before the target has the
    accelerators, all is undone.
    """

    configured = True

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            'instance',
            metavar='INSTANCE',
            help='UUID of the instance, its first 8 or more characters, or '
            'the name by which plug got it',
        )
        parser.add_argument(
            '--to',
            metavar='TARGET',
            required=True,
            help='the other host: ssh://[user@]host[:port], or the URI of its '
            'libvirt, such as qemu+tls://host/system. os-acc is run there by '
            'ssh; for a URI without a host, it is run on this machine',
        )
        parser.add_argument(
            '--way',
            choices=ways.WAYS,
            help='move in a lesser way than the best one, which migration '
            'check shows',
        )
        parser.add_argument(
            '--timeout',
            metavar='SECONDS',
            type=_seconds,
            default=_TIMEOUT,
            help='how long the guest may take to shut down, or to be copied '
            f'while it runs (default: {_TIMEOUT:g})',
        )
        parser.add_argument(
            '--remote-command',
            metavar='COMMAND',
            default='os-acc',
            help='the os-acc command on the target with its general options, '
            "such as 'sudo -u nova os-acc --config-file /etc/nova/nova.conf' "
            '(default: os-acc). No shell reads it',
        )
        parser.add_argument(
            '--dry-run',
            action='store_true',
            help='only show how the instance would move, and what is in the '
            'way. Nothing is changed on either host. The exit code is 1 if '
            'there is an obstacle',
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        if parsed_args.dry_run:
            for line in _lines(self._looked_at(parsed_args)):
                self.out(line)
            return
        moved = self._moved(parsed_args)
        for each in moved['left']:
            self.say(f'The instance has moved, but: {each}')
        self.out(f'moved to {moved["target"]}')

    def answer(self, parsed_args: argparse.Namespace) -> dict[str, Any]:
        if parsed_args.dry_run:
            return _answer(self._looked_at(parsed_args))
        return self._moved(parsed_args)

    def _looked_at(self, parsed_args: argparse.Namespace) -> _Planned:
        with contextlib.closing(base.look()) as opened:
            info = _instance(opened, parsed_args.instance)
            with self._planned(opened, info, parsed_args) as found:
                self.failed = bool(found.obstacles)
                return found

    def _moved(self, parsed_args: argparse.Namespace) -> dict[str, Any]:
        base.open_existing().close()
        self.initialize()
        here = os_acc.this_host('os_acc.migration.hand_over')
        steps: list[dict[str, Any]] = []

        def tell(step: str, seconds: float) -> None:
            steps.append({'step': step, 'seconds': round(seconds, 3)})
            if not parsed_args.json:
                self.out(f'{seconds:8.2f} s  {step}')

        info = _instance(here, parsed_args.instance)
        with (
            alone(here, info.uuid),
            self._planned(here, info, parsed_args) as found,
            interruption.Moving(self.say, self.show_progress) as watched,
        ):
            if found.obstacles:
                raise exception.MigrationConflict(
                    instance=found.plan.instance_uuid,
                    reason='; '.join(found.obstacles),
                )
            moving = dataclasses.replace(
                found.carrying,
                tell=tell,
                stopped=watched.is_requested,
                callback=watched,
            )
            left = moving.move()
        self.unfinished = bool(left)
        return {**_answer(found), 'steps': steps, 'left': left}

    @contextlib.contextmanager
    def _planned(
        self,
        here: host.Host,
        info: objects.InstanceInfo,
        parsed_args: argparse.Namespace,
    ) -> Iterator[_Planned]:
        """Look at both hosts. Nothing is changed."""
        goal = destination.parse_uri(parsed_args.to)
        command = goal.command(_command(parsed_args.remote_command))
        plan = plans.describe(here, info)
        entries = here.journal.entries(info.uuid)
        info = entries[0].instance_info
        vans = [entry.van for entry in entries]
        guest = _guest(here, info, vans, goal.uri)
        way = _way(plan, parsed_args.way) if guest.runs else ways.COLD
        limit = here.conf.os_acc.migration_timeout
        if way == ways.COLD and guest.runs:
            _check_timeout(parsed_args.timeout, limit)
        there = remote.Remote([*command], goal.called, limit)
        migration_uuid = str(uuid.uuid4())
        made = carrying.Carrying(
            here,
            info,
            vans,
            way,
            guest,
            carrying.Target(there.call, info, plan, migration_uuid),
            migration_uuid,
            parsed_args.timeout,
        )
        try:
            obstacles = list(plan.obstacles) or made.obstacles()
            yield _Planned(made, plan, goal.called, obstacles)
        finally:
            there.close()


def _instance(here: host.Host, given: str) -> objects.InstanceInfo:
    """The instance that the argument INSTANCE names."""
    called = names.instance(here.journal, given, 'migrate')
    info = base.instance_info(called)
    names.check_has(here.journal, called, info.uuid, None, 'migrate')
    return info


def alone(here: host.Host, instance: str) -> contextlib.ExitStack[bool | None]:
    """Keep a second os-acc migrate from moving an instance meanwhile."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(here.locks.move(instance))
        except exception.LockTimeout as err:
            raise exception.MigrationConflict(
                instance=instance,
                reason='another os-acc migrate moves it just now; wait until '
                'it has ended',
            ) from err
        return stack.pop_all()


def _guest(
    here: host.Host,
    info: objects.InstanceInfo,
    vans: list[objects.VAN],
    target: str,
) -> guest_move.GuestMove:
    for van in vans:
        if van.state != states.PLUGGED:
            raise exception.MigrationConflict(
                instance=info.uuid,
                reason=f'VAN {van.uuid} is {van.state}: settle the earlier '
                'migration first, see os-acc migration list',
            )
    plugins = {van.plugin for van in vans}
    name = min(plugins)
    found = None
    if len(plugins) == 1:
        found = here.extensions.plugin(name).guest_move(info, target)
    if found is None:
        raise exception.MigrationConflict(
            instance=info.uuid,
            reason=f'os-acc cannot move a guest of {", ".join(plugins)}; it '
            'can move those of the plugin libvirt',
        )
    return found


def _way(plan: objects.MigrationPlan, chosen: str | None) -> str:
    possible = ways.WAYS[ways.WAYS.index(plan.way) :]
    if chosen is not None and chosen not in possible:
        raise exception.InvalidRequest(
            subject='migrate',
            field='--way',
            value=chosen,
            expected=f'{" or ".join(possible)}: see os-acc migration check',
        )
    return chosen or plan.way


def _check_timeout(seconds: float, limit: float) -> None:
    """Check that a guest may not shut down later than the target can switch.

    :raises InvalidRequest: if it may: it would be shut down in vain
    """
    if seconds >= limit:
        raise exception.InvalidRequest(
            subject='migrate',
            field='--timeout',
            value=seconds,
            expected='for a guest that is shut down, less than [os_acc] '
            f'migration_timeout ({limit:g})',
        )


def _command(text: str) -> list[str]:
    """The os-acc command of the target, with the call."""
    try:
        words = shlex.split(text)
        if not words or words[0].startswith('-'):
            raise ValueError('no program')
    except ValueError as err:
        raise exception.InvalidRequest(
            subject='migrate',
            field='--remote-command',
            value=text,
            expected=f'a command, as in a shell ({err})',
        ) from err
    return [*words, *remote.ARGUMENTS]


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < 1e6:
        raise argparse.ArgumentTypeError('a number of seconds above 0')
    return seconds


def _lines(found: _Planned) -> list[str]:
    return [
        f'way       {found.carrying.way}',
        f'downtime  {found.downtime}',
        f'target    {found.target}',
        f'disks     {carrying.DISKS}',
        *(f'lost      {each}' for each in found.left_behind),
        *(f'unchecked {each}: {_DEVICE}' for each in found.carrying.unchecked),
        *(f'obstacle  {each}' for each in found.obstacles),
    ]


def _answer(found: _Planned) -> dict[str, Any]:
    return {
        'instance': answers.instance(found.carrying.info),
        'target': found.target,
        'way': found.carrying.way,
        'downtime': found.downtime,
        'left_behind': found.left_behind,
        'unchecked': found.carrying.unchecked,
        'obstacles': found.obstacles,
    }

# SPDX-License-Identifier: Apache-2.0

"""os-acc cni-like: devices of containers, called as a CNI plugin is.

An attachment is an instance of its own. Its UUID is derived from the network,
the container and the interface, so that add and del may be repeated.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import sys
from typing import Any
import uuid

from oslo_config import cfg

import os_acc
from os_acc import exception
from os_acc import log
from os_acc import objects
from os_acc.attach import plan
from os_acc.cli import answers
from os_acc.cli import base
from os_acc.cli import cni_config
from os_acc.cli import errors
from os_acc.cli import exit_codes
from os_acc.cli import run
from os_acc.cli import selectors
from os_acc.cli import waiting
from os_acc.kernel import sysfs
from os_acc.objects import van as states
from os_acc.operations import preview

_ACTIONS = ('add', 'del', 'check', 'gc', 'status', 'version')

_UNUSABLE = (
    cfg.Error,
    exception.JournalError,
    exception.NoMatchingPlugin,
    exception.PrivilegeError,
)

_INVALID = (
    exception.InvalidRequest,
    exception.NoMatchingDriver,
    exception.AmbiguousDriver,
    exception.UnsupportedHandle,
)


class CNILike(base.Command):
    """Give devices to a container through a CNI-style interface.

    The command reads a JSON configuration from standard input, and the
    variables CNI_CONTAINERID and CNI_IFNAME. It answers in JSON, also for
    errors.
    """

    creates = True
    announces = False

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            'action',
            choices=_ACTIONS,
            metavar='ACTION',
            help=f'what to do: {", ".join(_ACTIONS)}',
        )

        def error(message: str) -> Any:
            code = cni_config.INVALID_ENVIRONMENT
            self.print_json(_error(cni_config.CNIError(code, message), code))
            raise SystemExit(exit_codes.FAILED)

        parser.error = error  # type: ignore[method-assign]
        return parser

    def run(self, parsed_args: argparse.Namespace) -> int:
        self._fields: Any = None
        try:
            answer = self.take_action(parsed_args)
        except Exception as err:
            if self.app.options.debug:
                log.error(self.app.LOG, err, '')
            code = _code(err, parsed_args.action)
            version = cni_config.version_of(self._fields)
            self.print_json(_error(err, code, version))
            return exit_codes.FAILED
        if answer is not None:
            self.print_json(answer)
        return 0

    def take_action(
        self, parsed_args: argparse.Namespace
    ) -> dict[str, Any] | None:
        """Do what the arguments, the environment and the input say.

        :returns: the answer; None: there is nothing to answer
        """
        action = parsed_args.action
        cni_config.check_command(os.environ, action)
        self._fields = cni_config.decode(sys.stdin.buffer)
        if action == 'version':
            return {
                'cniVersion': cni_config.asked_version(self._fields),
                'supportedVersions': list(cni_config.VERSIONS),
            }
        return self._do(action, cni_config.check(self._fields, action))

    def _do(
        self, action: str, found: cni_config.Configuration
    ) -> dict[str, Any] | None:
        if action == 'status':
            wanted = found.wanted()
            self.check_configuration()
            _check_available(wanted)
            return None
        if action == 'gc':
            valid = found.valid()
            self.check_configuration()
            self._collect(found.network, valid)
            return None
        attachment = cni_config.attachment(os.environ, found.network)
        if action == 'del':
            # As much as possible: what is wrong in the rest does not matter.
            self.check_configuration()
            with base.reading() as read:
                if base.is_missing(read):
                    return None
            self.initialize()
            os_acc.unplug(attachment.info)
            return None
        wanted = found.wanted()
        info = attachment.info
        requests = wanted.requests(info.uuid)
        previous = found.previous
        self.check_configuration()
        if action == 'check':
            _check_attachment(info, requests, previous)
            return None
        vans = self._plug(info, requests, wanted)
        names = run.variables(info, vans)['OS_ACC_CDI_DEVICES'].split()
        earlier = previous.get('cdiDevices', [])
        return {
            'interfaces': [],
            **previous,
            'cniVersion': found.version,
            'cdiDevices': list(dict.fromkeys([*earlier, *names])),
            'devices': [answers.van(van) for van in vans],
        }

    def _collect(
        self, network: str, valid: set[cni_config.Attachment]
    ) -> None:
        """Release the attachments of a network that are not valid any more.

        As many as possible are released. The runtime adds and deletes nothing
        meanwhile (section "Lifecycle & Ordering" of the specification).
        """
        with base.reading() as read:
            if base.is_missing(read):
                return
        self.initialize()
        with base.reading() as read:
            present = {
                cni_config.Attachment.of(entry.instance_info)
                for entry in read.entries()
            }
        stale = [
            each
            for each in present - valid
            if each is not None and each.network == network
        ]
        codes, texts = set(), []
        for each in stale:
            try:
                os_acc.unplug(each.info)
            except Exception as err:
                codes.add(_code(err, 'gc'))
                texts.append(f'{each.info.name}: {exception.describe(err)}')
        if codes:
            (code,) = codes if len(codes) == 1 else (cni_config.UNPLUG_FAILED,)
            raise cni_config.CNIError(code, '; '.join(texts))

    def _plug(
        self,
        info: objects.InstanceInfo,
        requests: list[objects.AcceleratorRequest],
        wanted: cni_config.Wanted,
    ) -> objects.VANList:
        def plug() -> objects.VANList:
            self.initialize()
            selectors.check_count(
                info.uuid, len(requests), os_acc.get_vans(info)
            )
            return os_acc.plug(info, requests, plugin=wanted.plugin)

        return waiting.retry(
            plug,
            wanted.wait,
            self.say,
            functools.partial(waiting.release_ended, self.say),
            requests,
        )


def _check_attachment(
    info: objects.InstanceInfo,
    requests: list[objects.AcceleratorRequest],
    previous: dict[str, Any],
) -> None:
    """Check that an attachment is as add has made it. This changes nothing."""
    with contextlib.closing(base.look()) as opened:
        rows = opened.journal.unreadable(info.uuid)
        entries = {
            entry.van.uuid: entry
            for entry in opened.journal.entries(info.uuid)
        }
        if not entries and not rows:
            raise cni_config.CNIError(
                cni_config.UNKNOWN_CONTAINER, f'{info.name} has no devices'
            )
        for row in rows:
            raise _not_as_added(str(plan.unreadable(opened, row)))
        if entries.keys() != {request.uuid for request in requests}:
            raise _not_as_added(
                f'it has {len(entries)} devices, and {len(requests)} are '
                'wanted'
            )
        for request in requests:
            entry = entries[request.uuid]
            plan.check_same(request, entry.request)
            van = entry.van
            if van.state != states.PLUGGED or van.boot_id != sysfs.boot_id():
                raise _not_as_added(
                    f'VAN {van.uuid} is not plugged: its state is '
                    f'{van.state}, of boot {van.boot_id}'
                )
            driver = opened.extensions.driver(van.driver)
            plugin = opened.extensions.plugin(van.plugin)
            if not (driver.is_intact(van) and plugin.is_intact(van)):
                raise _not_as_added(f'the device of VAN {van.uuid} is lost')
            names = previous.get('cdiDevices')
            cdi = plugin.describe().guest_config_format == run.CDI
            if names is not None and cdi and van.guest_config not in names:
                raise _not_as_added(
                    f'prevResult lacks the device {van.guest_config}'
                )


def _not_as_added(text: str) -> cni_config.CNIError:
    return cni_config.CNIError(cni_config.NOT_AS_ADDED, text)


def _check_available(wanted: cni_config.Wanted) -> None:
    """Check that add could succeed now."""
    instance = objects.InstanceInfo(
        uuid=str(uuid.uuid4()), name='status', project_id=''
    )
    with contextlib.closing(base.look()) as opened:
        planned = preview.plug(
            opened,
            instance,
            wanted.requests(instance.uuid),
            plugin=wanted.plugin,
        )
    obstacles = [each.obstacle for each in planned if each.obstacle]
    if obstacles:
        raise cni_config.CNIError(
            cni_config.NOT_AVAILABLE,
            f'{wanted.count - len(obstacles)} of {wanted.count} devices are '
            f'available: {"; ".join(dict.fromkeys(obstacles))}',
        )


def _code(err: Exception, action: str) -> int:
    if isinstance(err, cni_config.CNIError):
        return err.code
    if action == 'status':
        # Without a journal, no attachment can be checked or deleted.
        if isinstance(err, exception.JournalError):
            return cni_config.NOT_AVAILABLE_LIMITED
        return cni_config.NOT_AVAILABLE
    failed = getattr(err, 'undo_errors', [])
    if isinstance(err, exception.UnplugException) and failed:
        again = all(map(waiting.may_pass, failed))
    else:
        again = waiting.may_pass(err)
    causes = list(errors.causes(err))
    if again:
        return cni_config.TRY_AGAIN
    if any(isinstance(each, _UNUSABLE) for each in causes):
        return cni_config.UNUSABLE
    if any(isinstance(each, _INVALID) for each in causes):
        return cni_config.INVALID_CONFIGURATION
    if isinstance(err, exception.ExceptionBase):
        if action == 'check':
            return cni_config.NOT_AS_ADDED
        unplug = action in ('del', 'gc')
        return cni_config.UNPLUG_FAILED if unplug else cni_config.PLUG_FAILED
    return cni_config.UNEXPECTED


def _error(
    err: Exception, code: int, version: str = cni_config.VERSIONS[-1]
) -> dict[str, Any]:
    return {
        'cniVersion': version,
        'code': code,
        'msg': cni_config.MESSAGES[code],
        'details': ' '.join(exception.describe(err).split()),
    }

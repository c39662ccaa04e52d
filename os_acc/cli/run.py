# SPDX-License-Identifier: Apache-2.0

"""os-acc run: run a command that has devices as long as it runs."""

from __future__ import annotations

import argparse
import functools
import os
import uuid

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc.cli import arqs
from os_acc.cli import base
from os_acc.cli import launch
from os_acc.cli import selectors
from os_acc.cli import waiting
from os_acc.kernel import process

#: Exit code if os-acc itself fails; the command then was not run, or its
#: devices could not be released after it had succeeded.
OWN_FAILURE = 125

#: What VANs of plugins with this format have as guest_config.
CDI = 'cdi-device'

# Seconds to try to release the devices while the journal or a device is busy.
_RELEASE_WAIT = 30.0


class Run(base.Command):
    """Plug accelerators, run a command, and unplug them when it ends.

    The command finds the accelerators in its environment: OS_ACC_DEVICES and
    others, each a list separated by blanks. Signals are passed on
    to it. The exit code is that of the command; 128 + N if signal N ended it;
    127 if it does not exist, 126 if it cannot be run, and 125 if os-acc
    failed.
    """

    configured = True

    creates = True
    announces = False

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        selectors.add_resource_class(parser, required=True)
        selectors.add_options(parser)
        parser.add_argument(
            '--function', metavar='ID', help='the function to program'
        )
        parser.add_argument('--driver', metavar='NAME', help='use this driver')
        parser.add_argument(
            '--plugin',
            metavar='NAME',
            default='noop',
            help='the plugin; cdi passes the command the names for a '
            'container runtime (default: noop, for a command that uses the '
            'devices itself)',
        )
        arqs.add_wait(parser, 'wait for a free device')
        parser.add_argument(
            'command',
            nargs='*',
            metavar='-- COMMAND',
            help='the command and its arguments',
        )
        return parser

    def run(self, parsed_args: argparse.Namespace) -> int:
        try:
            return super().run(parsed_args)
        except Exception as err:
            return self.tell(err)

    def tell(self, err: Exception) -> int:
        super().tell(err)
        return OWN_FAILURE

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        command = self.app.command_line
        if parsed_args.command or not command:
            raise exception.InvalidRequest(
                'run: expected the command after its options and --, such as '
                'os-acc run --resource-class CLASS -- COMMAND'
            )
        if (wrong := launch.check(command[0])) is not None:
            code, text = wrong
            self.app.LOG.error(text)
            return code
        child = launch.Child(command)
        try:
            with launch.Signals() as signals:
                program = os.path.basename(command[0])
                info = objects.InstanceInfo(
                    uuid=uuid.uuid4(),
                    name=f'{program} (process {child.pid})',
                    project_id='',
                    process=process.identity(child.pid),
                )
                requests = _requests(info, parsed_args)
                return self._run(child, signals, info, requests, parsed_args)
        except launch.Stopped as err:
            return 128 + err.number
        finally:
            child.close()

    def _run(
        self,
        child: launch.Child,
        signals: launch.Signals,
        info: objects.InstanceInfo,
        requests: list[objects.AcceleratorRequest],
        parsed_args: argparse.Namespace,
    ) -> int:
        def plug() -> objects.VANList:
            self.initialize()
            return os_acc.plug(info, requests, plugin=parsed_args.plugin)

        code = OWN_FAILURE
        try:
            with signals.interruptible():
                vans = waiting.retry(
                    plug,
                    parsed_args.wait,
                    self.say,
                    functools.partial(waiting.release_ended, self.say),
                    requests,
                )
                environment = variables(info, vans)
            signals.pass_to(child)
            child.start(environment)
            code = child.wait()
        finally:
            signals.pass_to_nobody()
            try:
                # This ends a process that has not become the command.
                child.close()
            finally:
                released = self._unplug(info)
        return code if released or code else OWN_FAILURE

    def _unplug(self, info: objects.InstanceInfo) -> bool:
        """Release the devices.

        :returns: whether all are released; otherwise recover() tries again
        """
        try:
            waiting.retry(lambda: os_acc.unplug(info), _RELEASE_WAIT, self.say)
        except exception.LibraryNotInitialized:
            return True  # nothing was plugged
        except exception.ExceptionBase as err:
            self.tell(err)
            self.say('The next os-acc recover tries again to release it')
            return False
        return True


def variables(
    info: objects.InstanceInfo, vans: objects.VANList
) -> dict[str, str]:
    """Make the variables that describe the devices of a command.

    All are set, also those without an item, so that a command does not see
    those of an enclosing os-acc run.
    """
    formats = {
        each.plugin_name: each.guest_config_format
        for each in os_acc.host_info().plugin_info
    }
    handles = [van.handle for van in vans if van.handle is not None]
    lists = {
        'DEVICES': [handle.identity for handle in handles],
        'CDI_DEVICES': [
            van.guest_config
            for van in vans
            if formats.get(van.plugin) == CDI and van.guest_config
        ],
        'FILES': [path for handle in handles for path in _files(handle)],
        'PCI_ADDRESSES': [
            handle.address
            for handle in handles
            if isinstance(handle, objects.PCIHandle)
        ],
        'MDEV_UUIDS': [
            handle.uuid
            for handle in handles
            if isinstance(handle, objects.MdevHandle)
        ],
        'VANS': [van.uuid for van in vans],
        'INSTANCE': [info.uuid],
    }
    return {f'OS_ACC_{name}': ' '.join(items) for name, items in lists.items()}


def _files(handle: objects.AttachHandle) -> list[str]:
    if isinstance(handle, objects.DeviceFileHandle):
        return [file.path for file in handle.files]
    if isinstance(handle, objects.BlockHandle):
        return [handle.path]
    return []


def _requests(
    info: objects.InstanceInfo, parsed_args: argparse.Namespace
) -> list[objects.AcceleratorRequest]:
    made = selectors.requests(
        info.uuid,
        parsed_args.resource_class,
        parsed_args.trait,
        parsed_args.count,
        parsed_args.function,
    )
    for request in made:
        request.driver = parsed_args.driver
    return made

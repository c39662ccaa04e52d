# SPDX-License-Identifier: Apache-2.0

"""Answers in JSON, for scripts: objects with keys in snake_case.

An error is an answer too: an object with the key ``error``, on standard
output. The exit code is the same as without --json.
"""

from __future__ import annotations

import argparse
from typing import Any

from os_acc import exception
from os_acc import log
from os_acc import objects
from os_acc.cli import base
from os_acc.cli import errors
from os_acc.cli import exit_codes
from os_acc.cli import waiting

#: The fields of a VAN in an answer; the handle is added.
_FIELDS = (
    'uuid',
    'instance_uuid',
    'state',
    'driver',
    'plugin',
    'owner',
    'device',
    'function_id',
    'live_migratable',
    'guest_config',
    'error',
)


class Command(base.Command):
    """A command with the option --json.

    :ivar failed: True: the answer itself says what is wrong; the exit code
        is then FAILED
    """

    failed = False

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            '--json',
            action='store_true',
            help='print the answer, or the error, as a JSON object for '
            'scripts',
        )
        in_one_line = parser.error

        def error(message: str) -> Any:
            if '--json' not in self.app.arguments:
                in_one_line(message)
            code = exit_codes.WRONG_USAGE
            self.print_json(_error('WrongArguments', message, code))
            raise SystemExit(code)

        parser.error = error  # type: ignore[method-assign]
        return parser

    def answer(self, parsed_args: argparse.Namespace) -> dict[str, Any]:
        """Do the work, and return the answer."""
        raise NotImplementedError

    def run(self, parsed_args: argparse.Namespace) -> int:
        if not parsed_args.json:
            result = super().run(parsed_args)
            return exit_codes.FAILED if self.failed and not result else result
        try:
            self.check_configuration()
            with self.patience():
                answer = self.answer(parsed_args)
            self.print_json(answer)
        except Exception as err:
            code = exit_codes.of(err)
            if self.app.options.debug:
                log.error(self.app.LOG, err, '')
            self.print_json(error(err, code))
            return code
        if self.failed:
            return exit_codes.FAILED
        return exit_codes.DIFFERS if self.unfinished else exit_codes.DONE


def instance(info: objects.InstanceInfo) -> dict[str, Any]:
    """Describe an instance."""
    return {'uuid': info.uuid, 'name': info.name}


def van(found: objects.VAN) -> dict[str, Any]:
    """Describe a VAN, with its attach handle."""
    answer = {name: getattr(found, name) for name in _FIELDS}
    answer['handle'] = handle(found.handle)
    return answer


def handle(found: objects.AttachHandle | None) -> dict[str, Any] | None:
    """Describe an attach handle: its class, identity and fields."""
    if found is None:
        return None
    return {
        'class': found.obj_name(),
        'identity': found.identity,
        **_fields(found),
    }


def _fields(found: Any) -> dict[str, Any]:
    answer = {}
    for name in found.fields:
        value = getattr(found, name)
        if isinstance(value, list):
            value = [_fields(each) for each in value]
        answer[name] = value
    return answer


def error(err: Exception, code: int) -> dict[str, Any]:
    """Describe an error; cause is the class of the error behind it."""
    made = _error(type(err).__name__, exception.describe(err), code)
    made['error']['cause'] = type(list(errors.causes(err))[-1]).__name__
    made['error']['may_pass'] = waiting.may_pass(err)
    return made


def _error(name: str, text: str, code: int) -> dict[str, Any]:
    return {
        'error': {
            'type': name,
            'message': ' '.join(text.split()),
            'exit_code': code,
        }
    }

# SPDX-License-Identifier: Apache-2.0

"""The os-acc command, run in this process as if in a new one."""

import dataclasses
import io
import json
import logging
import os
import sys

import os_acc
from os_acc.cli import app

# For a test of the demo, which else takes two seconds.
SHORT_DELAYS = {'prepareVAN': '0.02', 'program': '0.2'}


@dataclasses.dataclass
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


class Terminal(io.TextIOWrapper):
    """Standard input that somebody sits at."""

    def isatty(self):
        return True


class Command:
    """The os-acc command with a state path, each time as a new process."""

    def __init__(self, state_path, capsys, monkeypatch):
        self.state_path = state_path
        self._capsys = capsys
        self._monkeypatch = monkeypatch

    def __call__(self, *arguments, stdin='', terminal=False):
        root = logging.getLogger()
        level = root.level
        handlers = list(root.handlers)
        self._capsys.readouterr()
        with self._monkeypatch.context() as patch:
            patch.setattr(os_acc, '_host', None)
            made = Terminal if terminal else io.TextIOWrapper
            file = made(io.BytesIO(stdin.encode()))
            patch.setattr(sys, 'stdin', file)
            try:
                code = app.main([*self.general, *map(str, arguments)])
            except SystemExit as err:
                # As the interpreter takes it.
                code = err.code or 0
            finally:
                if os_acc._host is not None:
                    os_acc._host.close()
                for handler in root.handlers:
                    if handler not in handlers:
                        handler.close()
                root.handlers[:] = handlers
                root.setLevel(level)
        captured = self._capsys.readouterr()
        return Result(code, captured.out, captured.err)

    @property
    def general(self):
        if self.state_path is None:
            # The configuration file sets it.
            os_acc.CONF.clear_override('state_path', 'os_acc')
            return []
        if not os.path.exists(self.state_path):
            # The command makes only the directory of the option.
            os_acc.CONF.set_override(
                'state_path', str(self.state_path), 'os_acc'
            )
            return []
        return ['--state-path', str(self.state_path)]

    def fine(self, *arguments, **kwargs):
        """Run it where nothing may go wrong."""
        result = self(*arguments, **kwargs)
        assert (result.code, result.err) == (0, '')
        return result

    def fails(self, code, *arguments, **kwargs):
        """Run it where one line on standard error says what is wrong.

        :returns: that line
        """
        result = self(*arguments, **kwargs)
        assert result.code == code, result
        assert result.out == ''
        assert result.err.count('\n') == 1
        assert result.err.endswith('\n')
        return result.err

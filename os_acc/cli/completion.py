# SPDX-License-Identifier: Apache-2.0
"""os-acc complete: completion in the shell, and the candidates for it."""

from __future__ import annotations

import argparse
import logging
import re
from typing import NamedTuple

from cliff import complete

import os_acc
from os_acc.cli import base
from os_acc.cli import candidates

# The scripts: how each shell asks for candidates. Each gives os-acc complete
# words the words of the line up to the cursor, one per line, and gets the
# candidates for the last one, each with a tab and a text.

# Bash splits words at ":", which is in the addresses of PCI functions. So the
# line is split at blanks here, and what bash has before the last ":" is
# removed from the candidates. Bash inserts a candidate as it is, so it is
# quoted: the name of an instance may be any text, such as "x; reboot".
BASH = r"""# Completion of os-acc for bash.
_os_acc() {
    local line=${COMP_LINE:0:COMP_POINT} IFS=$' \t\n'
    local -a words
    read -r -a words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=('')
    local current=${words[${#words[@]} - 1]} name text
    local before=${current%"${current##*[:=]}"}
    COMPREPLY=()
    while IFS=$'\t' read -r name text; do
        name=${name#"$before"}
        [[ -n $name ]] && printf -v name %q "$name"
        COMPREPLY+=("$name")
    done < <(printf '%s\n' "${words[@]}" | os-acc complete words 2> /dev/null)
}
complete -o default -F _os_acc os-acc
"""

ZSH = r"""#compdef os-acc
# Completion of os-acc for zsh.
_os_acc() {
    local -a found
    local name text
    while IFS=$'\t' read -r name text; do
        found+=("${name//:/\\:}:$text")
    done < <(print -rl -- "${(@)words[1,CURRENT]}" \
        | os-acc complete words 2> /dev/null)
    if (( $#found )); then
        _describe 'os-acc' found
    else
        # The file may be the value in --option=value.
        compset -P '--[^=]#='
        _files
    fi
}
if [[ $funcstack[1] == _os_acc ]]; then
    _os_acc "$@"
else
    compdef _os_acc os-acc
fi
"""

FISH = r"""# Completion of os-acc for fish.
function __os_acc_complete
    set -l found (begin
        commandline -opc
        commandline -ct
    end | os-acc complete words 2> /dev/null)
    if set -q found[1]
        printf '%s\n' $found
    else
        # The file may be the value in --option=value.
        set -l current (commandline -ct)
        set -l option (string match -r -- '^--[^=]*=' "$current")
        printf '%s\n' "$option"(__fish_complete_path \
            (string replace -- "$option" '' "$current"))
    end
end
complete -c os-acc -f -a '(__os_acc_complete)'
"""

SCRIPTS = {'bash': BASH, 'zsh': ZSH, 'fish': FISH}

_WORDS = 'words'

# The options of all commands that take a value.
_CONFIGURATION = ('--config-file', '--config-dir')
_STATE_PATH = '--state-path'
_WITH_VALUE = (*_CONFIGURATION, _STATE_PATH, '--log-file')

# What the first positional argument of a command is.
_POSITIONAL = {
    'plug': 'instance',
    'unplug': 'instance',
    'van show': 'van',
    'van forget': 'van',
    'device allow': 'address',
    'device deny': 'address',
    'device free': 'address',
    'device program': 'address',
    'device show': 'address',
    'complete': 'shell',
}

_OPTION = re.compile(r'^  (?:-\w(?: \w+)?, )?(--[\w-]+)', re.M)


class _Line(NamedTuple):
    """A command line up to the cursor.

    :ivar before: the complete words after the options of all commands
    :ivar current: the word at the cursor, which may be empty
    :ivar option: the option of all commands whose value current is
    :ivar values: the values of options of all commands
    """

    before: list[str]
    current: str
    option: str | None
    values: dict[str, list[str]]


class Complete(base.Command):
    """Print the completion script of os-acc for a shell.

    It completes commands, options, UUIDs and names of VANs and instances,
    and addresses of devices.
    """

    announces = False

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            'shell',
            choices=(*SCRIPTS, _WORDS),
            help='the shell. "words" is for the printed scripts: the command '
            'reads the words of a command line up to the cursor, one per '
            'line, and prints the candidates for the last one',
        )
        return parser

    def check_configuration(self) -> None:
        """Complete commands and options also without a configuration."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        script = SCRIPTS.get(parsed_args.shell)
        if script is not None:
            self.app.stdout.write(script)
            return
        # The shell is about to show the line again: nothing may disturb it.
        logging.disable()
        try:
            line = _read(self.app.stdin.read().split('\n')[:-1])
            for name, text in sorted(self._candidates(line).items()):
                # A line feed would begin another candidate.
                if name.startswith(line.current) and name.isprintable():
                    self.app.stdout.write(f'{name}\t{_one_line(text)}\n')
        finally:
            logging.disable(logging.NOTSET)

    def _candidates(self, line: _Line) -> candidates.Found:
        if line.option is not None:
            return {}  # a file
        _configure(line.values)
        command = self._command(line.before)
        if command is None:
            return self._names(line)
        return self._of_command(command, line)

    def _command(self, words: list[str]) -> list[str] | None:
        """The command that a line begins with, if it is complete."""
        names = self.app.command_manager.commands
        for number in range(len(words), 0, -1):
            if ' '.join(words[:number]) in names:
                return words[:number]
        return None

    def _names(self, line: _Line) -> candidates.Found:
        """The next words of commands, or the options of all commands."""
        if line.current.startswith('-') and not line.before:
            text = self.app.parser.format_help()
            return dict.fromkeys(_OPTION.findall(text), '')
        place = len(line.before)
        return {
            name.split()[place]: ''
            for name in self.app.command_manager.commands
            if name.split()[:place] == line.before
            and len(name.split()) > place
        }

    def _of_command(self, command: list[str], line: _Line) -> candidates.Found:
        """Options, the value of an option, or the positional argument."""
        words = line.before[len(command) :]
        if '--' in words:
            return {}
        actions = complete.CompleteCommand(
            self.app, self.app.options
        ).get_actions(command)
        options = {o: a for a in actions for o in a.option_strings}
        last = options.get(words[-1]) if words else None
        if last is not None and last.nargs != 0:
            return (
                dict.fromkeys(map(str, last.choices), '')
                if last.choices
                else candidates.of(last.dest)
            )
        if line.current.startswith('-'):
            return {
                name: action.help or ''
                for name, action in options.items()
                if name.startswith('--')
            }
        kind = _POSITIONAL.get(' '.join(command))
        if kind == 'shell':
            return dict.fromkeys(SCRIPTS, '')
        return candidates.of(kind)


def _read(words: list[str]) -> _Line:
    """Read the words of a line, the first of which is os-acc itself."""
    *before, current = words[1:] or ['']
    values: dict[str, list[str]] = {}
    while before and before[0].startswith('-'):
        name, separator, value = before.pop(0).partition('=')
        if name not in _WITH_VALUE:
            continue
        if not separator:
            if not before:
                return _Line([], current, name, values)
            value = before.pop(0)
        values.setdefault(name, []).append(value)
    return _Line(before, current, None, values)


def _configure(values: dict[str, list[str]]) -> None:
    """Use the configuration and the journal that the line names."""
    arguments = [
        part
        for option in _CONFIGURATION
        for path in values.get(option, ())
        for part in (option, path)
    ]
    if arguments:
        os_acc.CONF(arguments, project='os-acc')
    if directories := values.get(_STATE_PATH):
        os_acc.CONF.set_override('state_path', directories[-1], 'os_acc')


def _one_line(text: str) -> str:
    return ' '.join(text.replace('%%', '%').split())

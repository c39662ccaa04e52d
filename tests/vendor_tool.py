# SPDX-License-Identifier: Apache-2.0

"""Stand-ins for fpgaconf, xbmgmt, xbutil and xrt-smi, run as executables.

They have the argument rules, questions and messages of the real tools, as
their sources have them:

- fpgaconf: binaries/fpgaconf/fpgaconf.c and libraries/argsfilter/argsfilter.c
  of OPAE (OFS/opae-sdk);
- the others: src/runtime_src/core/tools of XRT (Xilinx/XRT), in it
  common/XBUtilitiesCore.cpp for the questions, xbmgmt2/OO_UpdateBase.cpp for
  --base and xbmgmt2/OO_UpdateXclbin.cpp and xbutil2/SubCmdProgram.cpp for
  --user.

The directory ``host`` beside the executables has the cards: ``cards`` names
one PCI function per line, ``mode`` says what the tool does besides. An image
is copied to ``in.ADDRESS``, and the arguments are added to ``calls``.
"""

from __future__ import annotations

import getopt
import json
import os
import pathlib
import re
import subprocess
import sys
import time
from typing import NoReturn

TOOL = pathlib.Path(sys.argv[0])
HOST = TOOL.parents[1] / 'host'
GBS = b'XeonFPGA\xb7GBSv001'


def say(text: str, after: str = '\n') -> None:
    sys.stdout.write(text + after)
    sys.stdout.flush()


def end(code: int, text: str) -> NoReturn:
    sys.stderr.write(text + '\n')
    sys.exit(code)


def cards() -> list[str]:
    return (HOST / 'cards').read_text().split()


def load(address: str, image: str) -> None:
    """Program a card, in the way that the file mode says."""
    with open(HOST / 'calls', 'a') as calls:
        calls.write(json.dumps([TOOL.name, *sys.argv[1:]]) + '\n')
    mode = (HOST / 'mode').read_text()
    if mode == 'flood':
        block = b'.' * (1 << 16)
        for _ in range(1 << 12):  # 256 MiB
            sys.stdout.buffer.write(block)
        sys.stdout.buffer.flush()
    elif mode == 'hang':
        say('waiting for the card')
        time.sleep(600)
    elif mode == 'fork':
        # It leaves the process group and keeps the files open.
        away = subprocess.Popen(
            ['sleep', '600'], start_new_session=True, close_fds=False
        )
        (HOST / 'pid').write_text(str(away.pid))
    elif mode == 'percent':
        for percent in (10, 55, 90):
            say(f'\rProgramming: [{percent}%]', '')
            until = HOST / f'after.{percent}'
            while not until.exists():
                time.sleep(0.01)
    elif mode == 'fail':
        end(1, 'ERROR: the card does not answer')
    (HOST / f'in.{address}').write_bytes(pathlib.Path(image).read_bytes())


def can_proceed(force: bool) -> bool:
    """can_proceed() of XRT. An empty line and the end of the input mean yes.

    In the mode ``old`` it is that of a release that asks until it gets an
    answer.
    """
    while True:
        say('Are you sure you wish to proceed? [Y/n]: ', '')
        if force:
            say('Y (Force override)')
            return True
        answer = sys.stdin.readline().strip().lower()
        if not answer and (HOST / 'mode').read_text() == 'old':
            with open(HOST / 'asked', 'a') as asked:
                asked.write('x')
            continue
        if answer not in ('y', ''):
            say('Action canceled.')
        return answer in ('y', '')


def number(option: str, text: str) -> int:
    """strtoul(text, &end, 0): hex needs 0x."""
    if not re.fullmatch('0x[0-9a-f]+|0[0-7]*|[1-9][0-9]*', text, re.I):
        end(7, f'invalid {option}: {text}')
    return int(text, 8 if re.fullmatch('0[0-7]+', text) else 0)


def fpgaconf(words: list[str]) -> None:
    names = ('segment', 'bus', 'device', 'function')
    try:
        options, files = getopt.gnu_getopt(
            words,
            'S:B:D:F:V',
            [*(f'{name}=' for name in names), 'verbose', 'force'],
        )
    except getopt.GetoptError:
        end(1, 'Invalid cmdline options')
    short = {f'-{name[0].upper()}': name for name in names}
    wanted = {
        option: number(option, text)
        for given, text in options
        if (option := short.get(given, given[2:])) in names
    }
    if not files:
        end(1, 'No GBS file')
    # The extension does not matter, the content does.
    if not pathlib.Path(files[0]).read_bytes().startswith(GBS):
        end(2, f'GBS guid is invalid: "{files[0]}"')
    found = []
    for card in cards():
        parts = [int(part, 16) for part in re.split('[:.]', card)]
        if all(
            wanted.get(name, part) == part
            for name, part in zip(names, parts, strict=True)
        ):
            found.append(card)
    if not found:
        end(4, 'No suitable slots found.')
    if len(found) > 1:
        end(5, 'Found more than one suitable slot, please be more specific.')
    load(found[0], files[0])


def card_of(text: str) -> str:
    """bdf2index() of XRT: DDDD:BB:DD.F, the domain and .F may be left out."""
    match = re.fullmatch(
        r'(?:([0-9a-f]+):)?([0-9a-f]+):([0-9a-f]+)(?:\.([0-9a-f]+))?',
        text.lower(),
    )
    if match is None:
        end(1, f"ERROR: Invalid BDF '{text}'")
    domain, bus, device, function = match.groups()
    start = f'{int(domain or "0", 16):04x}:{bus}:{device}.'
    for card in cards():
        # xbmgmt sees the management functions, the others the user functions.
        managed = card.endswith('.0') == (TOOL.name == 'xbmgmt')
        if managed and card.startswith(start + (function or '')):
            return card
    end(1, f"ERROR: Specified device BDF '{text}' not found")


def xrt(words: list[str]) -> None:
    force = '--force' in words
    words = [w for w in words if w not in ('--force', '--batch', '--verbose')]
    if not words or words.pop(0) != 'program':
        end(1, 'ERROR: Unknown command')
    given: dict[str, list[str]] = {}
    names = {'-d': 'device', '-u': 'user', '-b': 'base'}
    option = None
    for word in words:
        if word.startswith('-'):
            option = names.get(word, word.removeprefix('--'))
            given[option] = []
        elif option is None:
            end(1, f'ERROR: Unrecognized arguments:\n  {word}')
        else:
            given[option].append(word)
    allowed = {'device', 'user'}
    if TOOL.name == 'xbmgmt':
        allowed |= {'base', 'image'}
    for name in given.keys() - allowed:
        end(1, f"ERROR: unrecognised option '--{name}'")
    card = card_of(given['device'][0]) if given.get('device') else cards()[0]
    if 'user' in given:
        user(card, given['user'])
    elif 'base' in given:
        base(card, given.get('image', []), force)
    else:
        end(1, 'ERROR: Missing flash operation.  No action taken.')


def user(card: str, files: list[str]) -> None:
    """Neither the extension is looked at, nor is anything asked."""
    if len(files) != 1:
        end(1, "ERROR: the required argument for option '--user' is missing")
    if TOOL.name == 'xbmgmt':
        say(f'Downloading xclbin on device [{card}]...')
    load(card, files[0])
    if TOOL.name == 'xbmgmt':
        say('INFO: Successfully downloaded xclbin \n')
    else:
        say(f'INFO: {TOOL.name} program succeeded on {card}')


def base(card: str, files: list[str], force: bool) -> None:
    if not 1 <= len(files) <= 2:
        end(1, 'Please provide a valid xsabin file')
    for file in files:
        if not os.path.isfile(file):
            end(1, 'Specified base not found on the system')
        if pathlib.Path(file).suffix != '.xsabin':
            say(
                'Warning: Non-xsabin file detected. Development usage, this '
                'may damage the card'
            )
            if not can_proceed(force):
                sys.exit(1)
    if not can_proceed(force):
        return
    load(card, files[0])
    say('\nDevice flashed successfully.')
    say('*' * 52)
    say('Cold reboot machine to load the new image on device.')
    say('*' * 52)


if TOOL.name == 'fpgaconf':
    fpgaconf(sys.argv[1:])
else:
    xrt(sys.argv[1:])

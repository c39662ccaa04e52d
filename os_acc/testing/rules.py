# SPDX-License-Identifier: Apache-2.0

"""The rules of the two contracts, each with its place in the documentation."""

from __future__ import annotations

import dataclasses
import difflib
import pprint
from typing import Any
from typing import NoReturn


@dataclasses.dataclass(frozen=True)
class Rule:
    """A rule of a contract.

    :ivar name: as in the documentation of the kit
    :ivar page: the page of the documentation that explains it
    :ivar heading: the section of the page
    :ivar text: what the rule says
    """

    name: str
    page: str
    heading: str
    text: str

    def broken(self, seen: str) -> NoReturn:
        """Fail the test.

        :param seen: what the driver or plugin did instead, in a sentence
        :raises Broken: always
        """
        raise Broken(self, seen)


class Broken(AssertionError):
    """A driver or plugin breaks a rule of its contract.

    :ivar rule: the rule
    """

    def __init__(self, rule: Rule, seen: str) -> None:
        self.rule = rule
        super().__init__(
            f'rule {rule.name!r} is broken: {rule.text}.\n'
            f'What was seen: {seen}\n'
            f'See "{rule.heading}" in doc/source/{rule.page}.'
        )


@dataclasses.dataclass(frozen=True)
class _Section:
    """A section of the documentation, and its rules."""

    page: str
    heading: str

    def rule(self, name: str, text: str) -> Rule:
        return Rule(name, self.page, self.heading, text)


_CLAIM = _Section('driver.rst', 'Claim a request')
CLAIM = _CLAIM.rule(
    'claim', 'can_handle() returns True for a request that the driver serves'
)
CLAIM_LOOKS = _CLAIM.rule('claim-looks-only', 'can_handle() changes nothing')
REFUSE = _CLAIM.rule(
    'refuse',
    'prepareVAN() refuses a request for what the driver does not have with '
    'an error of os_acc.exception, even if the request names the driver',
)
REFUSE_LOOKS = _CLAIM.rule(
    'refuse-untouched',
    'a request that prepareVAN() refuses leaves the hardware as it was',
)

HANDLE_TYPES = _Section('driver.rst', 'The contract').rule(
    'handle-types',
    'handle_types names the class of each handle that the driver makes',
)

_SAVE = _Section('driver.rst', 'Save before you touch the device')
SERVE = _SAVE.rule(
    'serve', 'prepareVAN() sets a handle and prepares the device'
)
SAVE_FIRST = _SAVE.rule(
    'save-first',
    'van.save() writes all that the undo needs before the first change of '
    'the device',
)

_AGAIN = _Section('driver.rst', 'Prepare again after a reboot')
SAME_HANDLE = _AGAIN.rule(
    'same-handle', 'a second prepareVAN() for a VAN prepares the same handle'
)
AS_FOUND = _AGAIN.rule(
    'as-found',
    'a second prepareVAN() keeps the values in driver_data that describe the '
    'device as the first one found it',
)
NUMBERS = _AGAIN.rule(
    'device-numbers',
    'a DeviceFileHandle has the types and the numbers that its files have in '
    'this boot of the host',
)

_INTACT = _Section('driver.rst', 'Say whether a device is intact')
INTACT = _INTACT.rule(
    'intact',
    'is_intact() is True if and only if the device is as prepareVAN() has '
    'left it',
)
INTACT_LOOKS = _INTACT.rule('intact-looks-only', 'is_intact() changes nothing')

_UNDO = _Section('driver.rst', 'Undo a half-done preparation')
UNDO = _UNDO.rule(
    'undo',
    'unprepareVAN() restores the state in which prepareVAN() found the device',
)
UNDO_HALF = _UNDO.rule(
    'undo-half-done',
    'after a kill at any point, unprepareVAN() in a new process leaves '
    'nothing behind',
)
UNDO_NOTHING = _UNDO.rule(
    'undo-nothing',
    'unprepareVAN() succeeds if prepareVAN() did not choose a handle',
)
UNDO_TWICE = _UNDO.rule(
    'undo-twice', 'unprepareVAN() succeeds if the undo was done already'
)
UNDO_GONE = _UNDO.rule(
    'undo-gone', 'unprepareVAN() succeeds if the device is gone'
)
UNDO_STALE = _UNDO.rule(
    'undo-stale',
    'unprepareVAN() leaves alone a device that belongs to another VAN now',
)
UNDO_LOCKED = _UNDO.rule(
    'undo-locked',
    'no other VAN gets the device between the time when unprepareVAN() '
    'checks who has it and the time when unprepareVAN() has returned it',
)
BUSY = _UNDO.rule(
    'busy',
    'unprepareVAN() raises DeviceBusy, and changes nothing, while a guest '
    'has the device open',
)

_LOCK = _Section('driver.rst', 'Lock a device')
OTHERS = _LOCK.rule(
    'others',
    'prepareVAN() and unprepareVAN() of a VAN leave the devices of other '
    'VANs as they are',
)
ONE_VAN = _LOCK.rule(
    'one-van',
    'if many callers ask at the same time, each handle goes to one of them; '
    'the others get an error of os_acc.exception',
)
NO_STATE = _LOCK.rule(
    'no-state',
    'a driver keeps no state: another process, with another driver object, '
    'can do the undo',
)

CLEAN = _Section('driver.rst', 'Clean a device').rule(
    'clean',
    'cleaning_command runs once the device is closed; if it fails, the VAN '
    'keeps the device in state error; a driver that does not set cleans is '
    'refused',
)

DEADLINE = _Section('driver.rst', 'Report progress and set deadlines').rule(
    'deadline',
    'each call of a driver returns: it waits for nothing without a deadline',
)

_LIST = _Section('driver.rst', 'List devices')
DEVICES = _LIST.rule('devices', 'get_devices() describes each device as it is')
NEXT_DEVICE = _LIST.rule(
    'next-device',
    'a device that has failed is listed, and prepareVAN() takes another one '
    'that is free',
)
DEVICES_LOOK = _LIST.rule('devices-look-only', 'get_devices() changes nothing')

DESCRIBE = _Section('plugin.rst', 'Describe').rule(
    'describe', 'describe() names the handle classes that plug() takes'
)

_PLUG = _Section('plugin.rst', 'Plug')
CONFIG = _PLUG.rule(
    'guest-config',
    'plug() makes guest_config from the VAN and the options alone, the same '
    'each time',
)
CONFIG_DIFFERS = _PLUG.rule(
    'guest-config-differs',
    'plug() gives a different result for another handle',
)

_UNPLUG = _Section('plugin.rst', 'Undo a half-done plug')
DETACH = _UNPLUG.rule('unplug', 'unplug() leaves nothing of the VAN behind')
DETACH_NOTHING = _UNPLUG.rule(
    'unplug-nothing', 'unplug() succeeds if the VAN was never plugged'
)
DETACH_TWICE = _UNPLUG.rule(
    'unplug-twice', 'unplug() succeeds if the VAN is already unplugged'
)
DETACH_HALF = _UNPLUG.rule(
    'unplug-half-done',
    'after a kill at any point, unplug() in a new process leaves nothing '
    'behind, and succeeds only if the guest does not have the device',
)
GUEST_ENDED = _UNPLUG.rule(
    'guest-ended', 'a live unplug() succeeds if the guest has ended since'
)

_LIVE = _Section('plugin.rst', 'Live')
ATTACH = _LIVE.rule(
    'attach',
    'a live plug() attaches the device to the guest that runs, and a live '
    'unplug() detaches it',
)
ATTACH_TWICE = _LIVE.rule(
    'plug-twice', 'a live plug() of a device that is already attached succeeds'
)
LIVE_ONLY = _LIVE.rule(
    'live-only',
    'with live=False, plug() attaches nothing to a guest that runs',
)
RELEASE = _LIVE.rule(
    'release',
    'a live unplug() raises an error if the guest still has the device when '
    'the deadline has passed',
)
PLUGIN_DEADLINE = _LIVE.rule(
    'plugin-deadline',
    'each call of a plugin returns: it waits for nothing without a deadline',
)

_GUEST = _Section('plugin.rst', 'Say whether a guest exists')
HAS_GUEST = _GUEST.rule(
    'has-guest',
    'has_guest() is not False if the instance has a guest, and not True if '
    'it has none',
)
RUNS_GUEST = _GUEST.rule(
    'runs-guest',
    'runs_guest() is not False while the guest of the instance runs, and not '
    'True if it does not',
)
NO_ANSWER = _GUEST.rule(
    'no-answer',
    'if the hypervisor does not answer, has_guest() does not say that there '
    'is no guest, runs_guest() says nothing, and a live unplug() raises an '
    'error',
)

RESTORE = _Section('plugin.rst', 'After a reboot of the host').rule(
    'restore',
    'restore() does the instance half again, and is_intact() says so',
)

_MOVING = _Section('plugin.rst', 'Live migration')
MOVES_LIVE = _MOVING.rule(
    'migration-map',
    'migration_map() names for each VAN what the definition says on the '
    'source and on the target, the same each time, or is None',
)
MOVES_OWN = _MOVING.rule(
    'migration-map-fits',
    'migration_map() refuses VANs that do not belong together by an error of '
    'os_acc.exception',
)
REDEFINE = _MOVING.rule(
    'redefine',
    'redefine() changes what the map names and nothing else, and applying it '
    'twice gives the same',
)

PLUGIN_LOOKS = _Section('plugin.rst', 'The contract').rule(
    'looks-only',
    'describe(), is_intact(), has_guest(), migration_map(), redefine(), '
    'diagnose() and leftovers() change nothing',
)

ALL = tuple(each for each in list(globals().values()) if type(each) is Rule)


def difference(before: Any, after: Any) -> str:
    """Say how two states of the hardware differ, line by line."""
    texts = [pprint.pformat(each, width=79) for each in (before, after)]
    lines = difflib.unified_diff(
        texts[0].splitlines(),
        texts[1].splitlines(),
        'look() before',
        'look() after',
        lineterm='',
        n=1,
    )
    return '\n'.join(lines)

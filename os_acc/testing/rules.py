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


def _of_drivers(name: str, heading: str, text: str) -> Rule:
    return Rule(name, 'driver.rst', heading, text)


def _of_plugins(name: str, heading: str, text: str) -> Rule:
    return Rule(name, 'plugin.rst', heading, text)


CLAIM = _of_drivers(
    'claim',
    'Claim a request',
    'can_handle() returns True for a request that the driver serves',
)
CLAIM_LOOKS = _of_drivers(
    'claim-looks-only',
    'Claim a request',
    'can_handle() changes nothing',
)
REFUSE = _of_drivers(
    'refuse',
    'Claim a request',
    'prepareVAN() refuses a request for what the driver does not have with an '
    'error of os_acc.exception, even if the request names the driver',
)
REFUSE_LOOKS = _of_drivers(
    'refuse-untouched',
    'Claim a request',
    'a request that prepareVAN() refuses leaves the hardware as it was',
)
HANDLE_TYPES = _of_drivers(
    'handle-types',
    'The contract',
    'handle_types names the class of each handle that the driver makes',
)
SERVE = _of_drivers(
    'serve',
    'Save before you touch the device',
    'prepareVAN() sets a handle and prepares the device',
)
SAVE_FIRST = _of_drivers(
    'save-first',
    'Save before you touch the device',
    'van.save() writes all that the undo needs before the first change of the '
    'device',
)
SAME_HANDLE = _of_drivers(
    'same-handle',
    'Prepare again after a reboot',
    'a second prepareVAN() for a VAN prepares the same handle',
)
AS_FOUND = _of_drivers(
    'as-found',
    'Prepare again after a reboot',
    'a second prepareVAN() keeps the values in driver_data that describe the '
    'device as the first one found it',
)
NUMBERS = _of_drivers(
    'device-numbers',
    'Prepare again after a reboot',
    'a DeviceFileHandle has the types and the numbers that its files have in '
    'this boot of the host',
)
INTACT = _of_drivers(
    'intact',
    'Say whether a device is intact',
    'is_intact() is True if and only if the device is as prepareVAN() has '
    'left it',
)
INTACT_LOOKS = _of_drivers(
    'intact-looks-only',
    'Say whether a device is intact',
    'is_intact() changes nothing',
)
UNDO = _of_drivers(
    'undo',
    'Undo a half-done preparation',
    'unprepareVAN() restores the state in which prepareVAN() found the device',
)
UNDO_HALF = _of_drivers(
    'undo-half-done',
    'Undo a half-done preparation',
    'after a kill at any point, unprepareVAN() in a new process leaves '
    'nothing behind',
)
UNDO_NOTHING = _of_drivers(
    'undo-nothing',
    'Undo a half-done preparation',
    'unprepareVAN() succeeds if prepareVAN() did not choose a handle',
)
UNDO_TWICE = _of_drivers(
    'undo-twice',
    'Undo a half-done preparation',
    'unprepareVAN() succeeds if the undo was done already',
)
UNDO_GONE = _of_drivers(
    'undo-gone',
    'Undo a half-done preparation',
    'unprepareVAN() succeeds if the device is gone',
)
UNDO_STALE = _of_drivers(
    'undo-stale',
    'Undo a half-done preparation',
    'unprepareVAN() leaves alone a device that belongs to another VAN now',
)
OTHERS = _of_drivers(
    'others',
    'Lock a device',
    'prepareVAN() and unprepareVAN() of a VAN leave the devices of other VANs '
    'as they are',
)
UNDO_LOCKED = _of_drivers(
    'undo-locked',
    'Undo a half-done preparation',
    'no other VAN gets the device between the time when unprepareVAN() checks '
    'who has it and the time when unprepareVAN() has returned it',
)
BUSY = _of_drivers(
    'busy',
    'Undo a half-done preparation',
    'unprepareVAN() raises DeviceBusy, and changes nothing, while a guest has '
    'the device open',
)
CLEAN = _of_drivers(
    'clean',
    'Clean a device',
    'cleaning_command runs once the device is closed; if it fails, the VAN '
    'keeps the device in state error; a driver that does not set cleans is '
    'refused',
)
DEADLINE = _of_drivers(
    'deadline',
    'Report progress and set deadlines',
    'each call of a driver returns: it waits for nothing without a deadline',
)
ONE_VAN = _of_drivers(
    'one-van',
    'Lock a device',
    'if many callers ask at the same time, each handle goes to one of them; '
    'the others get an error of os_acc.exception',
)
NO_STATE = _of_drivers(
    'no-state',
    'Lock a device',
    'a driver keeps no state: another process, with another driver object, '
    'can do the undo',
)
DEVICES = _of_drivers(
    'devices',
    'List devices',
    'get_devices() describes each device as it is',
)
NEXT_DEVICE = _of_drivers(
    'next-device',
    'List devices',
    'a device that has failed is listed, and prepareVAN() takes another one '
    'that is free',
)
DEVICES_LOOK = _of_drivers(
    'devices-look-only',
    'List devices',
    'get_devices() changes nothing',
)

DESCRIBE = _of_plugins(
    'describe',
    'Describe',
    'describe() names the handle classes that plug() takes',
)
CONFIG = _of_plugins(
    'guest-config',
    'Plug',
    'plug() makes guest_config from the VAN and the options alone, the same '
    'each time',
)
CONFIG_DIFFERS = _of_plugins(
    'guest-config-differs',
    'Plug',
    'plug() gives a different result for another handle',
)
DETACH = _of_plugins(
    'unplug',
    'Undo a half-done plug',
    'unplug() leaves nothing of the VAN behind',
)
DETACH_NOTHING = _of_plugins(
    'unplug-nothing',
    'Undo a half-done plug',
    'unplug() succeeds if the VAN was never plugged',
)
DETACH_TWICE = _of_plugins(
    'unplug-twice',
    'Undo a half-done plug',
    'unplug() succeeds if the VAN is already unplugged',
)
DETACH_HALF = _of_plugins(
    'unplug-half-done',
    'Undo a half-done plug',
    'after a kill at any point, unplug() in a new process leaves nothing '
    'behind, and succeeds only if the guest does not have the device',
)
GUEST_ENDED = _of_plugins(
    'guest-ended',
    'Undo a half-done plug',
    'a live unplug() succeeds if the guest has ended since',
)
ATTACH = _of_plugins(
    'attach',
    'Live',
    'a live plug() attaches the device to the guest that runs, and a live '
    'unplug() detaches it',
)
ATTACH_TWICE = _of_plugins(
    'plug-twice',
    'Live',
    'a live plug() of a device that is already attached succeeds',
)
LIVE_ONLY = _of_plugins(
    'live-only',
    'Live',
    'with live=False, plug() attaches nothing to a guest that runs',
)
RELEASE = _of_plugins(
    'release',
    'Live',
    'a live unplug() raises an error if the guest still has the device when '
    'the deadline has passed',
)
PLUGIN_DEADLINE = _of_plugins(
    'plugin-deadline',
    'Live',
    'each call of a plugin returns: it waits for nothing without a deadline',
)
HAS_GUEST = _of_plugins(
    'has-guest',
    'Say whether a guest exists',
    'has_guest() is not False if the instance has a guest, and not True if it '
    'has none',
)
RUNS_GUEST = _of_plugins(
    'runs-guest',
    'Say whether a guest exists',
    'runs_guest() is not False while the guest of the instance runs, and not '
    'True if it does not',
)
NO_ANSWER = _of_plugins(
    'no-answer',
    'Say whether a guest exists',
    'if the hypervisor does not answer, has_guest() does not say that there '
    'is no guest, runs_guest() says nothing, and a live unplug() raises an '
    'error',
)
RESTORE = _of_plugins(
    'restore',
    'After a reboot of the host',
    'restore() does the instance half again, and is_intact() says so',
)
MOVES_LIVE = _of_plugins(
    'migration-map',
    'Live migration',
    'migration_map() names for each VAN what the definition says on the '
    'source and on the target, the same each time, or is None',
)
MOVES_OWN = _of_plugins(
    'migration-map-fits',
    'Live migration',
    'migration_map() refuses VANs that do not belong together by an error of '
    'os_acc.exception',
)
REDEFINE = _of_plugins(
    'redefine',
    'Live migration',
    'redefine() changes what the map names and nothing else, and applying it '
    'twice gives the same',
)
PLUGIN_LOOKS = _of_plugins(
    'looks-only',
    'The contract',
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

# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Every error that os-acc raises on purpose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from os_acc.i18n import _


class ExceptionBase(Exception):
    """Base of all: a subclass has a msg_fmt, filled from the keywords.

    :param message: replaces the formatted text
    :param kwargs: what msg_fmt names; kept in ``.kwargs``
    """

    msg_fmt = _('An unknown exception occurred.')

    def __init__(self, message: str | None = None, **kwargs: Any) -> None:
        self.kwargs = kwargs
        if message is None:
            try:
                message = self.msg_fmt % kwargs
            except (KeyError, TypeError, ValueError):
                # A wrong keyword must not hide the error itself.
                message = f'{self.msg_fmt} {kwargs}'
        self.message = message
        super().__init__(message)

    def format_message(self) -> str:
        return self.message


class LibraryNotInitialized(ExceptionBase):
    msg_fmt = _(
        'Before using the os_acc library, you need to call os_acc.initialize()'
    )


class InvalidRequest(ExceptionBase, ValueError):
    """A value from outside is wrong. A ValueError too, as setters raise."""

    msg_fmt = _(
        '%(subject)s: %(field)s is %(value).300r, expected %(expected)s'
    )


class ARQNotBound(InvalidRequest):
    msg_fmt = _(
        '%(subject)s: %(field)s is %(value).300r, expected %(expected)s; only '
        'a bound ARQ has an attach handle'
    )


class NoMatchingDriver(ExceptionBase):
    msg_fmt = _('No driver for %(request)s: %(reason)s')


class AmbiguousDriver(ExceptionBase):
    msg_fmt = _(
        'More than one driver claims %(request)s: %(drivers)s. Order them in '
        '[os_acc] drivers, or name one in the request'
    )


class NoMatchingPlugin(ExceptionBase):
    msg_fmt = _('No plugin %(plugin)r is loaded: %(reason)s')


class UnsupportedHandle(ExceptionBase):
    msg_fmt = _('%(taker)s does not take %(handle)s; it takes: %(takes)s')


class UnsupportedHandleVersion(UnsupportedHandle):
    msg_fmt = _(
        '%(handle)s: version %(got)s is not between %(min_version)s and '
        '%(max_version)s'
    )


class HandleMissing(ExceptionBase):
    msg_fmt = _(
        'Driver %(driver)r returned from prepareVAN without an attach handle'
    )


class FunctionMissing(ExceptionBase):
    msg_fmt = _(
        'Driver %(driver)r returned from prepareVAN without function '
        '%(function)s'
    )


class HandleChanged(ExceptionBase):
    msg_fmt = _(
        'Driver %(driver)r prepared %(new)s again where it was %(old)s'
    )


class LiveNotSupported(ExceptionBase):
    msg_fmt = _(
        'Plugin %(plugin)r cannot attach to or detach from a running guest '
        'yet; call with live=False while the guest is not running'
    )


class DeviceNotFound(ExceptionBase):
    msg_fmt = _('No device for %(wanted)s: %(reason)s')


class DeviceBusy(ExceptionBase):
    """A device is in use by somebody else.

    :param device: what is busy
    :param reason: a whole clause, such as 'it has 2 VFs'
    :param holder: in place of reason: who has it
    """

    msg_fmt = _('%(device)s is busy: %(reason)s')

    def __init__(
        self,
        message: str | None = None,
        holder: str | None = None,
        **kwargs: Any,
    ) -> None:
        if holder is not None:
            kwargs['holder'] = holder
            kwargs.setdefault('reason', f'{holder} has it')
        super().__init__(message, **kwargs)


class DeviceInUseByHost(ExceptionBase):
    msg_fmt = _('%(device)s is in use by this host: %(by)s')


class DiscoveryFailed(ExceptionBase):
    """Some driver could not list its devices.

    :ivar devices: what the other drivers found
    """

    msg_fmt = _('Discovery failed: %(errors)s')

    def __init__(self, devices: Sequence[Any] = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.devices = list(devices)


class DeviceError(ExceptionBase):
    """A device, or the kernel for it, did not do what it was asked."""

    msg_fmt = _('%(device)s: %(reason)s')


class CleaningFailed(DeviceError):
    """It is not clean: nobody else may have it before it is."""


class BitstreamError(ExceptionBase):
    """A bitstream is not to be had, or is not what it should be."""

    msg_fmt = _('Bitstream %(bitstream)s: %(reason)s')


class PrivilegeError(ExceptionBase):
    """What has to be done as root cannot be."""

    msg_fmt = _('Cannot act as root: %(reason)s')


class HelperError(ExceptionBase):
    """The process in which Cyborg's drivers run did not do what it was to."""

    msg_fmt = _("Cyborg's drivers, run by %(python)s: %(reason)s")


class Timeout(ExceptionBase):
    msg_fmt = _('Waited %(seconds)g s for %(what)s')


class HypervisorError(ExceptionBase):
    """The hypervisor's management said no, or did not answer."""

    msg_fmt = _('%(what)s: %(reason)s')


class JournalError(ExceptionBase):
    msg_fmt = _('Journal %(path)s: %(reason)s')


class JournalMissing(JournalError):
    """There is no journal yet: nothing was ever plugged there."""


class JournalUnreadable(JournalError):
    """A row cannot be read, such as one of a package that was removed."""


class ReadOnly(ExceptionBase):
    """initialize(read_only=True) was called: nothing may be changed."""

    msg_fmt = _(
        '%(call)s changes devices, and this process called '
        'os_acc.initialize(read_only=True)'
    )


class JournalBusy(JournalError, Timeout):
    """Another process was writing to the journal for too long.

    :ivar seconds: how long this one has waited
    """

    msg_fmt = _(
        'Journal %(path)s: waited %(seconds)g s for another writer to finish'
    )


class LockHeld(ExceptionBase, RuntimeError):
    """A thread wants a lock that it holds already: an error in the code."""

    msg_fmt = _(
        'This thread already holds the lock of %(kind)s %(name)s, and cannot '
        'take it again before it has released it'
    )


class StepFailed(ExceptionBase):
    """A driver's or plugin's step on one VAN failed; its cause says how."""

    msg_fmt = _('VAN %(van)s: %(step)s of %(actor)s failed: %(err)s')


class AttachException(ExceptionBase):
    """What plug and unplug raise from their second step on.

    :ivar undo_errors: a StepFailed (or JournalError) for each thing that is
        not undone; those VANs stay in the journal and recover() retries
    """

    def __init__(
        self,
        message: str | None = None,
        undo_errors: Sequence[ExceptionBase] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(message, **kwargs)
        self.undo_errors = list(undo_errors)
        if self.undo_errors:
            text = '; '.join(str(error) for error in self.undo_errors)
            self.message += _(' (not undone: %s)') % text
            self.args = (self.message,)


class PlugException(AttachException):
    msg_fmt = _(
        'Failed to plug the accelerators of instance %(instance)s: %(err)s'
    )


class UnplugException(AttachException):
    msg_fmt = _(
        'Failed to unplug the accelerators of instance %(instance)s: %(err)s'
    )


def describe(err: BaseException) -> str:
    """One line for a person: our own errors speak for themselves."""
    if isinstance(err, ExceptionBase):
        return str(err)
    name = type(err).__name__
    try:
        text = ' '.join(str(err).split())
    except Exception as broken:
        # A driver's error must not hide itself, or stop an undo.
        text = f'(no text: its __str__ raised {type(broken).__name__})'
    return f'{name}: {text}' if text else name

# SPDX-License-Identifier: Apache-2.0

"""The errors that os-acc raises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from os_acc.texts import masking


class ExceptionBase(Exception):
    """Base class of all os-acc errors.

    A subclass sets ``msg_fmt``. The text of the error is ``msg_fmt``, filled
    with the keyword arguments. It is always a plain ``str`` that can be
    encoded in UTF-8.

    :param message: the text to use instead of the formatted msg_fmt
    :param kwargs: the values that msg_fmt names; kept in ``.kwargs``
    """

    msg_fmt = 'An unknown exception occurred.'

    def __init__(self, message: str | None = None, **kwargs: Any) -> None:
        self.kwargs = kwargs
        if message is None:
            try:
                # str(): another distribution's msg_fmt may be a Message of
                # oslo.i18n, which cannot be added to another text.
                message = str(self.msg_fmt) % kwargs
            except (KeyError, TypeError, ValueError):
                # A wrong keyword must not hide the error itself.
                message = f'{self.msg_fmt} {kwargs}'
        self.message = _plain(message)
        super().__init__(self.message)

    def format_message(self) -> str:
        return self.message


class LibraryNotInitialized(ExceptionBase):
    msg_fmt = (
        'Before using the os_acc library, you need to call os_acc.initialize()'
    )


class InvalidRequest(ExceptionBase, ValueError):
    """A value that the caller or the operator gave is invalid.

    It is a ValueError too, because the setter of a field raises it.
    """

    msg_fmt = '%(subject)s: %(field)s is %(value).300r, expected %(expected)s'

    def __init__(self, message: str | None = None, **kwargs: Any) -> None:
        super().__init__(message, **kwargs)
        value = kwargs.get('value')
        if message is None and isinstance(value, str | dict | list | tuple):
            # A malformed entry of device_spec may have a password in it.
            hidden = masking.of_field(str(kwargs.get('field')), value)
            if masking.MASK in repr(hidden):
                super().__init__(**{**kwargs, 'value': hidden})
                self.kwargs = kwargs


class ARQNotBound(InvalidRequest):
    msg_fmt = (
        '%(subject)s: %(field)s is %(value).300r, expected %(expected)s; only '
        'a bound ARQ has an attach handle'
    )


class NoMatchingDriver(ExceptionBase):
    msg_fmt = 'No driver for %(request)s: %(reason)s'


class AmbiguousDriver(ExceptionBase):
    msg_fmt = (
        'More than one driver claims %(request)s: %(drivers)s. Order them in '
        '[os_acc] drivers, or name one in the request'
    )


class NoMatchingPlugin(ExceptionBase):
    msg_fmt = 'Plugin %(plugin)r is unavailable: %(reason)s'


class UnsupportedHandle(ExceptionBase):
    msg_fmt = '%(taker)s does not accept %(handle)s; it accepts: %(takes)s'


class UnsupportedHandleVersion(UnsupportedHandle):
    msg_fmt = (
        '%(handle)s: version %(got)s is not between %(min_version)s and '
        '%(max_version)s'
    )


class HandleMissing(ExceptionBase):
    msg_fmt = (
        'Driver %(driver)r returned from prepareVAN without an attach handle'
    )


class FunctionMissing(ExceptionBase):
    msg_fmt = (
        'Driver %(driver)r returned from prepareVAN without function '
        '%(function)s'
    )


class HandleChanged(ExceptionBase):
    msg_fmt = (
        'Driver %(driver)r prepared %(new)s instead of the earlier handle '
        '%(old)s'
    )


class LiveNotSupported(ExceptionBase):
    msg_fmt = (
        'Plugin %(plugin)r cannot attach devices to a running guest or detach '
        'them; call with live=False while the guest is not running'
    )


class DeviceNotFound(ExceptionBase):
    msg_fmt = 'No device for %(wanted)s: %(reason)s'


class DeviceBusy(ExceptionBase):
    """A device is in use.

    :param device: the device that is busy
    :param reason: a whole clause that says why, such as 'it has 2 VFs'
    :param holder: the user of the device, as a noun; without a reason, the
        reason becomes '<holder> has it'
    """

    msg_fmt = '%(device)s is busy: %(reason)s'

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
    msg_fmt = '%(device)s is in use by this host: %(by)s'


class DiscoveryFailed(ExceptionBase):
    """At least one driver could not list its devices.

    :ivar devices: the devices that the other drivers found
    """

    msg_fmt = 'Discovery failed: %(errors)s'

    def __init__(self, devices: Sequence[Any] = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.devices = list(devices)


class DeviceError(ExceptionBase):
    """An operation on a device failed, in the device or in the kernel."""

    msg_fmt = '%(device)s: %(reason)s'


class DeviceUnhealthy(DeviceError):
    """The device has failed, and nobody gets it until an operator frees it.

    It is also raised for a device that needs a power cycle of the host.
    """


class CleaningFailed(DeviceError):
    """A device still holds data of its last user.

    No other instance gets the device until it is clean.
    """


class BitstreamError(ExceptionBase):
    """A bitstream is unavailable, or its content is wrong."""

    msg_fmt = 'Bitstream %(bitstream)s: %(reason)s'


class PrivilegeError(ExceptionBase):
    """An operation that needs root privileges cannot be run."""

    msg_fmt = 'Privileged operation failed: %(reason)s'


class HelperError(ExceptionBase):
    """The process that runs Cyborg's drivers failed."""

    msg_fmt = "Cyborg's drivers, run by %(python)s: %(reason)s"


class MissingPackage(ExceptionBase):
    """A package that an extra of os-acc installs is missing."""

    msg_fmt = (
        '%(what)s needs the package %(package)s, which is not installed: pip '
        "install 'os-acc[%(extra)s]'"
    )


class RemoteServiceError(ExceptionBase):
    """An OpenStack service could not be reached, or refused a call."""

    msg_fmt = 'The service %(service)s: %(reason)s'


class Timeout(ExceptionBase):
    msg_fmt = 'Waited %(seconds)g s for %(what)s'


class LockTimeout(Timeout):
    """Somebody else held the lock of an instance or a device for too long."""


class HypervisorError(ExceptionBase):
    """The hypervisor's management API refused a call, or did not answer."""

    msg_fmt = '%(what)s: %(reason)s'


class JournalError(ExceptionBase):
    msg_fmt = 'Journal %(path)s: %(reason)s'


class JournalMissing(JournalError):
    """There is no journal in state_path.

    Normally this means that os-acc has not plugged anything yet.
    """


class JournalUnreadable(JournalError):
    """A row of the journal cannot be read.

    For example, the package of the VAN's handle class was removed.
    """


class ReadOnly(ExceptionBase):
    """initialize(read_only=True) was called: nothing may be changed."""

    msg_fmt = (
        '%(call)s changes devices, and this process called '
        'os_acc.initialize(read_only=True)'
    )


class JournalBusy(JournalError, Timeout):
    """Another process was writing to the journal for too long.

    :ivar seconds: how long this process has waited
    """

    msg_fmt = (
        'Journal %(path)s: waited %(seconds)g s for another writer to finish'
    )


class LockHeld(ExceptionBase, RuntimeError):
    """A thread tries to take a lock that it already holds.

    This is a bug in the caller, such as a driver.
    """

    msg_fmt = (
        'This thread already holds the lock of %(kind)s %(name)s; it must '
        'release the lock before it takes it again'
    )


class StepFailed(ExceptionBase):
    """A driver or plugin failed in one step of one VAN.

    Its ``__cause__`` is the error that the driver or plugin raised.
    """

    msg_fmt = 'VAN %(van)s: %(step)s of %(actor)s failed: %(err)s'


class MigrationConflict(ExceptionBase):
    """The state of a migration on this host does not allow a call."""

    msg_fmt = 'Migration of instance %(instance)s: %(reason)s'


class AttachException(ExceptionBase):
    """Base class of the errors that plug and unplug raise after the checks.

    :ivar undo_errors: one StepFailed or JournalError for each undo that
        failed. These VANs stay in the journal, and recover() tries again
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
            self.message += _plain(f' (not undone: {text})')
            self.args = (self.message,)


class PlugException(AttachException):
    msg_fmt = (
        'Failed to plug the accelerators of instance %(instance)s: %(err)s'
    )


class UnplugException(AttachException):
    msg_fmt = (
        'Failed to unplug the accelerators of instance %(instance)s: %(err)s'
    )


def describe(err: BaseException) -> str:
    """Describe any error in a short text, for a log line or another error.

    It never raises: an error without a readable text must not stop an undo.
    In an error of another library, what looks like a secret is masked: a
    library may put a URL with a password into its errors.

    :returns: the text of an os-acc error, or 'Class: text' for any other
        error; it can be encoded in UTF-8
    """
    name = type(err).__name__
    try:
        text = described(err)
    except Exception as broken:
        return f'{name}: (no text: its __str__ raised {type(broken).__name__})'
    if isinstance(err, ExceptionBase):
        return text
    return f'{name}: {text}' if text else name


def described(err: BaseException) -> str:
    """The text of an error without the name of its class.

    :raises Exception: whatever its __str__ raises
    """
    text = _plain(str(err))
    if isinstance(err, ExceptionBase):
        return text
    text = ' '.join(text.split())
    return masking.of_error(masking.without_value(err, text))


def _plain(text: str) -> str:
    """Return a text as a plain str, with each lone surrogate escaped.

    Python uses lone surrogates for the bytes of file names that are not
    UTF-8. SQLite and most streams refuse them.
    """
    return str(text).encode('utf-8', 'backslashreplace').decode('utf-8')

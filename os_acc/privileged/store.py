# SPDX-License-Identifier: Apache-2.0

"""The one store of what root keeps on disk about devices.

Each file is JSON about one device. A kind of file declares a frozen dataclass,
and reads and writes its objects: see Store. The notes are such files (see
held), and so is the record of what is to be undone (see record).
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import functools
import json
import logging
import typing
from typing import Annotated
from typing import Any
from typing import Generic
from typing import TypeVar

from os_acc import exception
from os_acc.privileged import root_files

_T = TypeVar('_T')
_S = TypeVar('_S', bound='Said')

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Said:
    """What a file says: the base of the dataclasses.

    A field is the key of its name. Its default stands for a key that is not
    there; without a default, the file is then damaged. The value has to be of
    the type of the field. ``Annotated[type, reader]`` names a function that
    makes the value instead, and raises TypeError, ValueError or InvalidRequest
    if it cannot. Other keys are left alone.
    """

    @classmethod
    def of(cls: type[_S], values: Any) -> _S:
        """Read the JSON object of a file.

        :raises TypeError, ValueError, InvalidRequest: if it is damaged
        """
        if not isinstance(values, dict):
            raise TypeError(f'{values!r} is not a JSON object')
        return cls(
            **{
                name: read(values[name])
                for name, read in _readers(cls).items()
                if name in values
            }
        )


def _readers(kind: type[Said]) -> dict[str, Callable[[Any], Any]]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {
        field.name: hint.__metadata__[0]
        if typing.get_origin(hint) is Annotated
        else functools.partial(_checked, hint)
        for field in dataclasses.fields(kind)
        for hint in (hints[field.name],)
    }


def _checked(hint: Any, value: Any) -> Any:
    if not isinstance(value, hint):
        raise TypeError(f'{value!r} is not of the type {hint}')
    return value


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(str(each) for each in _checked(list, value))


def _numbers(value: Any) -> tuple[int, ...]:
    return tuple(_checked(int, each) for each in _checked(list, value))


#: Types of fields. What is not true is no flag that is set.
Flag = Annotated[bool, lambda value: value is True]
Texts = Annotated[tuple[str, ...], _texts]
Numbers = Annotated[tuple[int, ...], _numbers]

#: What a reader raises if a file is damaged.
MALFORMED = (LookupError, TypeError, ValueError, exception.InvalidRequest)


def damaged(path: str, label: str, why: Exception) -> exception.PrivilegeError:
    """The error of a file that is damaged.

    :param label: what it is: a note, a record
    """
    return exception.PrivilegeError(
        reason=f'the {label} {path} cannot be read ({exception.describe(why)})'
        '; it was changed by hand or written by another version of os-acc'
    )


class Store(Generic[_T]):
    """Files of one kind, by their names.

    :param files: the folder
    :param read: makes the object of what JSON has; None: there is none. It
        may raise LookupError, TypeError, ValueError or InvalidRequest
    :param values: makes of the object what JSON has; it can leave a dataclass
        as it is
    :param label: what errors call a file
    :param damaged: stands for a file that is damaged; None: to read it is an
        error
    """

    def __init__(
        self,
        files: root_files.RootFiles,
        read: Callable[[Any], _T | None],
        values: Callable[[_T], Any] = lambda value: value,
        label: str = 'note',
        damaged: _T | None = None,
    ) -> None:
        self._files = files
        self._read = read
        self._values = values
        self._label = label
        self._damaged = damaged

    def names(self) -> list[str]:
        """The names of all files of the folder."""
        return self._files.names()

    def read(self, name: str) -> _T | None:
        """Read a file; None if there is none.

        :raises PrivilegeError: if it cannot be read or trusted, or is damaged
            and nothing stands for it
        """
        if (text := self._files.read(name)) is None:
            return None
        try:
            return self._read(json.loads(text))
        except MALFORMED as err:
            failure = damaged(self._files.path(name), self._label, err)
            if self._damaged is None:
                raise failure from err
            LOG.warning('%s', failure)
            return self._damaged

    def write(self, name: str, value: _T) -> None:
        """Write a file, in one step, before the device is touched.

        :raises PrivilegeError: if it cannot be written
        """
        self._files.write(name, self._text(value))

    def keep(self, name: str, value: _T) -> None:
        """Write a file, unless it says that already."""
        if self._files.read(name) != self._text(value):
            self.write(name, value)

    def _text(self, value: _T) -> str:
        return json.dumps(self._values(value), default=dataclasses.asdict)

    def delete(self, name: str) -> None:
        """Delete a file, if there is one.

        :raises PrivilegeError: if it cannot be deleted
        """
        self._files.delete(name)

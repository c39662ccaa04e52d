# SPDX-License-Identifier: Apache-2.0

"""The one store of what root keeps on disk about devices.

Each file is JSON about one device. A kind of file declares a frozen dataclass
of what it says, and reads and writes its objects: see Store. The notes are
such files (see notes), and so is the record of what is to be undone (see
undo_log).
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import json
import logging
import typing
from typing import Annotated
from typing import Any
from typing import Generic
from typing import TypeVar

from os_acc import exception
from os_acc.privileged import root_folder

_T = TypeVar('_T')
_S = TypeVar('_S', bound='Said')

LOG = logging.getLogger(__name__)

#: The type of a flag. Any value in the file other than true reads as False.
Flag = Annotated[bool, lambda value: value is True]


@dataclasses.dataclass(frozen=True)
class Said:
    """What a file says: the base of the dataclasses.

    The name of a field is its key in the file, and its value must have the
    type of the field. With ``Annotated[type, reader]``, the function reader
    makes the value instead. A field whose key is missing gets its default.
    Without a default, the file is then damaged. Other keys are left alone.
    """

    @classmethod
    def of(cls: type[_S], values: Any) -> _S:
        """Read the JSON object of a file; raises as Store.made."""
        hints = typing.get_type_hints(cls, include_extras=True)
        return cls(
            **{
                field.name: _read(hints[field.name], values[field.name])
                for field in dataclasses.fields(cls)
                if field.name in values
            }
        )


def _read(hint: Any, value: Any) -> Any:
    if typing.get_origin(hint) is Annotated:
        return hint.__metadata__[0](value)
    if not isinstance(value, hint):
        raise TypeError(f'{value!r} is not of the type {hint}')
    return value


@dataclasses.dataclass(eq=False)
class Store(Generic[_T]):
    """Files of one kind, by their names.

    :ivar files: the directory
    :ivar made: makes the object from the JSON value; None: there is none. It
        raises LookupError, TypeError, ValueError or InvalidRequest if the file
        is damaged
    :ivar values: makes a JSON value or a dataclass from the object
    :ivar label: what errors call a file
    :ivar damaged: stands for a file that is damaged; None: to read it is an
        error
    """

    files: root_folder.RootFiles
    made: Callable[[Any], _T | None]
    values: Callable[[_T], Any] = lambda value: value
    label: str = 'note'
    damaged: _T | None = None

    def names(self) -> list[str]:
        """The names of all files of the directory."""
        return self.files.names()

    def read(self, name: str) -> _T | None:
        """Read a file; None if there is none.

        :raises PrivilegeError: if it cannot be read or trusted, or is damaged
            and nothing stands for it
        """
        if (text := self.files.read(name)) is None:
            return None
        try:
            return self.made(json.loads(text))
        except (
            LookupError,
            TypeError,
            ValueError,
            exception.InvalidRequest,
        ) as err:
            failure = exception.PrivilegeError(
                reason=f'the {self.label} {self.files.path(name)} cannot be '
                f'read ({exception.describe(err)}); it was changed by hand or '
                'written by another version of os-acc'
            )
            if self.damaged is None:
                raise failure from err
            LOG.warning('%s', failure)
            return self.damaged

    def write(self, name: str, value: _T) -> None:
        """Write a file, in one step, before the device is touched."""
        self.files.write(name, self._text(value))

    def keep(self, name: str, value: _T) -> None:
        """Write a file, unless it says that already."""
        if self.files.read(name) != self._text(value):
            self.write(name, value)

    def _text(self, value: _T) -> str:
        return json.dumps(self.values(value), default=dataclasses.asdict)

    def delete(self, name: str) -> None:
        """Delete a file, if there is one."""
        self.files.delete(name)

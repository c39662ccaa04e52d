# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""The errors of the command itself, and the causes of an error."""

from __future__ import annotations

from collections.abc import Iterator

from os_acc import exception


class NotFound(exception.InvalidRequest):
    """There is no such VAN or instance in the journal."""


class NoSuchDevice(exception.DeviceNotFound):
    """This host has no device that could serve a request, free or not."""


def causes(err: BaseException) -> Iterator[BaseException]:
    """List an error and its causes, the root cause last."""
    found: BaseException | None = err
    while found is not None:
        yield found
        found = found.__cause__

# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""All refusals of devices, for the documentation."""

from __future__ import annotations

from os_acc.devices import file_refusals
from os_acc.devices import host_refusals
from os_acc.devices import idxd_refusals
from os_acc.devices import nvme_of_refusals
from os_acc.devices import nvme_refusals
from os_acc.devices import offer_refusals
from os_acc.devices import reasons
from os_acc.devices import refusals
from os_acc.devices import service_refusals
from os_acc.devices import vgpu_refusals

MODULES = (
    refusals,
    offer_refusals,
    host_refusals,
    nvme_refusals,
    service_refusals,
    vgpu_refusals,
    file_refusals,
    idxd_refusals,
    nvme_of_refusals,
)


def table() -> dict[reasons.Kind, list[reasons.Refusal]]:
    """All refusals, by kind."""
    every = [
        each
        for module in MODULES
        for each in vars(module).values()
        if isinstance(each, reasons.Refusal)
    ]
    return {
        kind: [each for each in every if each.kind is kind]
        for kind in reasons.Kind
    }

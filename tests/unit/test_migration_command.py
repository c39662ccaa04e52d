# SPDX-License-Identifier: Apache-2.0

"""os-acc migration list, check, finish and abort."""

from __future__ import annotations

import json
import uuid

import command
import pytest

import os_acc
from os_acc import migration
from os_acc import objects

NAME = 'guest-1'
MIGRATION = str(uuid.uuid4())

# SPDX-License-Identifier: Apache-2.0

"""The fixtures of all tests here."""

from __future__ import annotations

from node_fixtures import directory
from node_fixtures import kernel
from node_fixtures import node
from node_fixtures import server

__all__ = ['directory', 'kernel', 'node', 'server']

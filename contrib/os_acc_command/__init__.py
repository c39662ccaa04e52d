# SPDX-License-Identifier: Apache-2.0

"""The earlier place of the command's main(), for those who call it."""

from __future__ import annotations

from os_acc.cli.app import main

__all__ = ['main']

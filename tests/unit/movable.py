# SPDX-License-Identifier: Apache-2.0

"""A guest that can move to a host that answers, for os-acc migrate."""

from __future__ import annotations

import types

from os_acc.moving import remote


def install(monkeypatch, plugin, name, runs=True) -> None:
    """Let a plugin have the guest, and the other host too.

    :param plugin: its class
    :param name: its name
    """
    guest = types.SimpleNamespace(
        runs=runs, obstacles=lambda *_: [], shared_files=lambda *_: []
    )
    monkeypatch.setattr(plugin, 'guest_move', lambda *_: guest)
    answer = {'obstacles': [], 'plugins': [name], 'files': {}}
    monkeypatch.setattr(remote.Remote, 'call', lambda *_, **__: answer)

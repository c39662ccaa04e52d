# SPDX-License-Identifier: Apache-2.0

"""Words for a command that an operator may know from elsewhere."""

from __future__ import annotations

#: What to type, by a word that is not a command: an earlier name of it, or
#: the word that a similar program has.
WORDS = {
    'attach': ('plug',),
    'bundle': ('support',),
    'check': ('doctor', 'cyborg check'),
    'completion': ('complete',),
    'config': ('device spec', 'doctor'),
    'create': ('plug',),
    'delete': ('unplug', 'van forget'),
    'detach': ('unplug',),
    'devices': ('device list',),
    'discover': ('device list',),
    'exec': ('run',),
    'health': ('doctor',),
    'history': ('events',),
    'hosts': ('host show',),
    'info': ('host show',),
    'inspect': ('van show', 'device show'),
    'journal': ('van list', 'events'),
    'log': ('events',),
    'logs': ('events',),
    'ls': ('van list', 'device list'),
    'preview': ('plug --dry-run', 'unplug --dry-run'),
    'ps': ('van list',),
    'release': ('unplug', 'orphans --release'),
    'remove': ('unplug',),
    'report': ('support',),
    'rm': ('unplug', 'van forget'),
    'rollback': ('recover',),
    'start': ('run',),
    'state': ('van list',),
    'status': ('van list', 'doctor'),
    'stop': ('unplug',),
    'undo': ('recover',),
    'vans': ('van list',),
}


def commands(word: str) -> list[str]:
    """Return what to type instead of a word that is not a command."""
    return list(WORDS.get(word.lower(), ()))

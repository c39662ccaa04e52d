# SPDX-License-Identifier: Apache-2.0

"""The journal: this host's VANs and programmed functions, on disk."""

from os_acc.journal.codec import Entry
from os_acc.journal.codec import Holder
from os_acc.journal.codec import UnreadableRow
from os_acc.journal.journal import Journal

__all__ = ['Entry', 'Holder', 'Journal', 'UnreadableRow']

# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Host: what this process has of os-acc, put together once."""

from __future__ import annotations

from oslo_config import cfg

from os_acc import exception
from os_acc import journal as journal_module
from os_acc import loader
from os_acc import locking
from os_acc import opts


class Host:
    """The configuration, the drivers and plugins, the journal and the locks.

    initialize() makes one for the process. attach, recovery, discovery and
    doctor take it.

    :param conf: the configuration
    :param extensions: the drivers and plugins, which get connected to the
        journal and the locks
    :param journal: None if there is none yet, for looking only
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        extensions: loader.Extensions,
        journal: journal_module.Journal | None,
    ) -> None:
        self.conf = conf
        self.extensions = extensions
        self._journal = journal
        self.locks = locking.Locks(
            opts.lock_path(conf), conf.os_acc.lock_timeout
        )
        for driver in extensions.drivers.values():
            driver.connect(journal, self.locks)

    @classmethod
    def open(cls, conf: cfg.ConfigOpts) -> Host:
        """Load drivers and plugins, and open the journal.

        :raises InvalidRequest: an option is invalid
        :raises JournalError: the journal cannot be opened
        """
        extensions = loader.load_all()
        opts.check(conf, extensions.options())
        journal = journal_module.Journal(
            conf.os_acc.state_path, conf.os_acc.journal_timeout
        )
        return cls(conf, extensions, journal)

    @property
    def journal(self) -> journal_module.Journal:
        """The journal.

        :raises JournalMissing: there is none yet
        """
        if self._journal is None:
            raise exception.JournalMissing(
                path=self.conf.os_acc.state_path, reason='there is none'
            )
        return self._journal

    def close(self) -> None:
        """Close the journal."""
        if self._journal is not None:
            self._journal.close()

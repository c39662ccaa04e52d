# SPDX-License-Identifier: Apache-2.0

"""Host: the parts of os-acc that the calls of one process share."""

from __future__ import annotations

import contextlib
import os
import re
import sys

from oslo_config import cfg

from os_acc import exception
from os_acc import journal as journal_module
from os_acc import loader
from os_acc import locking
from os_acc import objects
from os_acc import opts
from os_acc.claims import holder
from os_acc.spec import device_spec
from os_acc.state import sharing


class Host:
    """The configuration, the drivers and plugins, the journal and the locks.

    initialize() makes one Host for the process. The modules attach,
    recovery, discovery and doctor take it as an argument.

    :param extensions: the drivers and plugins; the drivers get the journal
        and the locks
    :ivar read_only: True: this process creates and changes nothing
    :ivar owner: the owner of the VANs that this process plugs
    :ivar failed_steps: why steps of the document of os-acc apply have failed,
        by the part, the name and the desired value of the step
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        extensions: loader.Extensions,
        read_only: bool = False,
        owner: str | None = None,
    ) -> None:
        # Checks the name before anything is opened.
        self.owner = owner or program()
        objects.VAN.partial(owner=self.owner)
        self.conf = conf
        self.extensions = extensions
        self.read_only = read_only
        self.failed_steps: dict[tuple[str, str, str], str] = {}
        self.journal = journal_module.Journal(
            opts.value(conf, 'state_path'),
            conf.os_acc.journal_timeout,
            read_only,
            self.owner,
        )
        self.locks = locking.Locks(
            opts.lock_path(conf), conf.os_acc.lock_timeout
        )
        for driver in extensions.drivers.values():
            driver.connect(self.journal, self.locks)

    @classmethod
    def open(
        cls,
        conf: cfg.ConfigOpts,
        read_only: bool = False,
        owner: str | None = None,
    ) -> Host:
        """Load drivers and plugins, and open the journal.

        :param read_only: True: create and change nothing. A journal that does
            not exist then reads as empty.
        :param owner: the owner of the VANs that this process plugs; None: the
            name of the program
        """
        extensions = loader.load_all()
        opts.check(conf, extensions.options())
        if not read_only:
            check_owner(conf)
        return cls(conf, extensions, read_only, owner)

    def check_writable(self, call: str) -> None:
        """Check that this process may change something."""
        if self.read_only:
            raise exception.ReadOnly(call=call)

    def as_holder(self) -> holder.Holder:
        """Name this journal as the one for which privileged calls are made.

        :returns: its UUID and path, without an instance and a VAN
        """
        path = self.journal.path
        return holder.Holder(
            self.journal.identity(),
            # It is only shown to people, so it may be escaped.
            path if path.isprintable() else ascii(path),
        )

    def acting_for(self) -> contextlib.AbstractContextManager[None]:
        """Say that the privileged calls of a block are made for no VAN."""
        return holder.acting_for(self.as_holder())

    def offers_devices(self) -> bool:
        """Whether device_spec offers real devices."""
        try:
            return bool(device_spec.load(self.conf).entries)
        except exception.InvalidRequest:
            return False  # every call that needs the option raises this error

    def start_daemon(self) -> None:
        """Start the privileged daemon in a thread, if devices are offered."""
        if self.offers_devices():
            from os_acc.privileged import context

            context.start_in_background()

    def close(self) -> None:
        """Close the journal."""
        self.journal.close()


def program() -> str:
    """Make an owner from the name of this program, such as nova-compute."""
    name = os.path.basename(sys.argv[0] if sys.argv else '')
    return re.sub(r'[^A-Za-z0-9_.-]+', '-', name).strip('.-')[:64] or 'python'


def check_owner(conf: cfg.ConfigOpts) -> None:
    """Check that this process's user may use the journal's directory."""
    sharing.check(conf.os_acc.state_path)

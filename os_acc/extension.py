# SPDX-License-Identifier: Apache-2.0

"""The base of drivers and plugins: a name, options and their values."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import Any
from typing import ClassVar
from typing import Self

from oslo_config import cfg

from os_acc import opts

if TYPE_CHECKING:
    from os_acc import finding

CONF = cfg.CONF


class ExtensionBase:
    """Base of DriverBase and PluginBase.

    :param config: the values of the options in the group [os_acc_<name>]
    :ivar name: the name of its entry point; load() sets it after __init__()
    """

    #: oslo.config options, registered in the group [os_acc_<name>].
    CONFIG_OPTS: ClassVar[Sequence[cfg.Opt]] = ()

    def __init__(self, config: Any) -> None:
        self.config = config
        self.name = type(self).__name__

    @classmethod
    def load(cls, name: str) -> Self:
        """Register the options and make an instance.

        :param name: the name of the entry point
        :raises cfg.DuplicateOptError: if the group has another option of the
            same name
        """
        group = cfg.OptGroup(
            f'{opts.GROUP}_{name}', title=f'os-acc: options of {name}'
        )
        CONF.register_group(group)
        CONF.register_opts(cls.CONFIG_OPTS, group=group)
        made = cls(CONF[group.name])
        made.name = name
        return made

    def diagnose(self) -> Iterable[finding.Finding]:
        """Report what works on this host and what is wrong.

        ``os-acc doctor`` calls it. It must change nothing. The default
        finds nothing.
        """
        return ()

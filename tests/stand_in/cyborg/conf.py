# SPDX-License-Identifier: Apache-2.0

"""As cyborg.conf."""


class _Conf:
    """Reads configuration files with oslo.config, if there are any.

    Most tests give none. Their helper process then starts in half the time.
    """

    def __call__(
        self, args: list[str], project: str, default_config_files: list[str]
    ) -> None:
        if default_config_files:
            from oslo_config import cfg

            cfg.CONF(
                args,
                project=project,
                default_config_files=default_config_files,
            )


CONF = _Conf()

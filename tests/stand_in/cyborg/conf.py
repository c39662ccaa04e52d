# SPDX-License-Identifier: Apache-2.0

"""As cyborg.conf."""

from oslo_config import cfg

CONF = cfg.CONF

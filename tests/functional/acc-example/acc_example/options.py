# SPDX-License-Identifier: Apache-2.0

"""The options of the driver, which its privileged functions read, too."""

from oslo_config import cfg

GROUP = 'os_acc_example'
OPTS = (
    cfg.ListOpt('slots', default=['slot0'], help='Names of the slots.'),
    cfg.StrOpt('directory', help='Where a slot in use is a file.'),
)

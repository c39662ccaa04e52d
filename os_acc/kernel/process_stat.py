# SPDX-License-Identifier: Apache-2.0

"""What /proc/PID/stat says of a process."""

from __future__ import annotations


def state_and_start(stat: str) -> tuple[str, str]:
    """Read the state and the start time of a process: proc(5), /proc/PID/stat.

    :param stat: the text of the file
    :returns: a letter, and clock ticks since the boot
    """
    # The name of the program, in parentheses, may have any character.
    fields = stat.rpartition(')')[2].split()
    return fields[0], fields[19]

# SPDX-License-Identifier: Apache-2.0

"""Logs what Cyborg's drivers and their tools print, up to a limit."""

from __future__ import annotations

import io
import logging
import os
import re
import select
import threading

from os_acc.texts import masking

LOG = logging.getLogger(__name__)

#: Lines that are logged for each call, as they are printed.
FIRST_LINES = 200
#: Bytes of one line in the log. A longer line is logged in parts.
LINE_BYTES = 1000
#: After the first lines, only the end of the output is logged: at most this
#: many lines and bytes.
LAST_LINES, LAST_BYTES = 50, 4000

_READ_BYTES = 65536
#: Bytes that are read at the end of a call: the usual room of a pipe. More
#: than that was printed after the answer.
_ROOM = 65536
_LINE = re.compile(rb'[^\r\n]{%d}|[^\r\n]*[\r\n]+' % LINE_BYTES)


class Output:
    """Reads the output of a helper process in a thread, and logs it.

    The thread reads until the last writer has closed the pipe, so that no
    tool waits for room in the pipe. What is over the limit is counted and
    discarded, so that it fills neither the memory nor the log.

    :param reader: the descriptor of the pipe; this object closes it
    :param pid: the number of the helper process, for the log
    """

    def __init__(self, reader: int, pid: int) -> None:
        self._pid = pid
        self._lock = threading.Lock()
        self._lines_left = FIRST_LINES
        # What was read and is not logged: the beginning of a line, or the
        # end of the output.
        self._kept = b''
        self._left_out = 0
        os.set_blocking(reader, False)
        self._pipe = io.FileIO(reader)
        threading.Thread(
            target=self._read, name='os-acc cyborg log', daemon=True
        ).start()

    def call_ended(self) -> None:
        """Log the end of the call's output; the next call starts afresh.

        What the helper printed before it answered may still be in the pipe:
        the thread that reads may not have had its turn. It is read here, so
        that it counts as the output of this call.
        """
        with self._lock:
            read = 0
            while read < _ROOM and (part := self._take()):
                read += len(part)
            self._log_last()
            self._lines_left = FIRST_LINES

    def _read(self) -> None:
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN)
        part: bytes | None = None
        while part != b'':
            poll.poll()
            with self._lock:
                part = self._take()
        with self._lock:
            self._pipe.close()
            self._log_last()

    def _take(self) -> bytes | None:
        """Read a part of the output; log it as far as the limit permits.

        :returns: the part; ``b''`` if every writer has closed the pipe; None
            if the pipe is empty
        """
        if self._pipe.closed:
            return b''
        part = self._pipe.read(_READ_BYTES)
        if part:
            self._kept += part
            self._log_first()
            self._leave_out()
        return part

    def _log_first(self) -> None:
        """Log the complete lines, until the call has reached its limit."""
        place = 0
        while self._lines_left and (found := _LINE.match(self._kept, place)):
            self._log(found[0])
            self._lines_left -= 1
            place = found.end()
        self._kept = self._kept[place:]

    def _leave_out(self) -> None:
        """Discard what is kept, except its end."""
        over = len(self._kept) - LAST_BYTES
        if over > 0:
            self._kept = self._kept[over:]
            self._left_out += over

    def _log_last(self) -> None:
        """Log what is kept, and say how much is missing before it."""
        lines = self._kept.splitlines(keepends=True)
        left_out = self._left_out + sum(map(len, lines[:-LAST_LINES]))
        if left_out:
            LOG.warning(
                'cyborg[%d]: (%d bytes of output are left out here)',
                self._pid,
                left_out,
            )
        for line in lines[-LAST_LINES:]:
            for start in range(0, len(line), LINE_BYTES):
                self._log(line[start : start + LINE_BYTES])
        self._kept, self._left_out = b'', 0

    def _log(self, line: bytes) -> None:
        text = line.decode(errors='backslashreplace').rstrip()
        if text:
            LOG.info('cyborg[%d]: %s', self._pid, masking.of_error(text))

# SPDX-License-Identifier: Apache-2.0


"""The journal under eventlet: nothing that waits stops the other threads.

The process in which it runs is monkey-patched, as nova-compute's is with the
eventlet backend of oslo.service.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time

import pytest

from os_acc import journal

GREEN = """
import eventlet
eventlet.monkey_patch()
import json, sys, time, uuid
from os_acc import exception, journal, objects

def entry():
    van = str(uuid.uuid4())
    instance = str(uuid.uuid4())
    return journal.Entry(
        objects.VAN(uuid=van, instance_uuid=instance, driver='d', plugin='p',
                    state='preparing', boot_id='b'),
        objects.AcceleratorRequest(uuid=van),
        objects.InstanceInfo(uuid=instance, name='n', project_id='p'),
        live=False)

opened = journal.Journal(sys.argv[1], float(sys.argv[2]))
opened.add([entry()])
longest = 0.0
def tick():
    global longest
    last = time.monotonic()
    while True:
        eventlet.sleep(0.01)
        now = time.monotonic()
        longest = max(longest, now - last)
        last = now
results = []
def write():
    try:
        opened.add([entry()])
        results.append('written')
    except exception.JournalBusy:
        results.append('busy')
print('ready', flush=True)
sys.stdin.readline()
ticking = eventlet.spawn(tick)
start = time.monotonic()
writers = [eventlet.spawn(write) for _ in range(4)]
eventlet.sleep(0.2)
reads = []
for _ in range(5):
    begun = time.monotonic()
    assert len(opened.entries()) == 1
    reads.append(time.monotonic() - begun)
early = list(results)
for writer in writers:
    writer.wait()
print(json.dumps({
    'longest': longest, 'read': max(reads), 'early': early,
    'results': results, 'took': time.monotonic() - start,
    'rows': len(opened.entries())}))
"""

FORKING = (
    """
import eventlet
eventlet.monkey_patch()
"""
    + GREEN.partition('import json')[1]
    + (GREEN.partition('import json')[2].partition('opened = ')[0])
    + """
import os
opened = journal.Journal(sys.argv[1], 10)
opened.add([entry()])
def write(count):
    for _ in range(count):
        opened.add([entry()])
        eventlet.sleep(0)
writers = [eventlet.spawn(write, 10) for _ in range(3)]
eventlet.sleep(0.01)
children = []
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        eventlet.hubs.use_hub()
        write(5)
        os._exit(0)
    children.append(pid)
    eventlet.sleep(0.01)
for writer in writers:
    writer.wait()
for pid in children:
    assert os.waitpid(pid, 0)[1] == 0
print(len(opened.entries()))
"""
)


@pytest.fixture
def state_path(tmp_path):
    return str(tmp_path / 'state')


def start(script, *arguments):
    return subprocess.Popen(
        [sys.executable, '-W', 'ignore', '-c', script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(child, order=None):
    out, err = child.communicate(order, timeout=300)
    assert child.returncode == 0, err
    return out


@pytest.mark.parametrize(
    ('held', 'timeout', 'end'), [(4.0, 30, 'written'), (15.0, 3, 'busy')]
)
def test_the_hub_ticks_while_another_process_writes(
    state_path, held, timeout, end, report
):
    child = start(GREEN, state_path, timeout)
    try:
        assert child.stdout.readline() == 'ready\n', child.stderr.read()
        path = journal.Journal(state_path, 5, read_only=True).path
        db = sqlite3.connect(path, isolation_level=None)
        db.execute('BEGIN IMMEDIATE')
        child.stdin.write('go\n')
        child.stdin.flush()
        time.sleep(held)
        db.execute('COMMIT')
        db.close()
        found = json.loads(finish(child))
    finally:
        child.kill()
    assert found['early'] == []
    assert found['results'] == [end] * 4
    assert found['rows'] == (5 if end == 'written' else 1)
    assert found['took'] > 0.9
    # It stood still for all of the time, once.
    assert found['longest'] < 0.75 * held
    assert found['read'] < 0.75 * held
    report(
        f'eventlet: a writer of {held:g} s stopped the hub for at most '
        f'{found["longest"] * 1000:.0f} ms, readers for '
        f'{found["read"] * 1000:.0f} ms'
    )


def test_forks_of_a_green_process(state_path):
    assert finish(start(FORKING, state_path)) == '46\n'

# SPDX-License-Identifier: Apache-2.0

"""Progress: one call at a time, also if the callback fails."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time

import pytest

from os_acc import progress

STEP = progress.Progress('i', 'v', 'prepareVAN', progress.RUNNING, 0.5, 'm')


def test_told_in_order():
    told = []
    report = progress.Reporter(told.append)
    other = dataclasses.replace(STEP, status=progress.DONE, fraction=1.0)
    report(STEP)
    report(other)
    assert told == [STEP, other]


def test_nobody_listens():
    progress.Reporter(None)(STEP)


def test_unknown_fraction_and_message():
    step = progress.Progress('i', 'v', 'plug', progress.STARTED)
    assert step.fraction is None
    assert step.message is None


def test_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        STEP.status = progress.DONE


def test_what_it_raises_is_logged(caplog):
    told = []

    def callback(step):
        told.append(step)
        raise RuntimeError('the listener broke')

    report = progress.Reporter(callback)
    report(STEP)
    report(STEP)
    assert told == [STEP, STEP]
    assert len(caplog.records) == 2
    assert caplog.records[0].levelno == logging.ERROR
    assert 'prepareVAN' in caplog.records[0].getMessage()
    assert 'the listener broke' in caplog.text


def test_one_thread_at_a_time():
    inside, most = [], []

    def callback(step):
        inside.append(step)
        most.append(len(inside))
        time.sleep(0.01)
        inside.remove(step)
        if step.fraction == 0:
            raise RuntimeError('the listener broke')

    report = progress.Reporter(callback)
    threads = [
        threading.Thread(
            target=report,
            args=(dataclasses.replace(STEP, fraction=number / 8),),
        )
        for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert most == [1] * 8

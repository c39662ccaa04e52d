# SPDX-License-Identifier: Apache-2.0

"""Log lines that begin with the UUIDs of the instance and the VAN."""

from __future__ import annotations

import logging

import pytest

from os_acc import log

LOG = logging.getLogger('os_acc.test')


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.DEBUG, LOG.name)
    return lambda: [record.getMessage() for record in caplog.records]


def test_instance(lines):
    log.about(LOG, 'i-1').info('plugged %d of %s', 2, '100%')
    assert lines() == ['[instance: i-1] plugged 2 of 100%']


def test_instance_and_van(lines):
    logger = log.about(LOG, 'i-1', 'v-1')
    logger.debug('started')
    logger.error('failed: %s', 'e')
    assert lines() == [
        '[instance: i-1] [van: v-1] started',
        '[instance: i-1] [van: v-1] failed: e',
    ]


def test_it_is_the_given_logger(lines, caplog):
    log.about(LOG, 'i-1').warning('w')
    (record,) = caplog.records
    assert record.name == 'os_acc.test'
    assert record.levelno == logging.WARNING
    LOG.setLevel(logging.ERROR)
    assert not log.about(LOG, 'i-1').isEnabledFor(logging.WARNING)

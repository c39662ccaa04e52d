# SPDX-License-Identifier: Apache-2.0

"""Log lines that begin with the UUIDs of the instance and the VAN.

Tracebacks, which say no secret to whatever handler gets them.
"""

from __future__ import annotations

import ast
import io
import logging
import pathlib
import types

import pytest

import acc_plug_libvirt
from os_acc import log
from os_acc.operations import discovery

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


SECRET = 's3cretS3cret'


def chained():
    """An error of a library, with another one as its cause."""
    try:
        try:
            raise KeyError(f'password = {SECRET}')
        except KeyError as err:
            raise ExceptionGroup(
                'both', [ValueError(f'GET https://me:{SECRET}@images')]
            ) from err
    except ExceptionGroup as err:
        return err


def test_a_handler_of_the_service_gets_no_secret():
    """Such as nova-compute's, which formats exc_info in its own way."""
    output = io.StringIO()
    handler = logging.StreamHandler(output)
    handler.setFormatter(logging.Formatter('%(message)s'))
    logger = logging.getLogger('os_acc.test')
    logger.addHandler(handler)
    try:
        log.error(logger, chained(), 'Discovery by %r failed', 'pci')
    finally:
        logger.removeHandler(handler)
    said = output.getvalue()
    assert said.startswith("Discovery by 'pci' failed\n")
    for part in ('Traceback', 'KeyError', 'ExceptionGroup', 'ValueError'):
        assert part in said
    assert SECRET not in said


def test_discovery_that_fails_tells_no_secret(service_log):
    """A whole call of a service, with a driver whose library tells one."""
    driver = types.SimpleNamespace(name='card', get_devices=fail)
    assert discovery.examine(driver).faults
    assert 'Traceback' in service_log.getvalue()
    assert SECRET not in service_log.getvalue()


def fail():
    raise chained()


@pytest.fixture
def service_log():
    """What a plain handler of the root logger writes."""
    output = io.StringIO()
    handler = logging.StreamHandler(output)
    logging.getLogger().addHandler(handler)
    yield output
    logging.getLogger().removeHandler(handler)


def test_tracebacks_are_logged_in_one_way_only():
    """Not by exc_info, of which each handler writes the raw text."""
    # The helper runs in Cyborg's Python; output.py masks what it writes.
    helper = 'kinds/cyborg/driver/helper/'
    source = pathlib.Path(log.__file__).parent
    directories = [source, pathlib.Path(acc_plug_libvirt.__file__).parent]
    for path in (path for each in directories for path in each.rglob('*.py')):
        if helper in str(path):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                named = {each.arg for each in node.keywords}
                called = getattr(node.func, 'attr', None)
                assert 'exc_info' not in named, path
                assert called != 'exception', path

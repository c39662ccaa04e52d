# SPDX-License-Identifier: Apache-2.0

"""The text of errors: translated lazily, or with a lone surrogate in it."""

from __future__ import annotations

import subprocess
import sys

import oslo_i18n
from oslo_utils import strutils
import pytest

import os_acc
from os_acc import exception

SURROGATE = 'bad name \udcff'

# enable_lazy() has to come before the import: only then is each msg_fmt a
# Message. Nova calls it in nova/__init__.py.
LAZY_BEFORE_IMPORT = """
import oslo_i18n
oslo_i18n.enable_lazy()
from os_acc import exception
_ = oslo_i18n.TranslatorFactory('nova').primary

def check(err, text):
    assert type(str(err)) is str, type(str(err))
    assert type(err.message) is str, type(err.message)
    assert type(err.args[0]) is str, type(err.args[0])
    assert str(err) == err.format_message() == text, str(err)

inner = exception.DeviceBusy(device='d', reason=_('it has %d VFs') % 2)
check(inner, 'd is busy: it has 2 VFs')
check(exception.DeviceError(_('a text of the caller')), 'a text of the caller')
check(exception.LibraryNotInitialized(), 'Before using the os_acc library, '
      'you need to call os_acc.initialize()')
check(exception.UnplugException(instance='i', err='e', undo_errors=[inner]),
      'Failed to unplug the accelerators of instance i: e '
      '(not undone: d is busy: it has 2 VFs)')
check(exception.DeviceError(device='d'),
      "%(device)s: %(reason)s {'device': 'd'}")
assert type(exception.describe(ValueError(_('v')))) is str
assert exception.describe(ValueError(_('v'))) == 'ValueError: v'
print('checked')
"""


@pytest.fixture
def lazy():
    """What a service does that translates each answer for its user."""
    oslo_i18n.enable_lazy()
    yield
    oslo_i18n.enable_lazy(False)


def fail_to_unplug(host, instance, step, error, uuid):
    """Let a step of the unplug of a VAN fail.

    :returns: the error of unplug, and the VAN that is left
    """
    host.calls.on(step, error, uuid)
    with pytest.raises(exception.UnplugException) as caught:
        os_acc.unplug(instance)
    (left,) = os_acc.get_vans(instance)
    return caught.value, left


def test_unplug_tells_the_error_when_translation_is_lazy(host, lazy):
    instance, requests = host.instance(), host.requests(2)
    os_acc.plug(instance, requests)
    error = RuntimeError('stuck')
    told, left = fail_to_unplug(
        host, instance, 'unplug', error, requests[0].uuid
    )
    assert told.__cause__ is error
    assert type(str(told)) is str
    assert '(not undone: VAN ' in str(told)
    assert 'stuck' in str(told)
    assert (left.uuid, left.state) == (requests[0].uuid, 'error')
    assert 'stuck' in left.error


def test_plug_tells_both_errors_when_translation_is_lazy(host, lazy):
    requests = host.requests(1)
    host.calls.on('plug', RuntimeError('no slot'))
    host.calls.on('unplug', RuntimeError('stuck'))
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(host.instance(), requests)
    assert type(str(caught.value)) is str
    assert 'no slot' in str(caught.value)
    assert '(not undone: VAN ' in str(caught.value)
    assert host.states() == {requests[0].uuid: 'error'}


def test_errors_are_plain_text_when_translation_was_lazy_before_the_import():
    done = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', LAZY_BEFORE_IMPORT],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, '')
    assert done.stdout == 'checked\n'


@pytest.mark.parametrize(
    'err',
    [
        OSError(SURROGATE),
        exception.DeviceError(device='d', reason=SURROGATE),
        exception.DeviceError(SURROGATE),
        exception.DeviceError(device='d', wrong=SURROGATE),
        exception.UnplugException(
            instance='i', err=SURROGATE, undo_errors=[OSError(SURROGATE)]
        ),
    ],
)
def test_a_lone_surrogate_is_escaped(err):
    text = exception.describe(err)
    text.encode('utf-8')
    assert 'bad name \\' in text
    assert 'udcff' in text
    if isinstance(err, exception.ExceptionBase):
        str(err).encode('utf-8')


class Mute(exception.DeviceError):
    """A package's own error whose __str__ fails."""

    def __str__(self) -> str:
        raise AttributeError('request')


def test_an_error_of_ours_without_a_text_does_not_hide_itself():
    text = exception.describe(Mute(device='d', reason='r'))
    assert text == 'Mute: (no text: its __str__ raised AttributeError)'


def test_a_lone_surrogate_in_an_error_leaves_the_other_vans_alone(host):
    instance, requests = host.instance(), host.requests(3)
    os_acc.plug(instance, requests)
    error, uuid = OSError(SURROGATE), requests[1].uuid
    told, left = fail_to_unplug(host, instance, 'unprepareVAN', error, uuid)
    assert 'bad name \\udcff' in str(told)
    assert (left.uuid, left.state) == (requests[1].uuid, 'error')
    assert 'bad name \\udcff' in left.error
    assert [van.uuid for van in os_acc.recover().failed] == [requests[1].uuid]
    host.calls.clear()
    assert os_acc.unplug(instance) == 1


def test_an_error_of_a_library_does_not_show_a_secret(host, caplog):
    instance, requests = host.instance(), host.requests(1)
    os_acc.plug(instance, requests)
    secret = OSError('GET https://admin:opensesame@10.0.0.1/v3 failed')
    told, left = fail_to_unplug(
        host, instance, 'unprepareVAN', secret, requests[0].uuid
    )
    for text in (str(told), left.error, *caplog.messages):
        assert 'opensesame' not in text
    assert 'https://***@10.0.0.1/v3 failed' in left.error


def test_an_error_of_os_acc_keeps_its_words():
    text = 'the signature mismatch of token: a word'
    assert exception.describe(exception.InvalidRequest(text)) == text


@pytest.mark.parametrize('of', [str, lambda text: {'a': [text]}])
def test_only_the_start_of_a_long_value_is_searched(of, monkeypatch):
    """To search all of a value of another host could take minutes."""
    searched, mask = [], strutils.mask_password

    def note(text, *args):
        searched.append(len(text))
        return mask(text, *args)

    monkeypatch.setattr(strutils, 'mask_password', note)
    value = of('password=geheim ' + 'x' * 1_000_000)
    error = exception.InvalidRequest(
        subject='s', field='f', value=value, expected='less'
    )
    assert sum(searched) <= 20_000
    assert len(str(error)) < 400
    assert 'password=***' in str(error)

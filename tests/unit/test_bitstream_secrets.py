# SPDX-License-Identifier: Apache-2.0

"""The secrets of a URL appear nowhere; the journal works without them."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import logging
import pathlib
import traceback
import uuid

import devices
import downloads
from downloads import fetch
from downloads import option
from downloads import refused
import examples
import hypothesis
from hypothesis import strategies as st
import pytest
import vendor as vendor_module

import os_acc
from os_acc import exception
from os_acc import journal
from os_acc import objects
from os_acc.bitstreams import reference as bitstream_reference
from os_acc.objects import van as states

CONTENT = b'a bitstream' * 1000
DIGEST = hashlib.sha256(CONTENT).hexdigest()
MARKER = 'zq7XkV'

# What people and programs put around a secret, also where it is not allowed.
JUNK = st.text(
    st.sampled_from(list('a1:/?#@&=% \\\t\r\n\0\x7f[]\u00e4\u2028\ud800')),
    max_size=4,
)
SECRET = st.builds('{}{}{}'.format, JUNK, st.just(MARKER), JUNK)


@st.composite
def url_like(draw, host):
    """A text like a URL, with MARKER in its user, password or query.

    :param host: the host and port of a server
    """
    text = draw(
        st.sampled_from(
            ['https', 'http', 'HTTP', ' http', 'file', 'ftp', 'htp', '']
        )
    )
    slashes = ['://', ':/', ':', ':///'] if text else ['', '//']
    text += draw(st.sampled_from(slashes))
    place = draw(st.sampled_from(['user', 'password', 'query', 'both']))
    secret = draw(SECRET)
    if place == 'user':
        text += f'{secret}@'
    elif place in ('password', 'both'):
        text += f'user:{secret}@'
    text += draw(
        st.sampled_from(
            [host, f'{host}0', 'host:port', '', 'a..b', '[::1', '127.0.0.1:0']
        )
    )
    text += draw(
        st.sampled_from(['', '/', '/a', '/b', '/c', '/d e', '/\u00e4'])
    )
    if place in ('query', 'both'):
        text += f'?token={secret}'
    # What starts with one slash is a path, which is shown as it is.
    hypothesis.assume(text[:2] == '//' or text[:1] != '/')
    return text + draw(
        st.sampled_from(['', f'#sha256={DIGEST}', '#sha256=1', '#x', ' '])
    )


class Records(logging.Handler):
    """All log records, as a formatter shows them and as they are."""

    def __init__(self):
        super().__init__(logging.DEBUG)
        self.text = ''

    def emit(self, record):
        self.text += self.format(record) + repr(vars(record))


@contextlib.contextmanager
def recorded():
    """Record the log lines of os_acc of all levels."""
    made, logger = Records(), logging.getLogger('os_acc')
    level = logger.level
    logger.addHandler(made)
    logger.setLevel(logging.DEBUG)
    try:
        yield made
    finally:
        logger.removeHandler(made)
        logger.setLevel(level)


def all_of(err):
    """Show an error, and those that it is chained to."""
    text, seen, left = '', set(), [err]
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        text += f'{one} {one!r} {one.args!r} {vars(one)!r}'
        left += [one.__cause__, one.__context__]
        left += getattr(one, 'undo_errors', [])
    return text + ''.join(traceback.format_exception(err))


def check(text):
    """Check that a text does not have the secret."""
    assert MARKER not in text
    # A header with the user and password.
    for skipped in range(3):
        coded = base64.b64encode(b'x' * skipped + MARKER.encode()).decode()
        # The digits that do not depend on the bytes before and after it.
        first, end = -(-8 * skipped // 6), 8 * (skipped + len(MARKER)) // 6
        assert coded[first:end] not in text


@pytest.fixture
def server(clean):
    option('download_attempts', 1)
    option('stall_timeout', 2.0)
    with downloads.server() as made:
        made.put('/a', CONTENT)
        made.status['/b'] = 403
        made.redirects['/c'] = (
            f'http:user:{MARKER}@127.0.0.1/c?{MARKER}={MARKER} {MARKER}'
        )
        yield made


LOCATIONS = st.sampled_from(
    [
        'https:/user:{}@127.0.0.1:1/a',
        'https:user:{}@127.0.0.1:1/a',
        'http://user:{}@127.0.0.1:1/a',
        'http://127.0.0.1:1{}/a',
        'http://127.0.0.1:1/a?{} {}',
        '//user:{}@127.0.0.1:1/',
        '//[{}/',
        '//127.0.0.1:{}/',
        'ftp://user:{}@127.0.0.1:1/',
        'file:///{}',
        '/a\t{}',
        '?{}',
        '//{}\u2100@x/',
    ]
)


@hypothesis.settings(
    max_examples=examples.costly(100),
    suppress_health_check=list(hypothesis.HealthCheck),
)
@hypothesis.given(st.data())
def test_no_log_and_no_error_has_it(server, data):
    host = server.url.removeprefix('http://')
    text = data.draw(url_like(host))
    with recorded() as records:
        try:
            fetch(text)
        except exception.ExceptionBase as err:
            check(all_of(err))
    check(records.text)
    check(bitstream_reference.masked(text))


@hypothesis.settings(
    max_examples=examples.costly(50),
    suppress_health_check=list(hypothesis.HealthCheck),
)
@hypothesis.given(LOCATIONS)
def test_redirects_to_a_secret(server, location):
    # http.server writes the header in this encoding.
    server.redirects['/moved'] = (
        location.replace('{}', MARKER).encode('utf-8').decode('latin-1')
    )
    with recorded() as records:
        with pytest.raises(exception.BitstreamError) as caught:
            fetch(f'{server.url}/moved#sha256={DIGEST}')
    check(all_of(caught.value))
    check(records.text)


@pytest.mark.parametrize('status', [403, 503])
def test_an_answer_that_repeats_it(server, status, monkeypatch):
    """The phrase after the status is the server's own."""
    server.status['/x'] = status
    monkeypatch.setitem(
        server.RequestHandlerClass.responses,
        status,
        (f'{MARKER} is unknown', ''),
    )
    with recorded() as records:
        with pytest.raises(exception.BitstreamError) as caught:
            fetch(f'{server.url}/x?{MARKER}#sha256={DIGEST}')
    check(all_of(caught.value))
    check(records.text)


@hypothesis.given(url_like('host:80'))
def test_masking_again_changes_nothing(text):
    once = bitstream_reference.masked(text)
    check(once)
    assert bitstream_reference.masked(once) == once


@hypothesis.settings(
    max_examples=60,
    suppress_health_check=list(hypothesis.HealthCheck),
)
@hypothesis.given(url_like('host:80'))
def test_the_journal_does_not_have_it(host, tmp_path, text):
    """Whatever is written, even by a caller that checks nothing."""
    request = host.request(bitstream=text, function_id='aes')
    check(repr(request))
    instance = host.instance()
    made = objects.VAN(
        uuid=request.uuid,
        instance_uuid=instance.uuid,
        driver='recording',
        plugin='recording',
        owner='test',
        state=states.PLUGGED,
        boot_id='b',
    )
    entry = journal.Entry(made, request, instance, False)
    os_acc._get().journal.add([entry])
    assert entry.request.bitstream == text
    for path in (tmp_path / 'state').rglob('*'):
        if path.is_file():
            check(path.read_bytes().decode('latin-1'))


@pytest.mark.parametrize(
    'text',
    [
        'https://h\u00e4.example/a',
        'https://host/\u00e4',
        'https://host/a b',
        'https://host/a?b c',
        'https://host/a\n',
        'https://host/\0',
        'https:/me:hunter2@host/a',
        'https:me:hunter2@host/a',
        'https://me:hunter2@host:port/a',
        'https://me:hunter2@host:65536/a',
        'https://host/me:hunter2@host',
        'https://host/a?me:hunter2@host',
        'https://host/a#hunter2',
        'file:///a?hunter2',
        'file:///a%0a',
        'file:////hunter2@host/a',
        '//me:hunter2@host/a',
        '/a\nhunter2',
        '/a\0',
        b'https://host/hunter2',
        5,
    ],
)
def test_what_is_malformed_is_refused_before_anything_is_touched(clean, text):
    reason = refused(text, cause=exception.InvalidRequest)
    assert 'bitstream is' in reason
    assert 'expected' in reason
    for hidden in ('hunter2', 'me:', '\u00e4', '\n', '\0'):
        assert hidden not in reason


@pytest.mark.parametrize(
    ('text', 'expected'),
    [
        (None, '(by function)'),
        ('/srv/a b?c@d.gbs', '/srv/a b?c@d.gbs'),
        ('file:///srv/a%20b.gbs', '/srv/a b.gbs'),
        ('HTTPS://Host:443/a', 'https://Host:443/a'),
        ('https://u:p@[::1]/a?t=1', 'https://...@[::1]/a?...'),
        ('https://host', 'https://host'),
        ('https://u:p@x@host/a?', 'https://...@host/a'),
        (
            f'https://host/a#sha256={DIGEST.upper()}',
            f'https://host/a#sha256={DIGEST}',
        ),
        (
            '{0A0A0A0A-0000-4000-8000-00000000FFFF}',
            '0a0a0a0a-0000-4000-8000-00000000ffff',
        ),
        ('an-image', 'an-image'),
        ('ftp://u:p@host/a', '(a malformed reference)'),
    ],
)
def test_how_a_reference_is_shown(text, expected):
    assert bitstream_reference.masked(text) == expected


# --- without the secrets


@pytest.fixture
def url(server):
    """A URL with a password, a query and a checksum."""
    host = server.url.removeprefix('http://')
    return f'http://user:{MARKER}@{host}/a?token={MARKER}#sha256={DIGEST}'


def test_a_masked_url_is_taken_from_the_cache(server, url):
    assert fetch(url) == CONTENT
    masked = bitstream_reference.masked(url)
    assert fetch(masked) == CONTENT
    assert len(server.asked) == 1


def test_a_masked_url_whose_file_is_not_in_the_cache(server, url):
    masked = bitstream_reference.masked(url)
    reason = refused(masked)
    assert 'the cache no longer has the file' in reason
    assert 'os-acc device program and the whole URL' in reason
    assert server.asked == []


def test_a_masked_url_without_checksum(server, url):
    whole = url.partition('#')[0]
    assert fetch(whole) == CONTENT
    asked = len(server.asked)
    reason = refused(bitstream_reference.masked(whole))
    assert 'does not have the checksum' in reason
    assert 'os-acc device program and the whole URL' in reason
    assert len(server.asked) == asked


@pytest.fixture
def tool(kernel, tmp_path):
    vendor_module.furnish(kernel)
    made = vendor_module.Vendor(tmp_path / 'vendor')
    made.configure('single')
    option('allow_http', True)
    os_acc.initialize()
    return made


@pytest.fixture
def wanted(tool, server):
    """A request whose bitstream has a URL with secrets."""
    content = pathlib.Path(tool.bitstream('aes')).read_bytes()
    server.put('/aes.gbs', content)
    digest = hashlib.sha256(content).hexdigest()
    host = server.url.removeprefix('http://')
    return objects.AcceleratorRequest(
        uuid=str(uuid.uuid4()),
        resource_class='FPGA',
        function_id='aes',
        bitstream=f'http://user:{MARKER}@{host}/aes.gbs?token={MARKER}'
        f'#sha256={digest}',
    )


def journal_bytes(tmp_path):
    return b''.join(
        path.read_bytes()
        for path in (tmp_path / 'state').rglob('*')
        if path.is_file()
    ).decode('latin-1')


def test_a_reboot_programs_from_the_cache(
    kernel, tool, server, wanted, tmp_path
):
    with recorded() as records:
        (van,) = os_acc.plug(devices.instance(), [wanted])
        assert (van.function_id, tool.function()) == ('aes', 'aes')
        assert wanted.bitstream.count(MARKER) == 2
        check(journal_bytes(tmp_path))
        asked = len(server.asked)
        kernel.boot()
        (tool.directory / 'state.').unlink()
        report = os_acc.recover()
        assert [each.uuid for each in report.restored] == [van.uuid]
        assert tool.function() == 'aes'
    assert len(server.asked) == asked
    check(records.text)


def test_a_reboot_without_the_cache(kernel, tool, server, wanted, tmp_path):
    instance = devices.instance()
    (van,) = os_acc.plug(instance, [wanted])
    for path in (tmp_path / 'state/bitstreams').iterdir():
        path.unlink()
    kernel.boot()
    (tool.directory / 'state.').unlink()
    with recorded() as records:
        os_acc.recover()
    (left,) = os_acc.get_vans()
    assert 'os-acc device program and the whole URL' in left.error
    check(left.error + records.text + journal_bytes(tmp_path))
    # That is what a plug with the whole URL does.
    (again,) = os_acc.plug(instance, [wanted])
    assert (again.uuid, again.error, tool.function()) == (
        van.uuid,
        None,
        'aes',
    )


def test_the_administrator_programs_after_a_reboot(
    kernel, tool, server, wanted, tmp_path
):
    (van,) = os_acc.plug(devices.instance(), [wanted])
    for path in (tmp_path / 'state/bitstreams').iterdir():
        path.unlink()
    kernel.boot()
    (tool.directory / 'state.').unlink()
    assert os_acc.program_device(
        vendor_module.FPGA, wanted.bitstream, wanted.function_id
    )
    report = os_acc.recover()
    assert [each.uuid for each in report.restored] == [van.uuid]
    assert len(tool.calls()) == 2


def test_plugging_again_with_another_token(tool, server, wanted):
    """A URL that was signed anew names the same bitstream."""
    instance = devices.instance()
    (van,) = os_acc.plug(instance, [wanted])
    wanted.bitstream = wanted.bitstream.replace(MARKER, 'hUntEr2')
    assert os_acc.plug(instance, [wanted])[0].uuid == van.uuid
    wanted.bitstream = wanted.bitstream.replace('/aes.gbs', '/b.gbs')
    with pytest.raises(exception.PlugException) as caught:
        os_acc.plug(instance, [wanted])
    assert "'http://...@127.0.0.1:" in str(caught.value)
    assert 'hUntEr2' not in all_of(caught.value)


def test_plugging_again_with_another_spelling(tool, server, wanted):
    instance, function = devices.instance(), uuid.uuid4()
    wanted.function_id = str(function)
    wanted.bitstream = tool.bitstream(function.hex)
    (van,) = os_acc.plug(instance, [wanted])
    wanted.function_id = function.hex.upper()
    assert os_acc.plug(instance, [wanted])[0].uuid == van.uuid


def test_a_malformed_url_is_refused_before_the_plug(tool, tmp_path, wanted):
    wanted.bitstream = f'https:/user:{MARKER}@host/a'
    with pytest.raises(exception.InvalidRequest) as caught:
        os_acc.plug(devices.instance(), [wanted])
    assert wanted.uuid in str(caught.value)
    check(all_of(caught.value))
    with pytest.raises(exception.InvalidRequest) as caught:
        os_acc.program_device('0000:00:00.0', wanted.bitstream, 'aes')
    check(all_of(caught.value))
    option('allow_http', False)
    wanted.bitstream = f'http://user:{MARKER}@host/a'
    with pytest.raises(exception.InvalidRequest, match='allow_http'):
        os_acc.plug(devices.instance(), [wanted])
    assert os_acc.get_vans() == objects.VANList(objects=[])


def test_device_profiles_that_are_malformed():
    arq = {
        'uuid': str(uuid.uuid4()),
        'state': 'Bound',
        'device_profile_name': 'crypto',
        'device_profile_group_id': 0,
        'attach_handle_type': 'TEST_PCI',
        'attach_handle_info': {
            'domain': '0000',
            'bus': '0c',
            'device': '00',
            'function': '1',
        },
    }
    secret = f'https://user:{MARKER}@host/a'
    for groups in (
        secret,
        {'accel:bitstream_id': secret},
        [{'accel:bitstream_id': [secret]}],
        [{'accel:bitstream_id': secret.encode()}],
    ):
        with pytest.raises(exception.InvalidRequest) as caught:
            objects.AcceleratorRequest.from_arqs([arq], {'crypto': groups})
        check(all_of(caught.value))

# SPDX-License-Identifier: Apache-2.0

"""Bitstreams from all sources; nothing unverified is used."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import pathlib
import stat
import threading
import time

import downloads
from downloads import fetch
from downloads import option
from downloads import refused
import pytest
import web

from os_acc import exception
from os_acc.bitstreams import file as bitstream_file
from os_acc.programming import bitstreams

CONTENT = os.urandom(300_000)
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def server(clean):
    with downloads.server() as made:
        yield made


@pytest.fixture
def directory(clean, tmp_path):
    made = tmp_path / 'allowed'
    made.mkdir()
    option('allowed_folders', [str(made)])
    return made


@pytest.fixture
def cache(clean, tmp_path):
    return tmp_path / 'state/bitstreams'


# --- files


@pytest.mark.parametrize('form', ['{}', 'file://{}', 'file://localhost{}'])
def test_a_file_of_an_allowed_directory(directory, form):
    path = directory / 'a b.gbs'
    path.write_bytes(CONTENT)
    text = str(path).replace(' ', '%20') if 'file' in form else str(path)
    assert fetch(form.format(text)) == CONTENT


def test_a_file_elsewhere(directory, tmp_path):
    path = tmp_path / 'a.gbs'
    path.write_bytes(CONTENT)
    assert 'allowed_folders' in refused(str(path))
    assert 'without ..' in refused(f'{directory}/../a.gbs')
    option('allowed_folders', [])
    assert '(none)' in refused(str(path))


def test_a_directory_whose_name_begins_alike(directory, tmp_path):
    other = tmp_path / 'allowed-not'
    other.mkdir()
    (other / 'a').write_bytes(CONTENT)
    assert 'allowed_folders' in refused(f'{other}/a')


def test_a_link_that_leads_out(directory, tmp_path):
    (tmp_path / 'secret').write_bytes(CONTENT)
    (directory / 'link').symlink_to(tmp_path / 'secret')
    assert f'it is {tmp_path}/secret' in refused(f'{directory}/link').replace(
        '(', ''
    )
    (directory / 'up').symlink_to(tmp_path)
    assert 'allowed_folders' in refused(f'{directory}/up/secret')


def test_a_link_within(directory):
    (directory / 'v1').write_bytes(CONTENT)
    (directory / 'current').symlink_to('v1')
    assert fetch(f'{directory}/current') == CONTENT


def test_a_directory_that_is_exchanged_for_a_link(directory, tmp_path):
    """Another user does it between the check of the path and the open."""
    secret = tmp_path / 'secret'
    secret.mkdir(mode=0o700)
    (secret / 'a').write_bytes(b'secret')
    (directory / 'images').mkdir()
    (directory / 'images/a').write_bytes(CONTENT)
    resolved = os.path.realpath

    def realpath(path):
        found = resolved(path)
        if path == f'{directory}/images/a':
            (directory / 'images').rename(directory / 'before')
            (directory / 'images').symlink_to(secret)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os.path, 'realpath', realpath)
        text = refused(f'{directory}/images/a')
    assert 'Not a directory' in text


def test_a_link_that_is_exchanged_for_a_directory(directory, monkeypatch):
    """Another user does it while os-acc follows the link."""
    (directory / 'v1').mkdir()
    (directory / 'current').symlink_to('v1')
    follow = os.readlink

    def readlink(path, *args, **kwargs):
        (directory / 'current').unlink()
        (directory / 'current').mkdir()
        return follow(path, *args, **kwargs)

    monkeypatch.setattr(os, 'readlink', readlink)
    # Python 3.13 goes on with the directory, in which there is no file.
    assert refused(f'{directory}/current/a').endswith(
        ('Invalid argument', 'No such file or directory')
    )


def test_a_device_file_is_not_opened(directory, monkeypatch):
    """Opening a watchdog's file starts the watchdog."""
    opened = []
    open_file = os.open

    def spy(path, flags, *args, **kwargs):
        if not flags & os.O_PATH:
            opened.append(os.fspath(path))
        return open_file(path, flags, *args, **kwargs)

    os.mkfifo(directory / 'pipe')
    monkeypatch.setattr(os, 'open', spy)
    assert 'not a regular file' in refused(f'{directory}/pipe')
    assert not [path for path in opened if 'pipe' in path or 'fd' in path]


def test_no_file(directory):
    os.mkfifo(directory / 'pipe')
    assert 'it is not a regular file' in refused(f'{directory}/pipe')
    assert 'No such file' in refused(f'{directory}/none')


def test_a_file_that_is_too_large(directory):
    option('max_size', 1)
    (directory / 'big').write_bytes(b'x' * (1 << 20))
    assert len(fetch(f'{directory}/big')) == 1 << 20
    (directory / 'big').write_bytes(b'x' * ((1 << 20) + 1))
    assert 'max_size' in refused(f'{directory}/big')


@pytest.mark.parametrize('beside', [False, True])
def test_a_file_that_grows(directory, monkeypatch, beside):
    option('max_size', 1)
    path = directory / 'a'
    path.write_bytes(b'x')
    content = b'x' * ((1 << 20) + 1)
    if beside:
        digest = hashlib.sha256(content).hexdigest()
        (directory / 'a.sha256').write_text(digest)
    opened = bitstream_file.opened

    @contextlib.contextmanager
    def growing(*args):
        with opened(*args) as found:
            path.write_bytes(content)
            yield found

    monkeypatch.setattr(bitstream_file, 'opened', growing)
    assert 'max_size' in refused(str(path))


def test_a_checksum_beside_a_file(directory):
    (directory / 'a').write_bytes(CONTENT)
    (directory / 'a.sha256').write_text(f'{DIGEST.upper()}  a\n')
    assert fetch(f'{directory}/a') == CONTENT
    (directory / 'a.sha256').write_text('0' * 64)
    assert f'sha256 is {DIGEST}' in refused(f'{directory}/a')
    (directory / 'a.sha256').write_text('')
    assert 'expected 64 hex digits' in refused(f'{directory}/a')


@pytest.mark.parametrize(
    'text',
    [
        '',
        'relative.gbs',
        'ftp://host/a',
        'file://elsewhere/a',
        'file:',
        '1234',
        'http://host/a',
    ],
)
def test_what_is_no_reference(clean, text):
    assert 'bitstream' in refused(text, cause=exception.InvalidRequest)


def test_nothing_at_all(clean):
    refused(None, cause=exception.InvalidRequest)


# --- the web


def test_a_download_is_kept(server, cache):
    url = server.put('/a.gbs', CONTENT)
    events = []
    for _ in range(2):
        assert (
            fetch(url, report=lambda *event: events.append(event)) == CONTENT
        )
    assert server.downloads('/a.gbs') == [None]
    assert events[-1] == (1.0, 'downloading')
    assert [fraction for fraction, _ in events] == sorted(
        fraction for fraction, _ in events
    )
    (kept,) = cache.iterdir()
    assert kept.name == f'sha256-{DIGEST}.gbs'
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


@pytest.mark.parametrize('algorithm', ['sha256', 'sha512'])
def test_a_checksum_in_the_url(server, algorithm):
    url = server.put('/a', CONTENT, sidecar=False)
    digest = hashlib.new(algorithm, CONTENT).hexdigest()
    assert fetch(f'{url}#{algorithm}={digest}') == CONTENT


@pytest.mark.parametrize(
    'fragment',
    ['md5=' + 'a' * 32, 'sha256=abc', 'sha256', 'sha256=' + 'z' * 64],
)
def test_a_checksum_that_is_none(server, fragment):
    url = server.put('/a', CONTENT)
    reason = refused(f'{url}#{fragment}', cause=exception.InvalidRequest)
    assert 'checksum' in reason
    assert server.downloads('/a') == []


@pytest.mark.parametrize('length', ['\xb2', '9' * 5000, '-1', 'many'])
def test_a_length_that_is_no_number(server, length):
    url = server.put('/x', b'content')
    server.declared['/x'] = length
    assert fetch(url) == b'content'


def test_without_a_checksum(server, cache):
    url = server.put('/a', CONTENT, sidecar=False)
    assert 'there is no checksum' in refused(url)
    assert server.downloads('/a') == []


def test_a_wrong_checksum(server, cache):
    url = server.put('/a', CONTENT)
    server.files['/a'] = b'something else'
    assert f'expected {DIGEST}' in refused(url)
    assert list(cache.iterdir()) == []


def test_truncated_by_the_server(server, cache):
    url = server.put('/a', CONTENT)
    server.files['/a'] = CONTENT[:1000]
    assert f'expected {DIGEST}' in refused(url)
    assert list(cache.iterdir()) == []


def test_less_than_was_announced(server, cache):
    url = server.put('/a', CONTENT)
    server.declared['/a'] = len(CONTENT) + 5
    server.ranges = False
    assert 'tried 5 times' in refused(url)
    assert len(server.downloads('/a')) == 5
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize('announced', [True, False])
def test_too_large(server, cache, announced):
    option('max_size', 1)
    url = server.put('/a', b'x' * ((1 << 20) + 1))
    if announced:
        assert 'max_size' in refused(url)
    else:
        # The server announced less: the rest is not read.
        server.declared['/a'] = 1 << 20
        assert 'expected' in refused(url)
    assert list(cache.iterdir()) == []


def test_dropped_twice_and_resumed(server):
    url = server.put('/a', CONTENT)
    server.drops = 2
    assert fetch(url) == CONTENT
    half = len(CONTENT) // 2
    assert server.downloads('/a') == [
        None,
        f'bytes={half}-',
        f'bytes={half + half // 2}-',
    ]


def test_a_checksum_file_that_is_not_there_at_once(server):
    url = server.put('/a', CONTENT)

    def well_at_the_third(path):
        count = len(server.downloads('/a.sha256'))
        server.status = {'/a.sha256': 503} if count < 3 else {}

    server.hook = well_at_the_third
    assert fetch(url) == CONTENT
    assert len(server.downloads('/a.sha256')) == 3


def test_dropped_by_a_server_that_cannot_resume(server):
    url = server.put('/a', CONTENT)
    server.drops, server.ranges = 2, False
    assert fetch(url) == CONTENT
    assert len(server.downloads('/a')) == 3


def test_another_file_when_it_is_resumed(server):
    url = server.put('/a', b'y' * 300_000)
    server.drops = 1

    def change(path):
        if len(server.downloads('/a')) == 2:
            server.files['/a'] = CONTENT

    server.hook = change
    assert 'expected' in refused(url)
    assert fetch(f'{url}#sha256={DIGEST}') == CONTENT


def test_dropped_too_often(server, cache):
    option('download_attempts', 3)
    url = server.put('/a', CONTENT)
    server.drops = 99
    assert 'tried 3 times' in refused(url)
    assert list(cache.iterdir()) == []


def test_not_found(server):
    url = server.put('/a', CONTENT)
    server.status['/a'] = 404
    assert 'HTTP 404' in refused(url)
    assert len(server.downloads('/a')) == 1
    assert '404' in refused(f'{server.url}/none')


def test_a_server_that_is_not_well(server):
    option('download_attempts', 2)
    url = server.put('/a', CONTENT)
    server.status['/a'] = 503
    assert 'HTTP 503 Service Unavailable; tried 2 times' in refused(url)


def test_a_server_that_is_not_there(server):
    option('download_attempts', 1)
    with web.serving() as gone:
        url = gone.url
    reason = refused(f'{url}/a#sha256={DIGEST}')
    assert 'refused' in reason


def test_a_download_that_takes_too_long(server):
    url = server.put('/a', CONTENT) + f'#sha256={DIGEST}'
    option('download_timeout', 0.3)
    option('stall_timeout', 0.1)
    option('download_attempts', 100)
    end = threading.Event()
    server.hook = lambda path: path == '/a' and end.wait(120)
    reason = refused(url, cause=exception.Timeout)
    end.set()
    assert 'the download of bitstream' in reason


@pytest.mark.parametrize('path', ['/a', '/a.sha256'])
def test_a_server_that_trickles(server, path):
    """Each byte comes within stall_timeout, the whole file too late."""
    url = server.put('/a', CONTENT)
    option('download_timeout', 0.3)
    server.trickles = {path}
    reason = refused(url, cause=exception.Timeout)
    server.trickles = set()
    assert 'the download of bitstream' in reason


def test_redirects(server):
    server.put('/a', CONTENT)
    server.redirects['/b'] = '/a'
    server.redirects['/b.sha256'] = '/a.sha256'
    assert fetch(f'{server.url}/b') == CONTENT
    server.redirects['/c'] = 'file:///etc/passwd'
    reason = refused(f'{server.url}/c#sha256=' + '0' * 64)
    assert 'HTTP 302 Found: this redirect is not followed' in reason


def test_a_password_stays_here(server, caplog):
    caplog.set_level(logging.DEBUG)
    with web.serving() as other:
        other.put('/a', CONTENT)
        server.redirects['/moved'] = f'{other.url}/a'
        address = server.url.removeprefix('http://')
        url = f'http://user:se%40cret@{address}/moved?token=hidden'
        server.drops = 1
        assert fetch(f'{url}#sha256={DIGEST}') == CONTENT
        assert 'Authorization' not in other.headers[-1]
    assert server.headers[-1]['Authorization'] == 'Basic dXNlcjpzZUBjcmV0'
    server.status['/x'] = 403
    reasons = [
        refused(f'http://user:se%40cret@{address}/x?token=hidden'),
        refused(
            'http://user:se%40cret@host:port/x?token=hidden',
            cause=exception.InvalidRequest,
        ),
        refused(
            'http://user:se%40cret@/x?token=hidden',
            cause=exception.InvalidRequest,
        ),
    ]
    for text in (*reasons, caplog.text):
        for secret in ('se%40cret', 'se@cret', 'hidden', 'dXNlcjpzZUBjcmV0'):
            assert secret not in text


# --- the cache


def test_what_was_damaged_in_the_cache(server, cache):
    url = server.put('/a', CONTENT)
    fetch(url)
    (kept,) = cache.iterdir()
    kept.write_bytes(b'damaged')
    assert fetch(url) == CONTENT
    assert len(server.downloads('/a')) == 2


def test_eviction_of_what_was_not_used_for_longest(server, cache):
    option('cache_size', 1)
    urls = [server.put(f'/{name}', name.encode() * 400_000) for name in 'abc']
    fetch(urls[0])
    fetch(urls[1])
    for name, content in (('a', b'a'), ('b', b'b')):
        digest = hashlib.sha256(content * 400_000).hexdigest()
        stamp = 1_000_000 if name == 'b' else 2_000_000
        os.utime(cache / f'sha256-{digest}', (stamp, stamp))
    fetch(urls[2])
    assert len(list(cache.iterdir())) == 2
    fetch(urls[0])
    assert len(server.downloads('/a')) == 1
    fetch(urls[1])
    assert len(server.downloads('/b')) == 2


def test_what_is_in_use_is_not_evicted(server, cache):
    option('cache_size', 1)
    first, second = (
        server.put(f'/{name}', name.encode() * 600_000) for name in 'ab'
    )
    with bitstreams.fetched(first) as held:
        assert 'in use' in refused(second)
        assert pathlib.Path(held.path).exists()
    assert fetch(second) == b'b' * 600_000
    assert len(list(cache.iterdir())) == 1


def test_a_newer_file_is_not_evicted(server, cache, monkeypatch):
    """A cached file is replaced between open() and flock() of an eviction."""
    option('cache_size', 1)
    first = server.put('/a', CONTENT)
    second = server.put('/b', b'b' * 500_000)
    fetch(first)
    kept = cache / f'sha256-{DIGEST}'
    # So it is downloaded again, and leaves no room for the second one.
    kept.write_bytes(b'damaged' * 120_000)
    flock = fcntl.flock
    with contextlib.ExitStack() as stack:
        newer = []

        def replace_first(file, how):
            name = os.readlink(f'/proc/self/fd/{file.fileno()}')
            if not newer and name == str(kept) and how & fcntl.LOCK_NB:
                newer.append(None)
                newer[0] = stack.enter_context(bitstreams.fetched(first))
            flock(file, how)

        monkeypatch.setattr(fcntl, 'flock', replace_first)
        assert fetch(second) == b'b' * 500_000
        assert newer[0].path == str(kept)
        assert kept.read_bytes() == CONTENT
    assert fetch(first) == CONTENT
    assert len(server.downloads('/a')) == 2


def test_one_download_for_many(server):
    url = server.put('/a', CONTENT)
    server.hook = lambda path: time.sleep(0.05)
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(fetch(url)))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [CONTENT] * 6
    assert len(server.downloads('/a')) == 1


def test_a_cache_that_others_can_write(server, cache):
    url = server.put('/a', CONTENT)
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    assert 'mode 0700' in refused(url)
    cache.rmdir()
    cache.symlink_to('/tmp')
    assert 'mode 0700' in refused(url)

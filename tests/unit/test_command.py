# SPDX-License-Identifier: Apache-2.0

"""Commands that write without end, ask, hang, and leave children."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import threading
import time

import memory
import pytest

from os_acc import exception
from os_acc.privileged import command


@pytest.fixture
def script(tmp_path):
    """:returns: makes an executable of a shell script"""

    def make(text: str) -> str:
        path = tmp_path / 'tool'
        path.write_text(f'#!/bin/sh\ncd {tmp_path}\n{text}\n')
        path.chmod(0o755)
        return str(path)

    return make


def run(*words: str, seconds: float = 30.0, held=()) -> command.Output:
    return command.run('card', words, seconds, held)


def failure(*words: str, seconds: float = 30.0) -> str:
    with pytest.raises(exception.DeviceError) as caught:
        run(*words, seconds=seconds)
    return str(caught.value)


def wait_for(path: pathlib.Path) -> str:
    deadline = time.monotonic() + 20
    while not path.exists() or not path.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return path.read_text()


def kill(path: pathlib.Path) -> None:
    """Kill the process whose id a script has written to a file."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(wait_for(path)), signal.SIGKILL)


# --- output


def test_the_output_is_that_of_both_streams(script):
    output = run(script('echo one; echo two >&2; echo three'))
    assert output.text == 'one\ntwo\nthree\n'


def test_much_output(script, tmp_path):
    """It fills neither the memory nor a disk, and does not block the tool."""
    tool = script(
        'to=$(readlink /proc/$$/fd/1)\necho $to > goes_to\n'
        'head -c 300000000 /dev/zero\n'
        'echo; echo the end'
    )
    with memory.grows_by_at_most(64 << 20):
        output = run(tool, seconds=120)
    assert (tmp_path / 'goes_to').read_text().startswith('pipe:')
    assert output.text.endswith('\nthe end\n')
    assert len(output.text) == command.KEPT


def test_many_small_writes(script):
    # More than a pipe holds, in lines.
    output = run(script('seq 1 300000'), seconds=60)
    assert output.text.endswith('299999\n300000\n')


def test_an_error_has_the_end_of_the_output(script):
    text = failure(script('seq 1 100000; echo no such board; exit 3'))
    assert text.endswith('100000\nno such board')
    assert 'exit code 3' in text
    assert len(text) < 1000


def test_output_that_is_no_text(script):
    assert run(script(r'printf "\377\376ok"')).text.endswith('ok')


def test_a_command_that_dies_by_a_signal(script):
    assert 'signal 11' in failure(script('kill -SEGV $$'))


def test_no_such_command():
    assert 'No such file' in failure('/nowhere/tool')


@pytest.mark.parametrize(
    ('text', 'asks'),
    [
        ('Cold reboot machine to load the new image on device.', True),
        ('Warm reboot is required to recognize new SC image', True),
        ('COLD REBOOT', True),
        ('cold', False),
        ('INFO: Successfully downloaded xclbin', False),
    ],
)
def test_output_that_asks_for_a_reboot(script, text, asks):
    output = run(script(f'echo "{text}"; seq 1 30000'))
    assert 'eboot' not in output.text
    assert output.asks_for_reboot is asks


def test_a_message_in_two_pieces():
    output = command.Output()
    for part in (b'x' * 5000 + b'Cold re', b'boot machine'):
        assert not output.asks_for_reboot
        output.add(part)
    assert output.asks_for_reboot


def test_the_output_can_be_read_meanwhile(script, tmp_path):
    tool = script(
        'echo 42%; touch said; while [ ! -e go ]; do sleep .01; done'
    )
    output = command.Output()
    thread = threading.Thread(
        target=command.run, args=('card', [tool], 30.0, (), output)
    )
    thread.start()
    deadline = time.monotonic() + 20
    while output.text != '42%\n' and time.monotonic() < deadline:
        time.sleep(0.01)
    assert output.text == '42%\n'
    (tmp_path / 'go').touch()
    thread.join()


@pytest.mark.parametrize(
    ('said', 'asks'),
    [
        ('Proceed? (yes/no) ', True),
        ('Are you sure you wish to proceed? [Y/n]: ', True),
        ('Password:', True),
        ('Sure?', True),
        ('Sure?\n', False),
        ('Programming: [42%]', False),
        ('', False),
    ],
)
def test_what_looks_like_a_question(said, asks):
    output = command.Output()
    output.add(said.encode())
    assert output.asks is asks


# --- input

# can_proceed() of XRT: an empty line is a yes, and so is the end of the input.
ASKS = """
printf 'Are you sure you wish to proceed? [Y/n]: '
read answer
case $answer in y|Y|'') touch proceeded;; *) echo 'Action canceled.';; esac
"""
# An older tool: it asks until it gets an answer.
ASKS_AGAIN = """
while true; do
  printf 'Proceed? (yes/no) '
  read answer && [ -n "$answer" ] && break
  echo x >> asked
done
touch proceeded
"""


@pytest.mark.parametrize('asks', [ASKS, ASKS_AGAIN])
def test_no_question_is_answered(script, tmp_path, asks):
    text = failure(script(asks), seconds=0.5)
    assert 'not done after 0.5 s, killed' in text
    assert 'probably waited for input' in text
    assert 'roceed?' in text
    assert not (tmp_path / 'proceeded').exists()
    assert not (tmp_path / 'asked').exists()  # it does not loop


def test_there_is_no_terminal_to_ask(script, tmp_path):
    tool = script('test -t 0 && touch terminal; cat /dev/tty; true')
    run(tool)
    assert not (tmp_path / 'terminal').exists()


def test_the_input_does_not_end_with_the_caller(script, tmp_path):
    """A killed daemon must not answer yes, and must not stop the command."""
    tool = script(
        'echo $$ > pid\n'
        'while [ ! -e go ]; do sleep .01; done\n'
        'seq 1 2000\n'  # its output can still go somewhere
        'touch written\n' + ASKS
    )
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            command.run('card', [tool], 60.0, ())
        os._exit(1)
    try:
        wait_for(tmp_path / 'pid')
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        (tmp_path / 'go').touch()
        deadline = time.monotonic() + 20
        while not (tmp_path / 'written').exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(0.2)
        assert not (tmp_path / 'proceeded').exists()
    finally:
        kill(tmp_path / 'pid')


# --- the end


def test_a_command_that_hangs_says_what_it_said(script):
    text = failure(script('echo erasing block 7; sleep 60'), seconds=0.5)
    assert text.endswith('killed. The end of its output: erasing block 7')


@pytest.mark.parametrize('ends', ['true', 'exit 2'])
def test_a_child_that_keeps_the_pipe(script, tmp_path, ends):
    """The command's exit counts, not the end of the output."""
    tool = script(
        f'setsid sh -c "echo \\$\\$ > {tmp_path}/pid; exec sleep 60" &\n'
        f'while [ ! -s pid ]; do sleep .01; done\necho done\n{ends}'
    )
    begun = time.monotonic()
    try:
        if ends == 'true':
            assert run(tool).text == 'done\n'
        else:
            assert failure(tool).endswith('exit code 2: done')
        assert time.monotonic() - begun < 20
    finally:
        kill(tmp_path / 'pid')


def test_a_child_that_never_stops_writing(script, tmp_path):
    tool = script(
        f'setsid sh -c "echo \\$\\$ > {tmp_path}/pid; exec yes" &\n'
        'while [ ! -s pid ]; do sleep .01; done\nsleep .1'
    )
    try:
        assert run(tool).text.endswith('y\n')
    finally:
        kill(tmp_path / 'pid')


def test_a_daemon_keeps_the_locks(script, tmp_path):
    """It keeps the files open that it inherits, as long as it runs."""
    tool = script(
        f'setsid sh -c "echo \\$\\$ > {tmp_path}/pid; exec sleep 60" &\n'
        'while [ ! -s pid ]; do sleep .01; done'
    )
    lock = os.open(tmp_path / 'lock', os.O_RDWR | os.O_CREAT)
    try:
        run(tool, held=[lock])
        pid = int(wait_for(tmp_path / 'pid'))
        links = [
            os.readlink(path)
            for path in pathlib.Path(f'/proc/{pid}/fd').iterdir()
        ]
        assert str(tmp_path / 'lock') in links
    finally:
        kill(tmp_path / 'pid')
        os.close(lock)


def test_children_of_a_hanging_command_are_killed(script, tmp_path):
    tool = script('sh -c "echo \\$\\$ > pid; exec sleep 60" & wait')
    assert 'killed' in failure(tool, seconds=0.5)
    pid = int(wait_for(tmp_path / 'pid'))
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            state = pathlib.Path(f'/proc/{pid}/stat').read_text().split()[2]
        except OSError:
            return
        if state == 'Z':  # nobody has waited for it yet
            return
        time.sleep(0.05)
    raise AssertionError(f'process {pid} is alive')


def test_no_files_are_left_open(script):
    def count() -> int:
        return len(os.listdir('/proc/self/fd'))

    tool = script('echo x')
    run(tool)
    before = count()
    for _ in range(5):
        run(tool)
        failure('/nowhere/tool')
    # Files of earlier tests may be closed meanwhile.
    assert count() <= before

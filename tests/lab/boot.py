# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Boots a real kernel with real devices under QEMU, and runs pytest in it.

    python tests/lab/boot.py [--boots N] [--timeout SECONDS] [-- ARGUMENT...]

The arguments after ``--`` go to pytest; the default is tests/lab. The tests
run as root, with this Python, in this folder and on the root file system of
this machine (see guest.sh). The exit code is that of pytest. No KVM is
needed.

With --boots 2 the machine is booted twice, with the same disk at /lab/state:
tests marked boot1 run at the first boot, those marked boot2 at the second,
and all others at the first. With one boot, marked tests are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import lab_devices

HERE = pathlib.Path(__file__).resolve().parent
CACHE = pathlib.Path(
    os.environ.get('OS_ACC_LAB_CACHE', '/var/cache/os-acc-lab')
)
# Variables that the tests get from the environment of this process, besides
# those that start with OS_ACC_.
PASSED_ON = ('CI', 'LANG', 'PYTEST_ADDOPTS', 'PYTHONWARNINGS')
# Modules that udev does not load, because no test needs them and loading takes
# seconds. A test may still load any of them with modprobe.
NOT_BY_ITSELF = (
    'ahci,bochs,button,evdev,i2c_i801,i6300esb,iTCO_wdt,joydev,kvm_amd,'
    'lpc_ich,pcspkr,powernow_k8,psmouse,qemu_fw_cfg,serio_raw,sg'
)
# With a periodic tick (nohz=off highres=off), the machine goes on after an
# interrupt of its timer was lost. With a one-shot timer it would stop.
KERNEL = (
    'os_acc_lab=1 intel_iommu=on iommu=pt mitigations=off apparmor=0 audit=0 '
    f'tsc=reliable nowatchdog nohz=off highres=off '
    f'modprobe.blacklist={NOT_BY_ITSELF}'
)
FAILED = 70  # EX_SOFTWARE: pytest never returns it
TIMED_OUT = 124  # as timeout(1) returns it
BROKEN = 125  # QEMU hangs, or was ended by a signal
# QEMU 7.2 sometimes stops for ever while a guest runs in the machine: its
# emulated CPU waits for an interrupt that does not come. Any machine that is
# alive, even an idle one, uses more CPU time than this.
HANG_SECONDS = 120.0
HANG_CPU_SECONDS = 0.1
# It also sometimes uses CPU time without end before the tests begin, which
# takes half a minute else.
BOOT_SECONDS = 300.0
# QEMU 7.2 has also died of SIGSEGV, with the tests half done. virtme-ng does
# not tell, so QEMU runs in this script. 128 and more: a signal (sh(1)).
RECORDS_EXIT = """#!/bin/sh
qemu-system-x86_64 "$@"
echo $? > "$(dirname "$0")/qemu-exit"
"""
FIRST_SIGNAL = 128
# Python is about thirty times slower in the lab, so the project's time limit
# per test would be too short. Nothing here uses the two plugins; importing
# hypothesis takes half a minute.
PYTEST = (
    *('-p', 'no:cacheprovider', '-o', 'timeout=1200'),
    *('-p', 'no:hypothesispytest', '-p', 'no:requests_mock'),
)
# How often a machine is booted again because QEMU was broken.
BREAKS = 3


def say(text: str) -> None:
    sys.stdout.write(f'lab: {text}\n')
    sys.stdout.flush()


def arguments() -> argparse.Namespace:
    ours, dashes, theirs = sys.argv[1:], '--', []
    if dashes in ours:
        where = ours.index(dashes)
        ours, theirs = ours[:where], ours[where + 1 :]
    parser = argparse.ArgumentParser(
        description=__doc__.partition('\n')[0],
        usage='%(prog)s [options] [-- ARGUMENT OF PYTEST...]',
    )
    parser.add_argument('--boots', type=int, default=1, metavar='N')
    parser.add_argument(
        '--timeout',
        type=float,
        default=2700,
        metavar='SECONDS',
        help='time limit for all boots together (default: %(default)s, which '
        'suits a slow or busy machine)',
    )
    parser.add_argument(
        '--tries',
        type=int,
        default=1,
        metavar='N',
        help='boot at most N times if the machine went down before the tests '
        'ended, or reached the time limit; each try has the whole --timeout. '
        'If QEMU itself hangs or crashes, the machine is always booted again. '
        'A failed test is not tried again',
    )
    parser.add_argument('--cpus', type=int, default=2)
    parser.add_argument('--memory', default='4G')
    parser.add_argument(
        '--coverage',
        type=pathlib.Path,
        metavar='FOLDER',
        help="the folder for the tests' .coverage files, for coverage combine",
    )
    parser.add_argument(
        '--verbose',
        action='store_true',
        help="also show the kernel's messages",
    )
    parsed = parser.parse_args(ours)
    parsed.pytest = theirs or [str(HERE)]
    return parsed


class Lab:
    """The files that are kept between boots, and the options of each boot."""

    def __init__(self, folder: pathlib.Path, options: argparse.Namespace):
        self.folder = folder
        self.options = options
        self.deadline = time.monotonic() + options.timeout
        self.out = folder / 'out'
        self.out.mkdir()
        self.qemu = self.out / 'qemu'
        self.qemu.write_text(RECORDS_EXIT)
        self.qemu.chmod(0o755)
        self.namespace = self._file('namespace.raw', 64 << 20)
        self.state = self._file('state.raw', 512 << 20)
        subprocess.run(
            ['mkfs.ext4', '-q', '-F', self.state], check=True, timeout=60
        )

    def _file(self, name: str, size: int) -> pathlib.Path:
        path = self.folder / name
        with open(path, 'wb') as file:
            file.truncate(size)
        return path

    def _environment(self, boot: int) -> dict[str, str]:
        bin_folder = pathlib.Path(sys.executable).parent
        environment = {
            name: value
            for name, value in os.environ.items()
            if name in PASSED_ON or name.startswith('OS_ACC_')
        }
        if sys.stdout.isatty():
            environment['PY_COLORS'] = '1'
        return environment | {
            'COVERAGE_FILE': f'/lab/tmp/.coverage.lab.{boot}',
            # Every process imports eventlet, by oslo.messaging. The import of
            # its DNS support alone takes 8 s here.
            'EVENTLET_NO_GREENDNS': 'yes',
            'HOME': '/root',
            'LAB_CWD': os.getcwd(),
            'LAB_PYTHON': sys.executable,
            'OS_ACC_LAB_BOOT': str(boot),
            'OS_ACC_LAB_BOOTS': str(self.options.boots),
            'PATH': f'{bin_folder}:/usr/local/sbin:/usr/local/bin'
            ':/usr/sbin:/usr/bin:/sbin:/bin',
            'TMPDIR': '/lab/tmp',
        }

    def _write_orders(self, boot: int) -> None:
        for name in ('code', 'qemu-exit'):
            (self.out / name).unlink(missing_ok=True)
        (self.out / 'lab.env').write_text(
            ''.join(
                f'export {name}={shlex.quote(value)}\n'
                for name, value in self._environment(boot).items()
            )
        )
        (self.out / 'arguments').write_text(
            ''.join(f'{arg}\0' for arg in (*PYTEST, *self.options.pytest))
        )

    def _command(self) -> list[str]:
        qemu = lab_devices.qemu_options(self.namespace, self.state)
        for tag, path, access in (
            ('lab-root', '/', ',readonly=on,multidevs=remap'),
            ('lab-out', self.out, ''),
        ):
            qemu += [
                '-virtfs',
                f'local,path={path},mount_tag={tag},security_model=none'
                + access,
            ]
        guest = shlex.join(
            [
                *('unshare', '--mount', 'bash', str(HERE / 'guest.sh')),
                str(self.out),
            ]
        )
        return [
            *(sys.executable, '-m', 'virtme_ng.run'),
            *('--run', str(CACHE / 'vmlinuz')),
            *('--qemu', str(self.qemu)),
            *('--disable-kvm', '--force-9p'),
            *('--cpus', str(self.options.cpus)),
            *('--memory', self.options.memory),
            *('--append', KERNEL),
            f'--qemu-opts={shlex.join(qemu)}',
            *(['--verbose'] if self.options.verbose else []),
            *('--', guest),
        ]

    def boot(self, boot: int) -> tuple[int, str]:
        """Boot the machine, run the tests, and wait until it is down.

        :returns: the exit code, and a text about the boot
        """
        self._write_orders(boot)
        started = time.monotonic()
        path = f'{pathlib.Path(sys.executable).parent}:{os.environ["PATH"]}'
        process = subprocess.Popen(
            self._command(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, 'PATH': f'{path}:/usr/sbin:/sbin'},
            # QEMU is a grandchild. end() ends it by its process group.
            start_new_session=True,
        )
        share_like_us(process.pid)
        try:
            last, ended = self._stream(process)
        finally:
            end(process)
        took = f'{time.monotonic() - started:.0f} s'
        if ended == TIMED_OUT:
            return ended, f'still running at the deadline, after {took}'
        if ended == BROKEN:
            return ended, (
                f'QEMU hangs after {took}: the machine has used no CPU time '
                f'for {HANG_SECONDS:.0f} s, or has not started the tests in '
                f'{BOOT_SECONDS:.0f} s'
            )
        try:
            code = int((self.out / 'code').read_text())
        except FileNotFoundError:
            if (number := self._signal()) is not None:
                return BROKEN, f'QEMU died of signal {number} after {took}'
            return FAILED, (
                f'down after {took}, before the tests ended: try --verbose'
            )
        return code, f'{last} ({took} with the boot)'

    def _signal(self) -> int | None:
        """The number of the signal that ended QEMU; None if none did."""
        try:
            code = int((self.out / 'qemu-exit').read_text())
        except FileNotFoundError:
            return None
        return code - FIRST_SIGNAL if code > FIRST_SIGNAL else None

    def _stream(self, process: subprocess.Popen[bytes]) -> tuple[str, int]:
        """Print the output of the machine.

        :returns: the last summary line of pytest, and 0 if the machine is
            down, TIMED_OUT if the deadline has passed, or BROKEN
        """
        assert process.stdout is not None
        last, rest, started = '', b'', False
        alive = Alive(process.pid)
        boot_end = time.monotonic() + BOOT_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while True:
                left = self.deadline - time.monotonic()
                if left <= 0:
                    return last, TIMED_OUT
                if not started and time.monotonic() > boot_end:
                    return last, BROKEN
                if not selector.select(min(left, 10)):
                    if not alive.check():
                        return last, BROKEN
                    continue
                data = os.read(process.stdout.fileno(), 65536)
                if not data:
                    return last, 0
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
                *lines, rest = (rest + data).split(b'\n')
                for line in lines:
                    # The first line of guest.sh.
                    started = started or b'lab: boot ' in line
                    if line.lstrip(b'\x1b[0123456789;m').startswith(b'==='):
                        last = line.decode(errors='replace').strip()


class Alive:
    """Tells from the CPU time of a session whether its QEMU hangs.

    :param session: the id of the session that QEMU runs in
    """

    def __init__(self, session: int) -> None:
        self._session = session
        self._since = time.monotonic()
        self._used = 0.0

    def check(self) -> bool:
        """Say whether the session has used CPU time lately."""
        used = cpu_seconds(self._session)
        if used > self._used + HANG_CPU_SECONDS:
            self._since, self._used = time.monotonic(), used
        return time.monotonic() - self._since < HANG_SECONDS


def cpu_seconds(session: int) -> float:
    """Return the CPU time of the processes of a session, in seconds."""
    ticks = 0
    for name in filter(str.isdigit, os.listdir('/proc')):
        # A process may end at any moment.
        with contextlib.suppress(OSError):
            text = pathlib.Path(f'/proc/{name}/stat').read_text()
            # The name of the command, in parentheses, may have spaces.
            fields = text.rpartition(')')[2].split()
            # Fields 6, 14 and 15 of proc_pid_stat(5).
            if int(fields[3]) == session:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf('SC_CLK_TCK')


def share_like_us(pid: int) -> None:
    """Give the session of a process the nice value of this process.

    With autogroups, the kernel shares the CPUs between sessions by a nice
    value of each session, which is 0 for a new one (sched(7)).
    """
    with contextlib.suppress(OSError):
        pathlib.Path(f'/proc/{pid}/autogroup').write_text(str(os.nice(0)))


def end(process: subprocess.Popen[bytes]) -> None:
    """End virtme-ng and its QEMU if they are still running."""
    for number, seconds in ((signal.SIGTERM, 10), (signal.SIGKILL, 30)):
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
    if process.stdout is not None:
        process.stdout.close()


def compile_sources(pytest: list[str]) -> None:
    """Compile all modules on the host, because this is slow in the lab.

    :param pytest: the arguments of pytest; by collecting the tests, pytest
        compiles them and its plugins in its own way
    """
    folders = [
        name for name in ('os_acc', 'vif_like_plugins') if os.path.isdir(name)
    ]
    environment = dict(os.environ)
    environment.pop('PYTHONDONTWRITEBYTECODE', None)
    for arguments in (
        ['compileall', '-q', HERE, *folders],
        ['pytest', *PYTEST, '--collect-only', *pytest],
    ):
        subprocess.run(
            [sys.executable, '-m', *arguments],
            check=False,
            env=environment,
            stdout=subprocess.DEVNULL,
            timeout=300,
        )


def terminated(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    options = arguments()
    signal.signal(signal.SIGTERM, terminated)
    subprocess.run([HERE / 'install.sh'], check=True)
    compile_sources(options.pytest)
    code = FAILED
    breaks = 0
    for _ in range(options.tries):
        while (code := run(options)) == BROKEN and breaks < BREAKS:
            breaks += 1
        if code not in (FAILED, TIMED_OUT):
            break
    return code


def run(options: argparse.Namespace) -> int:
    """Boot a new machine --boots times, and return the exit code."""
    code, said = 0, []
    with tempfile.TemporaryDirectory(prefix='os-acc-lab-') as folder:
        lab = Lab(pathlib.Path(folder), options)
        for boot in range(1, options.boots + 1):
            code, text = lab.boot(boot)
            said.append(f'boot {boot} of {options.boots}: {text}')
            if code:
                break
        if options.coverage:
            options.coverage.mkdir(parents=True, exist_ok=True)
            for path in lab.out.glob('.coverage*'):
                shutil.copy(path, options.coverage)
    for text in said:
        say(text)
    say(f'exit code {code}')
    return code


if __name__ == '__main__':
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0

"""Boots a real kernel with real devices under QEMU, and runs pytest in it.

    python tests/lab/boot.py [--boots N] [--timeout SECONDS] [-- ARGUMENT...]

The arguments after ``--`` go to pytest; the default is tests/lab. The tests
run as root, with this Python, in this directory and on the root file system of
this machine (see guest.sh). The exit code is that of pytest. No KVM is
needed.

With --boots 2 the machine is booted twice, with the same disk at /lab/state:
tests marked boot1 run at the first boot, those marked boot2 at the second,
and all others at the first. With one boot, marked tests are left out.

A boot in which the guest stops (see watch.py) or QEMU crashes is repeated with
the disks as they were before it, without the boots before it. A boot in which
a test has failed is never repeated.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import findings
import lab_devices
import watch

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
    f'sysrq_always_enabled modprobe.blacklist={NOT_BY_ITSELF}'
)
FAILED = 70  # EX_SOFTWARE: pytest never returns it
TIMED_OUT = 124  # as timeout(1) returns it
BROKEN = 125  # the guest has stopped, or QEMU was ended by a signal
TEST_FAILED = 1  # as pytest returns it
# How often boot.py looks for signs of the guest, in seconds.
LOOK_SECONDS = 5.0
READ = 65536  # bytes: all that a pipe can hold
# QEMU 7.2 has also died of SIGSEGV, with the tests half done. virtme-ng does
# not tell, so QEMU runs in this script. 128 and more: a signal (sh(1)).
RECORDS_EXIT = """#!/bin/sh
%s "$@"
echo $? > "$(dirname "$0")/qemu-exit"
"""
FIRST_SIGNAL = 128
# The disks of a boot: see lab_devices.py.
NAMESPACE, STATE = 'namespace.raw', 'state.raw'
# The last line of pytest, with -q or without.
SUMMARY = re.compile(r'\d+ (passed|failed|errors?|deselected)\b.* in [\d.]+s')
# Nothing here uses the two plugins; importing hypothesis takes half a minute.
PYTEST = (
    *('-p', 'no:cacheprovider', '-o', f'timeout={watch.PYTEST_SECONDS}'),
    *('-p', 'no:hypothesispytest', '-p', 'no:requests_mock'),
)
# How often boots are repeated in a run because the guest has stopped or QEMU
# was ended by a signal.
BREAKS = 3


def say(text: str) -> None:
    sys.stdout.write(f'lab: {text}\n')
    sys.stdout.flush()


def arguments(
    text: str = __doc__, tests: pathlib.Path = HERE
) -> argparse.Namespace:
    """Read the command line.

    :param text: the docstring of the script
    :param tests: what pytest runs by default
    """
    ours, dashes, theirs = sys.argv[1:], '--', []
    if dashes in ours:
        where = ours.index(dashes)
        ours, theirs = ours[:where], ours[where + 1 :]
    parser = argparse.ArgumentParser(
        description=text.partition('\n')[0],
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
        help='try a boot at most N times if the machine went down before the '
        'tests ended, or reached the time limit; a boot that is repeated gets '
        'back the time that it took. If the guest stops or QEMU crashes, the '
        f'boot is always repeated, up to {BREAKS} times in a run. A boot in '
        'which a test has failed is not repeated',
    )
    parser.add_argument('--cpus', type=int, default=2)
    parser.add_argument('--memory', default='4G')
    parser.add_argument(
        '--coverage',
        type=pathlib.Path,
        metavar='DIR',
        help="the directory for the tests' .coverage files, for coverage "
        'combine',
    )
    parser.add_argument(
        '--verbose',
        action='store_true',
        help="also show the kernel's messages",
    )
    parsed = parser.parse_args(ours)
    parsed.pytest = theirs or [str(tests)]
    return parsed


class Lab:
    """The files that are kept between boots, and the options of each boot.

    :cvar QEMU: the command that runs the machine
    """

    QEMU = 'qemu-system-x86_64'

    def __init__(self, directory: pathlib.Path, options: argparse.Namespace):
        self.directory = directory
        self.options = options
        self.deadline = time.monotonic() + options.timeout
        self.said: list[str] = []
        self._breaks = 0
        self.out = directory / 'out'
        self.out.mkdir()
        self.qemu = self.out / 'qemu'
        self.qemu.write_text(RECORDS_EXIT % self.QEMU)
        self.qemu.chmod(0o755)
        # Each boot has copies of the disks, so that it can be repeated.
        self._kept = directory / 'kept'
        self._disks = directory / 'disks'
        self._kept.mkdir()
        self.make_disks()

    def make_disks(self) -> None:
        """Make the disks that the boots share."""
        self._file(NAMESPACE, 64 << 20)
        state = self._file(STATE, 512 << 20)
        subprocess.run(
            ['mkfs.ext4', '-q', '-F', state], check=True, timeout=60
        )

    def _file(self, name: str, size: int) -> pathlib.Path:
        path = self._kept / name
        with open(path, 'wb') as file:
            file.truncate(size)
        return path

    def _copy_disks(self) -> None:
        shutil.rmtree(self._disks, ignore_errors=True)
        # The disks are large files with few blocks.
        subprocess.run(
            ['cp', '-r', '--sparse=always', self._kept, self._disks],
            check=True,
            timeout=300,
        )

    def _keep_disks(self) -> None:
        shutil.rmtree(self._kept)
        self._disks.rename(self._kept)

    def environment(self, boot: int) -> dict[str, str]:
        """The environment of the tests."""
        bin_directory = pathlib.Path(sys.executable).parent
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
            'PATH': f'{bin_directory}:/usr/local/sbin:/usr/local/bin'
            ':/usr/sbin:/usr/bin:/sbin:/bin',
            'TMPDIR': '/lab/tmp',
        }

    def _write_orders(self, boot: int) -> None:
        for name in ('alive', 'code', 'qemu-exit'):
            (self.out / name).unlink(missing_ok=True)
        (self.out / 'lab.env').write_text(
            ''.join(
                f'export {name}={shlex.quote(value)}\n'
                for name, value in self.environment(boot).items()
            )
        )
        (self.out / 'arguments').write_text(
            ''.join(f'{arg}\0' for arg in (*PYTEST, *self.options.pytest))
        )

    def command(self, boot: int) -> list[str]:
        """The command that boots the machine, with its output to stdout."""
        qemu = lab_devices.qemu_options(
            self._disks / NAMESPACE, self._disks / STATE, boot
        )
        qemu += findings.qemu_options(self.directory)
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

        The disks of the machine are kept for the next boot unless this boot
        is to be repeated.

        :returns: the exit code, and a text about the boot. BROKEN, FAILED and
            TIMED_OUT mean that no test is known to have failed
        """
        started = time.monotonic()
        self._write_orders(boot)
        self._copy_disks()
        path = f'{pathlib.Path(sys.executable).parent}:{os.environ["PATH"]}'
        process = subprocess.Popen(
            self.command(boot),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, 'PATH': f'{path}:/usr/sbin:/sbin'},
            # QEMU is a grandchild. end() ends it by its process group.
            start_new_session=True,
        )
        share_like_us(process.pid)
        guest = watch.Watch(self.out / 'alive', time.monotonic)
        try:
            code, text = self._stream(process, guest)
            if code == BROKEN:
                say(text)
                for line in findings.findings(process.pid, self.directory):
                    say(line)
        finally:
            end(process)
        if (ended := self._number('code')) is not None:
            code = ended
        elif not code:
            code, text = self._down()
        if guest.failed and code in (BROKEN, FAILED, TIMED_OUT):
            code = TEST_FAILED
            text += f'; failed before: {", ".join(guest.failed)}'
        if code not in (BROKEN, FAILED, TIMED_OUT):
            self._keep_disks()
        return code, f'{text} ({time.monotonic() - started:.0f} s)'

    def repeated(self, boot: int) -> int:
        """Boot until a boot need not be repeated, and return its exit code."""
        tries = 1
        while True:
            started = time.monotonic()
            code, text = self.boot(boot)
            self.said.append(f'boot {boot} of {self.options.boots}: {text}')
            if code == BROKEN and self._breaks < BREAKS:
                self._breaks += 1
            elif code in (FAILED, TIMED_OUT) and tries < self.options.tries:
                tries += 1
            else:
                return code
            say(f'{self.said[-1]}: boot {boot} is repeated')
            self.deadline += time.monotonic() - started

    def _number(self, name: str) -> int | None:
        """The number in a file that the machine or QEMU has left."""
        try:
            return int((self.out / name).read_text())
        except FileNotFoundError:
            return None

    def _down(self) -> tuple[int, str]:
        """What a machine has that is down and has left no exit code."""
        number = self._number('qemu-exit')
        if number is not None and number > FIRST_SIGNAL:
            return BROKEN, f'QEMU died of signal {number - FIRST_SIGNAL}'
        return FAILED, 'down before the tests ended: try --verbose'

    def _stream(
        self, process: subprocess.Popen[bytes], guest: watch.Watch
    ) -> tuple[int, str]:
        """Print the output of the machine.

        :returns: 0 and the last summary line of pytest if the machine is
            down; else TIMED_OUT or BROKEN, and why
        """
        assert process.stdout is not None
        last, rest = '', b''
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while True:
                # Before select(), see Watch.stopped().
                now = time.monotonic()
                late = now > self.deadline
                data = b''
                # At the deadline too: it may have said that a test failed.
                if selector.select(0 if late else LOOK_SECONDS):
                    data = os.read(process.stdout.fileno(), READ)
                    if not data:
                        return 0, last
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
                *lines, rest = (rest + data).split(b'\n')
                for line in lines:
                    text = line.decode(errors='replace').strip()
                    guest.line(text)
                    if SUMMARY.search(text):
                        last = text
                if late:
                    return TIMED_OUT, 'still running at the deadline'
                if len(data) < READ and (why := guest.stopped(now)):
                    return BROKEN, why


def share_like_us(pid: int) -> None:
    """Give the session of a process the nice value of this process.

    With autogroups, the kernel shares the CPUs between sessions by a nice
    value of each session, which is 0 for a new one (sched(7)).
    """
    with contextlib.suppress(OSError):
        pathlib.Path(f'/proc/{pid}/autogroup').write_text(str(os.nice(0)))


def end(process: subprocess.Popen[bytes]) -> None:
    """End virtme-ng and its QEMU if they are still running.

    SIGKILL also ends a process that is stopped or hangs.
    """
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def compile_sources(pytest: list[str]) -> None:
    """Compile all modules on the host, because this is slow in the lab.

    :param pytest: the arguments of pytest; by collecting the tests, pytest
        compiles them and its plugins in its own way
    """
    directories = [
        name for name in ('os_acc', 'vif_like_plugins') if os.path.isdir(name)
    ]
    environment = dict(os.environ)
    environment.pop('PYTHONDONTWRITEBYTECODE', None)
    for arguments in (
        ['compileall', '-q', HERE, *directories],
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
    return run(options)


def run(options: argparse.Namespace, kind: type[Lab] = Lab) -> int:
    """Boot a new machine --boots times, and return the exit code."""
    code = 0
    with tempfile.TemporaryDirectory(prefix='os-acc-lab-') as directory:
        lab = kind(pathlib.Path(directory), options)
        for boot in range(1, options.boots + 1):
            code = lab.repeated(boot)
            if code:
                break
        if options.coverage:
            options.coverage.mkdir(parents=True, exist_ok=True)
            for path in lab.out.glob('.coverage*'):
                shutil.copy(path, options.coverage)
    for text in lab.said:
        say(text)
    say(f'exit code {code}')
    return code


if __name__ == '__main__':
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0

"""Boots a Debian 13 for two hosts between which guests move, and runs pytest.

    python tests/moving/machine.py [options] [-- ARGUMENT...]

The options are those of tests/lab/boot.py, which also says when a boot is
repeated. The arguments after ``--`` go to pytest; the default is tests/moving.
The tests run as root in the machine that install.sh has built, with os-acc
installed from this tree. The exit code is that of pytest. No KVM is needed.
"""

from __future__ import annotations

import hashlib
from importlib import metadata
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
PROJECT = HERE.parents[1]
sys.path.append(str(HERE.parent / 'lab'))

import boot  # noqa: E402
import findings  # noqa: E402

CACHE = pathlib.Path(
    os.environ.get('OS_ACC_MOVING_CACHE', '/var/cache/os-acc-moving')
)
ROOT = CACHE / 'root'
# Where the machine has the directory that it shares with this script.
SHARED = '/moving'
PACKAGES = '/packages'
NOT_BUILT = ('.*', 'build', '*.egg-info', '__pycache__', 'tests', 'doc')
# The Python of Debian 13, for which pip gets the packages on any host.
PYTHON = '3.13'
PLATFORMS = ('manylinux2014_x86_64', 'manylinux_2_28_x86_64')
# See KERNEL of tests/lab/boot.py for the options of the clock. tsc_early_khz
# is added, because a machine that measures it while it gets little CPU time
# has a clock that runs too fast; no_timer_check, because it may find no timer
# then.
KERNEL = (
    'console=ttyS0 quiet panic=-1 os_acc_moving=1 mitigations=off apparmor=0 '
    'audit=0 intel_iommu=on iommu=pt tsc=reliable nowatchdog nohz=off '
    'highres=off no_timer_check sysrq_always_enabled'
)
# Its VFs take their queues and vectors from a pool.
DRIVE = (
    'nvme,serial=drive,bus=rp1,subsys=subsystem,sriov_max_vfs=2,'
    'sriov_vq_flexible=4,sriov_vi_flexible=2,max_ioqpairs=8,msix_qsize=8'
)
# Runs the QEMU of the root, which is newer than that of Debian 12.
OF_ROOT = """#!/bin/sh
r={root}/usr
export QEMU_MODULE_DIR=$r/lib/x86_64-linux-gnu/qemu
exec $r/lib64/ld-linux-x86-64.so.2 --library-path $r/lib/x86_64-linux-gnu \\
    $r/bin/qemu-system-x86_64 -L $r/share/qemu -L $r/share/seabios "$@"
"""


def clock() -> str:
    """The rate of this host's clock, as an option of the kernel."""
    cpus = pathlib.Path('/proc/cpuinfo').read_text()
    found = re.search(r'^cpu MHz\s*: (\d+)', cpus, re.MULTILINE)
    return f'tsc_early_khz={found[1]}000' if found else ''


class Machine(boot.Lab):
    QEMU = '"$(dirname "$0")/of-root"'

    def make_disks(self) -> None:
        """Share directories instead: the machine needs no disk."""
        of_root = self.out / 'of-root'
        of_root.write_text(OF_ROOT.format(root=shlex.quote(str(ROOT))))
        of_root.chmod(0o755)
        shutil.copy(HERE / 'init.sh', self.out / 'init')
        self.packages = install(self.out)

    def environment(self, boot_number: int) -> dict[str, str]:
        return super().environment(boot_number) | {
            'PATH': '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin',
            # os-acc as it is installed, not as it is in the tree.
            'PYTHONPATH': f'{SHARED}/os-acc:{PACKAGES}',
            'PYTHONSAFEPATH': 'yes',
            'NO_COLOR': 'yes',
            'LAB_CWD': str(PROJECT),
            'LAB_PYTHON': '/usr/bin/python3',
            'TMPDIR': '/tmp',
        }

    def command(self, boot_number: int) -> list[str]:
        options = [
            ('-nodefaults',),
            ('-no-reboot',),
            ('-display', 'none'),
            ('-accel', 'tcg,thread=multi'),
            ('-machine', 'q35,kernel_irqchip=split'),
            ('-device', 'intel-iommu,intremap=on,caching-mode=on'),
            ('-device', 'pcie-root-port,id=rp1,slot=1,addr=0x1c'),
            ('-device', 'nvme-subsys,id=subsystem'),
            ('-device', DRIVE),
            ('-cpu', 'qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt,+svm,+npt'),
            ('-smp', str(self.options.cpus)),
            ('-m', self.options.memory),
            ('-kernel', str(ROOT / 'boot/vmlinuz')),
            ('-initrd', str(CACHE / 'initramfs')),
            ('-append', f'{KERNEL} {clock()}'),
            ('-serial', 'stdio'),
            *(
                (
                    '-virtfs',
                    f'local,security_model=none,multidevs=remap,{each}',
                )
                for each in (
                    f'path={ROOT},mount_tag=root,readonly=on',
                    f'path={PROJECT},mount_tag=project,readonly=on',
                    f'path={self.packages},mount_tag=packages,readonly=on',
                    f'path={self.out},mount_tag=moving',
                )
            ),
        ]
        return [
            str(self.qemu),
            *(part for option in options for part in option),
            *findings.qemu_options(self.directory),
        ]


def install(directory: pathlib.Path) -> pathlib.Path:
    """Install os-acc from this tree, for the Python of the machine.

    :param directory: it gets the directory os-acc
    :returns: the directory in the cache with the packages that os-acc needs
    """
    # setuptools builds in the directory of the sources.
    source = directory / 'source'
    shutil.copytree(PROJECT, source, ignore=shutil.ignore_patterns(*NOT_BUILT))
    pip('--no-deps', '--target', str(directory / 'os-acc'), str(source))
    compile_sources(directory, SHARED)
    (found,) = metadata.distributions(path=[str(directory / 'os-acc')])
    needed = sorted(
        each.partition(';')[0]
        for each in found.requires or ()
        if 'extra' not in each or 'extra == "testing"' in each
    )
    needed.append('pytest-timeout')
    digest = hashlib.sha256('\n'.join(needed).encode()).hexdigest()[:16]
    packages = CACHE / f'packages-{digest}'
    if not packages.is_dir():
        with tempfile.TemporaryDirectory(dir=CACHE) as made:
            pip(
                *('--target', made, '--python-version', PYTHON),
                *('--only-binary', ':all:'),
                *(f'--platform={each}' for each in PLATFORMS),
                *needed,
            )
            compile_sources(pathlib.Path(made), PACKAGES)
            # Renamed last, because this name means that it is complete.
            shutil.copytree(made, f'{packages}.new', dirs_exist_ok=True)
            os.rename(f'{packages}.new', packages)
    return packages


def pip(*arguments: str) -> None:
    boot.say(f'pip install {arguments[-1]}')
    subprocess.run(
        [sys.executable, '-m', 'pip', 'install', '-q', *arguments],
        check=True,
        timeout=1800,
    )


def compile_sources(directory: pathlib.Path, place: str) -> None:
    """Compile modules by the Python of the machine, in which it takes long.

    :param place: where the machine has the directory
    """
    script = (
        'mount --bind "$1" "$2$3" && '
        'exec chroot "$2" python3 -m compileall -q "$3"'
    )
    subprocess.run(
        [
            'unshare',
            '--mount',
            'sh',
            '-c',
            script,
            'sh',
            directory,
            ROOT,
            place,
        ],
        # A package may have a template that is no Python yet.
        check=False,
        stdout=subprocess.DEVNULL,
        timeout=1800,
    )


def main() -> int:
    options = boot.arguments(__doc__, HERE)
    signal.signal(signal.SIGTERM, boot.terminated)
    subprocess.run([HERE / 'install.sh'], check=True)
    return boot.run(options, Machine)


if __name__ == '__main__':
    sys.exit(main())

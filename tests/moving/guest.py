# SPDX-License-Identifier: Apache-2.0

"""The guest that moves: what it runs, its domain, and what it says.

It says again and again what it has, on a serial port whose log is one file for
both hosts. It marks each mediated device that it finds, in a register of the
device that its driver does not use. The mark is in the state of the device: a
guest that reads it again after a move has the state, too.
"""

from __future__ import annotations

import pathlib
import subprocess
import time
import uuid

# The mark is a letter: A for the first device that it finds, then B.
# BAR 0 of the sample is a UART with its scratch register at 7.
INIT = """#!/bin/busybox sh
b=/bin/busybox
$b mkdir -p /proc /sys
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
exec >/dev/ttyS0 2>&1
port= marks=ABCDEFGH n=0
register() { # COMMAND...: dd on the scratch register
    $b dd bs=1 count=1 "$@" 2>/dev/null
}
while :; do
    n=$((n + 1)) text=-
    for tty in /sys/bus/pci/devices/*/tty/* \\
        /sys/bus/pci/devices/*/*/*/tty/*; do
        [ -e "$tty" ] && break
    done
    if [ ! -e "$tty" ]; then
        [ -z "$port" ] || exec 3>&-
        port=
    elif [ -z "$port" ]; then
        port=/dev/${tty##*/}
        device=${tty%%/tty/*}
        while [ ! -e "$device/resource" ]; do device=${device%/*}; done
        read -r base rest <"$device/resource"
        $b stty -F $port raw -echo clocal min 1 time 0
        exec 3<>$port
        printf %c $marks |
            register conv=notrunc of=/dev/port seek=$((base + 7))
        marks=${marks#?}
    fi
    if [ -n "$port" ]; then
        echo "e$n" >&3
        back=
        read -r -t 60 back <&3
        text="$back $(register if=/dev/port skip=$((base + 7)))"
    fi
    drives=$($b cat /sys/bus/pci/devices/*/class | $b grep -c 0x010802)
    echo "BEAT $n $text $drives END"
    $b sleep 0.3
done
"""

# For each wait: a guest has taken 6 minutes to boot on a busy machine.
SECONDS = 900.0
DOMAIN = """
<domain type='kvm'>
  <name>{name}</name>
  <uuid>{uuid}</uuid>
  <memory unit='MiB'>128</memory>
  <vcpu>1</vcpu>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
    <kernel>/boot/vmlinuz</kernel>
    <initrd>{initrd}</initrd>
    <cmdline>console=ttyS0 quiet tsc=unstable 8250.nr_uarts=8</cmdline>
  </os>
  <features><acpi/><apic/></features>
  <cpu mode='host-passthrough' check='none' migratable='on'/>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <controller type='usb' model='none'/>
    <controller type='pci' index='0' model='pcie-root'/>
    <controller type='pci' index='1' model='pcie-root-port'/>
    <controller type='pci' index='2' model='pcie-root-port'/>
    <controller type='pci' index='3' model='pcie-root-port'/>
    <serial type='file'>
      <source path='{log}' append='on'/>
      <target port='0'/>
    </serial>
    <memballoon model='none'/>
    {hostdevs}
  </devices>
</domain>
"""


class Guest:
    """A guest, and the log of its serial port.

    :param directory: an empty one, for its files
    """

    def __init__(self, directory: pathlib.Path) -> None:
        self.uuid = str(uuid.uuid4())
        self.name = f'guest-{self.uuid[:8]}'
        self.log = directory / 'serial'
        self.log.touch()
        self.initrd = directory / 'initrd'
        root = directory / 'root'
        for name in ('bin', 'dev', 'proc', 'sys'):
            (root / name).mkdir(parents=True)
        (root / 'init').write_text(INIT)
        (root / 'init').chmod(0o755)
        subprocess.run(
            'cp /usr/bin/busybox bin/ && '
            f'find . | busybox cpio -o -H newc > {self.initrd}',
            cwd=root,
            shell=True,
            check=True,
            timeout=120,
        )

    def xml(self, hostdevs: str) -> str:
        return DOMAIN.format(
            name=self.name,
            uuid=self.uuid,
            initrd=self.initrd,
            log=self.log,
            hostdevs=hostdevs,
        )

    def beats(self) -> list[list[str]]:
        """What it has said: the words of each line."""
        lines = self.log.read_text(errors='replace').splitlines()
        words = [line.split() for line in lines if 'BEAT ' in line]
        return [w[w.index('BEAT') + 1 : -1] for w in words if w[-1] == 'END']

    def beat(self) -> list[str]:
        """What it says from now on.

        A number, - or echo and mark, and how many NVMe functions it has.
        """
        before = len(self.beats())
        # The next line may have begun before this call.
        wait(
            lambda: len(self.beats()) >= before + 2,
            lambda: (
                f'beats {self.beats()[-2:]}, {self.log.read_text()[-500:]}'
            ),
        )
        return self.beats()[-1]

    def mark(self) -> str | None:
        """The mark of its device, whose port gives back what it is sent.

        :returns: None if it has no device
        """
        number, *device, _ = self.beat()
        if device == ['-']:
            return None
        echo, mark = device
        assert echo == f'e{number}', device
        return mark

    def drives(self) -> int:
        """How many NVMe functions it has."""
        return int(self.beat()[-1])


def wait(check, why=lambda: ''):
    """Wait until a check returns something, and return it."""
    deadline = time.monotonic() + SECONDS
    while not (found := check()):
        assert time.monotonic() < deadline, f'{SECONDS} s are over: {why()}'
        time.sleep(0.2)
    return found

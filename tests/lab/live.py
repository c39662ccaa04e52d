# SPDX-License-Identifier: Apache-2.0

"""libvirtd in the lab, and a guest that reports its PCI devices."""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import subprocess
import time
import uuid

CACHE = pathlib.Path(
    os.environ.get('OS_ACC_LAB_CACHE', '/var/cache/os-acc-lab')
)
URI = 'qemu:///system'
RUN = pathlib.Path('/run/libvirt')
SOCKET = RUN / 'libvirt-sock'

# vendor:device in the guest, of samples/vfio-mdev/mtty.c and QEMU's nvme.
MTTY_IDS = '4348:3253'
NVME_IDS = '1b36:0010'

QEMU_CONF = """
user = "root"
group = "root"
security_driver = "none"
cgroup_controllers = []
stdio_handler = "file"
"""

# Debian's kernel has it as a module.
DISK_MODULES = ('virtio_pci', 'virtio_blk')
# What the guest writes to each of its disks.
TEXT = 'hello-from-the-guest'

# Prints the devices on its bus again and again: BEAT number ids... END. It
# writes to each virtio disk and prints what it reads, and the disk's serial:
# disk:text:serial
INIT = f"""#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
exec >/dev/ttyS0 2>&1
while read -r module; do
    /bin/busybox insmod /modules/$module
done </modules/order
n=0
while :; do
    n=$((n + 1))
    line="BEAT $n"
    for each in /sys/bus/pci/devices/*; do
        read vendor <$each/vendor
        read device <$each/device
        line="$line ${{vendor#0x}}:${{device#0x}}"
    done
    for each in /sys/block/vd*; do
        disk=/dev/${{each##*/}}
        [ -b $disk ] || continue
        echo {TEXT} >/text
        /bin/busybox dd if=/text of=$disk bs=512 conv=sync,fsync 2>/dev/null
        # Not from the guest's cache.
        echo 3 >/proc/sys/vm/drop_caches
        read -r text <$disk
        read -r serial <$each/serial
        line="$line disk:$text:$serial"
    done
    echo "$line END"
    /bin/busybox sleep 0.3
done
"""

DOMAIN = """
<domain type='kvm'>
  <name>{name}</name>
  <uuid>{uuid}</uuid>
  <memory unit='MiB'>{memory}</memory>
  <vcpu>1</vcpu>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
    <kernel>{directory}/vmlinuz</kernel>
    <initrd>{directory}/initrd</initrd>
    <cmdline>console=ttyS0 quiet tsc=unstable</cmdline>
  </os>
  <features><acpi/><apic/></features>
  <cpu mode='host-passthrough' check='none'/>
  <on_poweroff>destroy</on_poweroff>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <controller type='usb' model='none'/>
    <controller type='pci' index='0' model='pcie-root'/>
    {ports}
    <serial type='file'>
      <source path='{log}'/>
      <target port='0'/>
    </serial>
    <memballoon model='none'/>
    {hostdevs}
  </devices>
</domain>
"""


class Libvirtd:
    """libvirtd, with its own directories."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)
        for path in (
            '/run/libvirt',
            '/var/lib/libvirt',
            '/var/cache/libvirt',
            '/etc/libvirt/qemu',
            '/var/log/libvirt',
        ):
            pathlib.Path(path).mkdir(parents=True, exist_ok=True)
            mount = ['mount', '-t', 'tmpfs', 'lab-libvirt', path]
            subprocess.run(mount, check=True, timeout=60)
        pathlib.Path('/etc/libvirt/qemu.conf').write_text(QEMU_CONF)
        subprocess.run(['modprobe', 'kvm_amd', 'nested=0'], check=True)
        # The package's script makes them, but it does not run here.
        for command in (
            ['groupadd', '--system', '--force', 'kvm'],
            ['useradd', '--system', '--user-group', 'libvirt-qemu'],
        ):
            subprocess.run(command, check=False, capture_output=True)
        self._virtlogd = subprocess.Popen(
            ['/usr/sbin/virtlogd'], stdin=subprocess.DEVNULL
        )
        self._process: subprocess.Popen[bytes] | None = None
        self.start()
        self._write_guest()

    def _write_guest(self) -> None:
        root = self.directory / 'root'
        for name in ('bin', 'dev', 'proc', 'sys'):
            (root / name).mkdir(parents=True, exist_ok=True)
        shutil.copy(shutil.which('busybox'), root / 'bin/busybox')
        self._add_modules(root / 'modules')
        (root / 'init').write_text(INIT)
        (root / 'init').chmod(0o755)
        subprocess.run(
            f'cd {root} && find . | busybox cpio -o -H newc '
            f'> {self.directory}/initrd',
            shell=True,
            check=True,
            timeout=120,
        )
        shutil.copy(CACHE / 'vmlinuz', self.directory / 'vmlinuz')

    def _add_modules(self, directory: pathlib.Path) -> None:
        """Add the drivers of a virtio disk, in the order of their loading."""
        directory.mkdir(exist_ok=True)
        shown = subprocess.run(
            ['modprobe', '--all', '--show-depends', *DISK_MODULES],
            check=True,
            timeout=60,
            capture_output=True,
            text=True,
        ).stdout
        words = [line.split() for line in shown.splitlines()]
        paths = [pathlib.Path(w[1]) for w in words if w[0] == 'insmod']
        order = list(dict.fromkeys(path.name for path in paths))
        for path in paths:
            shutil.copy(path, directory)
        (directory / 'order').write_text(''.join(f'{n}\n' for n in order))

    def start(self) -> None:
        log = open(self.directory / 'libvirtd.log', 'ab')  # noqa: SIM115
        self._process = subprocess.Popen(
            ['/usr/sbin/libvirtd'],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        log.close()
        try:
            wait(lambda: virsh('version', check=False).returncode == 0, 120)
        except AssertionError as err:
            log_end = (self.directory / 'libvirtd.log').read_text()[-2000:]
            why = virsh('version', check=False).stderr
            raise AssertionError(
                f'libvirtd ({self._process.poll()}): {log_end}\nvirsh: {why}'
            ) from err

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._process = None

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)
        self._virtlogd.terminate()
        self._virtlogd.wait(60)
        subprocess.run(['modprobe', '-r', 'kvm_amd'], check=False)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid


class Guest:
    """A defined guest, controlled only through virsh."""

    def __init__(
        self,
        daemon: Libvirtd,
        ports: int = 6,
        hostdevs: str = '',
        memory: int = 256,
    ) -> None:
        self.uuid = str(uuid.uuid4())
        self.name = f'guest-{self.uuid[:8]}'
        self.daemon = daemon
        self.ports = ports
        self.memory = memory
        self.log = daemon.directory / f'{self.name}.log'
        self.define(hostdevs)

    def define(self, hostdevs: str = '') -> None:
        path = self.daemon.directory / f'{self.name}.xml'
        port = "<controller type='pci' index='{}' model='pcie-root-port'/>"
        path.write_text(
            DOMAIN.format(
                name=self.name,
                uuid=self.uuid,
                directory=self.daemon.directory,
                memory=self.memory,
                log=self.log,
                ports=''.join(port.format(n + 1) for n in range(self.ports)),
                hostdevs=hostdevs,
            )
        )
        virsh('define', str(path))

    def start(self) -> None:
        self.log.write_bytes(b'')
        virsh('start', self.uuid)
        wait(lambda: self._beats(), 300)

    def _beats(self) -> list[list[str]]:
        lines = self.log.read_text(errors='replace').splitlines()
        words = [line.split() for line in lines if 'BEAT ' in line]
        return [w[w.index('BEAT') + 1 : -1] for w in words if w[-1] == 'END']

    def bus(self) -> list[str]:
        """The devices on the guest's PCI bus now, as vendor:device."""
        before = self._beats()
        last = int(before[-1][0]) if before else 0

        def later() -> list[str] | None:
            now = self._beats()
            # The next report may have begun before this call.
            if now and int(now[-1][0]) >= last + 2:
                return now[-1][1:]
            return None

        return wait(later, 120)

    def sees(self, *ids: str) -> bool:
        bus = self.bus()
        return all(bus.count(each) == ids.count(each) for each in ids)

    def disks(self) -> list[str]:
        """The disks in the guest now, as disk:text:serial."""
        return [word for word in self.bus() if word.startswith('disk:')]

    def xml(self, *options: str) -> str:
        return virsh('dumpxml', *options, self.uuid).stdout

    def destroy(self) -> None:
        virsh('destroy', self.uuid, check=False)

    def remove(self) -> None:
        self.destroy()
        virsh('undefine', self.uuid, check=False)


def virsh(
    *arguments: str, check: bool = True
) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(
        ['virsh', '-q', '-c', URI, *arguments],
        capture_output=True,
        text=True,
        timeout=180,
    )
    if check and result.returncode:
        raise AssertionError(f'virsh {arguments}: {result.stderr}')
    return result


def wait(check, seconds: float):
    deadline = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < deadline, f'waited {seconds} s for {check}'
        time.sleep(0.2)
    return found

# SPDX-License-Identifier: Apache-2.0

"""An instance with a mediated device, and the steps by which it moves.

It may have a VF, too, which cannot move while it is used.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import pathlib
import signal
from typing import Any
import uuid

import agent
from guest import Guest
from guest import wait
from hosts import Host
from hosts import is_given
from hosts import mdev_exists
import libvirt

# So slow that a test can act while memory is copied, in MiB a second.
SLOW, FAST = 2, 1024
COPIED = 1 << 20
SOCKETS = pathlib.Path('/proc/net/unix')


class Instance:
    """It runs on host one, and moves to host two.

    :param with_vf: it also has the VF of its host
    :ivar mdevs: the mediated device that it has, or had, on each host
    :ivar move: the UUID of its last migration
    """

    def __init__(
        self,
        one: Host,
        two: Host,
        directory: pathlib.Path,
        with_vf: bool = False,
    ) -> None:
        self.one, self.two = one, two
        self.guest = Guest(directory)
        self.uuid = self.guest.uuid
        self.van = str(uuid.uuid4())
        self.vf_van = str(uuid.uuid4()) if with_vf else None
        self.mdevs: dict[str, str] = {}
        self.move = ''
        self.prepared: list[Any] = []

    def handles(self, host: Host) -> dict[str, str]:
        """The identity of each VAN's handle on a host."""
        made = {self.van: f'mdev/{self.mdevs[host.name]}'}
        if self.vf_van is not None:
            made[self.vf_van] = f'pci/{host.vf}'
        return made

    def start(self) -> None:
        """Plug it, and start its guest, on host one."""
        self.mdevs['one'] = str(uuid.uuid4())
        self.one.call(
            'plug', instance=self.uuid, handles=self.handles(self.one)
        )
        self.define(self.one)
        self.one.virsh('start', self.guest.name)
        assert self.guest.mark() == 'A'

    def define(self, host: Host) -> None:
        hostdevs = ''.join(van.guest_config for van in host.vans(self.uuid))
        path = host.directory / f'{self.guest.name}.xml'
        path.write_text(self.guest.xml(hostdevs))
        host.virsh('define', str(path))

    def prepare(self, source: Host, target: Host, live: bool = False) -> None:
        """Do what comes before the move of the guest.

        :param live: detach the device from the running guest
        """
        self.prepare_target(source, target)
        self.hand_over(source, live)

    def prepare_target(self, source: Host, target: Host) -> None:
        plan = source.call('describe', instance=self.uuid)
        self.move = str(uuid.uuid4())
        self.mdevs[target.name] = str(uuid.uuid4())
        self.prepared = target.call(
            'prepare',
            instance=self.uuid,
            plan=plan,
            move=self.move,
            handles=self.handles(target),
        )

    def hand_over(self, host: Host, live: bool = False) -> None:
        host.call('hand_over', instance=self.uuid, move=self.move, live=live)

    def begin(
        self,
        source: Host,
        target: Host,
        bandwidth: int = 0,
        with_device: bool = True,
    ) -> None:
        """Begin to move the guest; source.result() waits for the end."""
        source.begin(
            'migrate',
            instance=self.uuid,
            to=target.uri,
            target=self.prepared if with_device else [],
            bandwidth=bandwidth,
        )

    def switch(self, host: Host, live: bool = False) -> None:
        host.call('switch', instance=self.uuid, move=self.move, live=live)

    def finish(self, host: Host) -> None:
        released = host.call('finish', instance=self.uuid, move=self.move)
        assert released == len(self.handles(host))

    def check(self, one: str | None, two: str | None) -> None:
        """Check both journals, and that the devices are as they say.

        :param one: the state of each VAN on host one; None: it has none
        """
        for host, state in ((self.one, one), (self.two, two)):
            handles = self.handles(host)
            wanted = [] if state is None else [*handles.values()]
            assert host.journal(self.uuid) == [
                (state, each) for each in wanted
            ], host.name
            mdev = self.mdevs[host.name]
            assert mdev_exists(mdev) == (state is not None), host.name
            if self.vf_van is not None:
                assert is_given(host.vf) == (state is not None), host.name

    def recover(self) -> None:
        """Both hosts recover, when the time of the migration is over."""
        for host in (self.two, self.one):
            host.call('recover', migration_timeout=1.0)

    def lives_on(
        self, host: Host, other: Host, mark: str | None = 'A'
    ) -> None:
        """Check that the guest runs on one host only, with its device.

        :param mark: of the device; None: any
        """
        assert host.state(self.guest.name).startswith('running')
        assert other.state(self.guest.name) in ('-', 'shut off (migrated)')
        found = self.guest.mark()
        assert found is not None and mark in (found, None), found
        mdev = [self.mdevs[host.name]]
        assert host.mdevs_of(self.guest.name) == (mdev, mdev)
        vf = [] if self.vf_van is None else [host.vf]
        assert host.vfs_of(self.guest.name) == (vf, vf)
        assert self.guest.drives() == len(vf)

    def in_the_copy(self, act: Callable[[], None]) -> None:
        """Act while memory is copied from host one."""
        domain = self._copying()
        act()
        # It may go on, and shall not take long.
        with contextlib.suppress(libvirt.libvirtError):
            domain.migrateSetMaxSpeed(FAST)

    def in_the_switch(self, act: Callable[[], None]) -> None:
        """Act while the source is paused, and the target not yet started.

        libvirtd of the target stands still meanwhile.
        """
        domain = self._copying()
        self.two.signal_libvirtd(signal.SIGSTOP)
        domain.migrateSetMaxSpeed(FAST)
        wait(lambda: domain.state()[0] == libvirt.VIR_DOMAIN_PAUSED)
        # Both QEMUs close their socket when the target has all.
        wait(lambda: agent.SOCKET not in SOCKETS.read_text())
        act()
        if self.two.has_libvirtd():
            self.two.signal_libvirtd(signal.SIGCONT)

    def _copying(self) -> Any:
        """Begin to move slowly, and wait until memory is copied."""
        self.begin(self.one, self.two, SLOW)
        domain = libvirt.open(self.one.uri).lookupByUUIDString(self.uuid)

        def copies() -> bool:
            return domain.jobStats().get('memory_processed', 0) > COPIED

        wait(copies)
        return domain

    def remove(self) -> None:
        """Remove what a test has left."""
        for host in (self.one, self.two):
            if host.has_libvirtd():
                host.signal_libvirtd(signal.SIGCONT)
            if host.is_called:
                host.kill_agent()
                host.start_agent()
            host.start_libvirtd()
            host.wait_for_libvirtd()
            host.virsh('destroy', self.guest.name, check=False)
            host.virsh('undefine', self.guest.name, check=False)
        for host in (self.two, self.one):
            for move in {
                van.migration_uuid
                for van in host.vans(self.uuid)
                if van.state != 'plugged'
            }:
                host.call('abort', instance=self.uuid, move=move)
            host.call('unplug', instance=self.uuid)

# SPDX-License-Identifier: Apache-2.0

"""The examples of contrib/os-acc-hosts: a real Slurm, and units of systemd.

This needs root, and the packages slurmctld, slurmd, slurm-client and munge.
The devices are those of the fake driver.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import configparser
import os
import pathlib
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import time

import pytest
import yaml

HOSTS = pathlib.Path(__file__).parents[2] / 'contrib' / 'os-acc-hosts'
SLURM = HOSTS / 'slurm'
GRES = 'acc_custom_fake_pci'

pytestmark = pytest.mark.no_cover

OS_ACC = """#!/bin/sh
exec {python} -c 'from os_acc.cli import app; raise SystemExit(app.main())' \
    --config-file {configuration} "$@"
"""

CONFIGURATION = """[os_acc]
state_path = {top}/os-acc
plugin = noop
device_spec_dir = {top}/device_spec.d

[os_acc_fake]
devices = nic0:pci:3, gpu0:mdev:1
discover = True
hardware_path = {top}/hardware
"""

# What slurmd calls. It starts these programs with an empty environment.
CALL = """#!/bin/sh
PATH={top}/bin:$PATH OS_ACC_SLURM_STATE={top}/jobs OS_ACC_SLURM_WAIT=5
export PATH OS_ACC_SLURM_STATE OS_ACC_SLURM_WAIT
exec {program}
"""

SLURM_CONF = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={top}/munge.socket
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={top}/state
SlurmdSpoolDir={top}/spool
SlurmctldPidFile={top}/slurmctld.pid
SlurmdPidFile={top}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MessageTimeout=60
GresTypes={gres_types}
PrologFlags=Alloc
Prolog={top}/prolog
Epilog={top}/epilog
TaskProlog={top}/task-prolog
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} Gres={gres} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES State=UP
"""


class Host:
    """A host with the fake devices, whose os-acc is on the PATH.

    :ivar environment: for the programs of the host
    """

    def __init__(self, top: pathlib.Path) -> None:
        self.top = top
        (top / 'bin').mkdir()
        configuration = top / 'os-acc.conf'
        configuration.write_text(CONFIGURATION.format(top=top))
        program = top / 'bin' / 'os-acc'
        program.write_text(
            OS_ACC.format(python=sys.executable, configuration=configuration)
        )
        program.chmod(0o755)
        self.environment = {
            **os.environ,
            'PATH': f'{top}/bin:{os.environ["PATH"]}',
            'OS_ACC_SLURM_STATE': f'{top}/jobs',
        }

    def run(
        self, *command: str, given: str = '', code: int = 0, **more: str
    ) -> str:
        done = subprocess.run(
            command,
            input=given,
            env={**self.environment, **more},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == code, (command, done.stdout, done.stderr)
        return done.stdout

    def handles(self) -> list[str]:
        """The attach handles that instances have."""
        said = self.run('os-acc', 'van', 'list', '-f', 'value', '-c', 'handle')
        return sorted(said.split())

    def gres_conf(self) -> str:
        devices = self.run('os-acc', 'device', 'list', '-f', 'json')
        return self.run(str(SLURM / 'gres-conf'), given=devices)


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


# --- Slurm


def free_ports(number: int) -> list[int]:
    sockets = [socket.create_server(('127.0.0.1', 0)) for _ in range(number)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Slurm(Host):
    """A cluster of this host alone, with munge."""

    def __init__(self, top: pathlib.Path) -> None:
        super().__init__(top)
        self._processes: list[subprocess.Popen[bytes]] = []
        name = socket.gethostname()
        said = self.gres_conf()
        (top / 'gres.conf').write_text(said)
        types, nodes = (
            line.rpartition('=')[2] for line in said.splitlines()[:2]
        )
        configuration = top / 'slurm.conf'
        configuration.write_text(
            SLURM_CONF.format(
                top=top,
                host=name,
                ports=free_ports(2),
                gres_types=types,
                gres=nodes,
                cpus=os.cpu_count(),
            )
        )
        for program in ('prolog', 'epilog', 'task-prolog'):
            call = top / program
            call.write_text(CALL.format(top=top, program=SLURM / program))
            call.chmod(0o755)
        for directory in ('state', 'spool'):
            (top / directory).mkdir()
        self.environment['SLURM_CONF'] = str(configuration)
        key = top / 'munge.key'
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o600)
        self._start(
            *('munged', '--foreground', '--force'),
            f'--key-file={key}',
            f'--socket={top}/munge.socket',
            f'--pid-file={top}/munge.pid',
            f'--log-file={top}/munge.log',
            f'--seed-file={top}/munge.seed',
        )
        self.until(lambda: (top / 'munge.socket').exists())
        self._start('slurmctld', '-D', '-i')
        self._start('slurmd', '-D')
        self.until(lambda: self.node() == 'idle')

    def _start(self, *command: str) -> None:
        with (self.top / f'{command[0]}.out').open('wb') as out:
            self._processes.append(
                subprocess.Popen(
                    command, env=self.environment, stdout=out, stderr=out
                )
            )

    def until(self, reached: Callable[[], bool]) -> None:
        limit = time.monotonic() + 120
        while not reached():
            assert time.monotonic() < limit, self.said()
            time.sleep(0.1)

    def said(self) -> str:
        """What the daemons have printed last."""
        return '\n'.join(
            path.read_text()[-2000:] for path in self.top.glob('*.out')
        )

    def node(self) -> str:
        """The state of the node; a text if slurmctld does not answer."""
        done = subprocess.run(
            ('sinfo', '--noheader', '--format=%T'),
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        return done.stdout.strip()

    def until_idle(self) -> None:
        """Wait for the epilogs."""
        self.until(lambda: self.node() == 'idle')

    def close(self) -> None:
        for each in reversed(self._processes):
            each.terminate()
            each.wait(60)


@pytest.fixture(scope='module')
def slurm(tmp_path_factory) -> Iterator[Slurm]:
    made = Slurm(tmp_path_factory.mktemp('slurm'))
    yield made
    made.close()


def test_a_job_has_its_devices_until_its_end(slurm):
    said = slurm.run(
        *('srun', f'--gres={GRES}:2', 'sh', '-c'),
        'echo "$OS_ACC_DEVICES"; os-acc van list -f value -c handle',
    )
    devices, *handles = said.splitlines()
    assert devices.split() == handles
    assert len(handles) == 2
    slurm.until_idle()
    assert slurm.handles() == []
    assert list((slurm.top / 'jobs').iterdir()) == []


def test_two_classes_of_one_job(slurm):
    said = slurm.run(
        *('srun', f'--gres={GRES}:1,acc_custom_fake_mdev:1', 'sh', '-c'),
        'echo "$OS_ACC_DEVICES"',
    )
    assert sorted(each.partition('/')[0] for each in said.split()) == [
        'mdev',
        'pci',
    ]
    slurm.until_idle()
    assert slurm.handles() == []


def test_a_job_without_accelerators_gets_none(slurm):
    said = slurm.run('srun', 'sh', '-c', 'echo "devices:$OS_ACC_DEVICES"')
    assert said == 'devices:\n'


def test_a_job_whose_device_another_has_does_not_start(slurm):
    """A plug outside of Slurm: the prolog fails, and Slurm drains the node."""
    slurm.run(
        *('os-acc', 'plug', 'other', '--resource-class', 'CUSTOM_FAKE_MDEV')
    )
    job = slurm.run(
        *('sbatch', '--parsable', '--gres=acc_custom_fake_mdev:1'),
        *('--output=/dev/null', '--wrap', f'touch {slurm.top}/started'),
    ).strip()
    try:
        slurm.until(lambda: slurm.node().startswith('drain'))
        assert not (slurm.top / 'started').exists()
    finally:
        slurm.run('scancel', job)
        slurm.run('os-acc', 'unplug', 'other')
        slurm.run(
            *('scontrol', 'update', f'NodeName={socket.gethostname()}'),
            'State=RESUME',
        )
    slurm.until_idle()
    assert slurm.handles() == []


# --- the scripts alone


def test_the_epilog_for_all_jobs_releases_what_the_last_boot_left(host):
    jobs = host.top / 'jobs'
    jobs.mkdir()
    for job in ('7', '8'):
        (jobs / job).write_text(f'# {GRES}\n')
        host.run(
            *('os-acc', 'plug', f'slurm/{job}/{GRES}'),
            *('--resource-class', 'CUSTOM_FAKE_PCI'),
        )
    host.run('os-acc', 'plug', 'mine', '--resource-class', 'CUSTOM_FAKE_MDEV')
    host.run(str(SLURM / 'epilog'), '--all')
    assert [each.partition('/')[0] for each in host.handles()] == ['mdev']
    assert list(jobs.iterdir()) == []


def test_an_epilog_that_is_repeated_does_nothing(host):
    host.run(str(SLURM / 'epilog'), SLURM_JOB_ID='7')


def test_gres_conf_counts_the_handles_of_each_class(host):
    assert host.gres_conf() == (
        '# slurm.conf: GresTypes=acc_custom_fake_mdev,acc_custom_fake_pci\n'
        '# slurm.conf: NodeName=... '
        'Gres=acc_custom_fake_mdev:1,acc_custom_fake_pci:3\n'
        'Name=acc_custom_fake_mdev Count=1\n'
        'Name=acc_custom_fake_pci Count=3\n'
    )


def test_gres_conf_of_no_device_is_an_error(host):
    host.run(str(SLURM / 'gres-conf'), given='[]', code=1)


# --- systemd


def unit(path: pathlib.Path) -> configparser.ConfigParser:
    """A unit, whose keys stand once in a section or are not asked for."""
    found = configparser.ConfigParser(strict=False, interpolation=None)
    found.optionxform = str  # type: ignore[assignment]
    found.read_string(path.read_text())
    return found


def verify(path: pathlib.Path, text: str) -> None:
    """Let systemd read a unit. It says nothing of one that is right."""
    path.write_text(text)
    done = subprocess.run(
        ('systemd-analyze', 'verify', '--man=no', str(path)),
        capture_output=True,
        text=True,
        timeout=300,
    )
    # What it says of other units of this machine does not count.
    wrong = [x for x in done.stderr.splitlines() if path.name in x]
    assert wrong == []


def test_systemd_takes_the_unit_that_recovers(host):
    source = HOSTS / 'systemd' / 'os-acc-recover.service'
    text = source.read_text().replace(
        'ExecStart=os-acc', f'ExecStart={host.top}/bin/os-acc'
    )
    verify(host.top / source.name, text)
    with pytest.raises(AssertionError):
        verify(host.top / source.name, text.replace('Type=', 'Kind='))
    before = source.read_text()
    for service in ('docker', 'containerd', 'crio', 'kubelet', 'slurmd'):
        assert f' {service}.service' in before or (
            f'={service}.service' in before
        )
    host.run(*shlex.split(unit(source)['Service']['ExecStart']))


def test_systemd_takes_the_drop_in_for_slurm(host):
    """The drop-in is a part of the unit, so it is read as one."""
    source = HOSTS / 'systemd' / 'os-acc-recover.service'
    more = unit(HOSTS / 'systemd' / 'slurm.conf')['Service']['ExecStartPost']
    program, argument = more.split()
    assert program == f'/etc/slurm/os-acc/{(SLURM / "epilog").name}'
    text = source.read_text().replace(
        'ExecStart=os-acc recover',
        f'ExecStart={host.top}/bin/os-acc recover\n'
        f'ExecStartPost={SLURM / "epilog"} {argument}',
    )
    verify(host.top / source.name, text)


def test_the_service_of_podman_plugs_and_unplugs(host):
    """The commands around the container, and the name that it is given.

    podman makes the service of the file from version 4.4 on; the podman of
    test_cdi_podman.py starts a container with such a name.
    """
    found = unit(HOSTS / 'quadlet' / 'web.container')
    kind, _, name = found['Container']['AddDevice'].partition('=')
    assert kind == 'os-acc.openstack.org/accelerator'
    assert found['Container']['DropCapability'] == 'MKNOD'
    assert found['Unit']['After'] == 'os-acc-recover.service'
    # The fake devices have neither this class nor a container.
    plug = (
        found['Service']['ExecStartPre']
        .replace('FPGA', 'CUSTOM_FAKE_PCI')
        .replace('--plugin cdi', '--plugin noop')
    )
    for _ in range(2):
        said = host.run(*shlex.split(plug), '-f', 'value', '-c', 'uuid')
        assert said.strip() == name
        host.run(*shlex.split(found['Service']['ExecStopPost']))
        assert host.handles() == []
    # As a service, without the part that podman replaces by its own command.
    sections = (HOSTS / 'quadlet' / 'web.container').read_text().split('\n[')
    text = '\n['.join(x for x in sections if not x.startswith('Container]'))
    text = text.replace('=os-acc ', f'={host.top}/bin/os-acc ').replace(
        '[Service]', f'[Service]\nExecStart={shutil.which("sleep")} 1'
    )
    verify(host.top / 'web.service', text)


def test_the_file_of_compose_gives_the_container_the_device():
    text = (HOSTS / 'compose' / 'compose.yaml').read_text()
    (service,) = yaml.safe_load(text)['services'].values()
    assert service['devices'] == [
        '${OS_ACC_CDI_DEVICES:?start it by os-acc run}'
    ]
    assert service['cap_drop'] == ['MKNOD']

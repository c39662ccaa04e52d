# SPDX-License-Identifier: Apache-2.0

"""The cloud of these tests: a real Cyborg, whose agent has os-acc's driver.

nova-compute's part is the command os-acc, on the same generated host as the
agent.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any
import uuid

import catalog
import configuration
import cyborg_cloud
import hardware
import layout
import processes
import pymysql
import shared_kernel
import vendor

import os_acc as os_acc_library
from os_acc import objects

HERE = pathlib.Path(__file__).parent
#: The program that runs others on the generated host.
ON_HOST = HERE.parent / 'shared_kernel.py'
#: The directory by which the tests ask for reports: see agent.py.
REPORTS = layout.ROOT / 'reports'


class Live(cyborg_cloud.CyborgCloud):
    """The services of a controller, and Cyborg's agent of one host.

    :ivar kernel: the host
    :ivar tool: the tool that programs the FPGA
    """

    kernel: shared_kernel.SharedKernel
    tool: vendor.Vendor

    def __init__(self) -> None:
        super().__init__()
        self.agent = processes.Service(
            'cyborg-agent',
            [
                layout.services_program('python'),
                ON_HOST,
                hardware.DIRECTORY,
                HERE / 'agent.py',
                REPORTS,
                '--config-file',
                layout.ETC / 'cyborg.conf',
                '--config-file',
                layout.ETC / 'cyborg-agent.conf',
                '--config-file',
                hardware.CONF,
                '--log-file',
                'cyborg-agent.log',
            ],
        )

    def start(self) -> None:
        """Start everything, and wait until Cyborg has all devices."""
        REPORTS.mkdir()
        self.ask_for_report()
        super().start()
        self.wait_for_report()
        self.note('complete report')

    def configure(self) -> None:
        super().configure()
        self.kernel, self.tool = hardware.build()
        # This process looks at the host too, see vans().
        shared_kernel.install(hardware.DIRECTORY)
        os_acc_library.CONF(
            ['--config-file', str(hardware.CONF)], project='os-acc'
        )
        python = layout.services_program('python')
        helper = layout.services_program('privsep-helper')
        configuration.write(
            layout.ETC / 'cyborg-agent.conf',
            {
                # An answer that is lost with its conductor does not hold up
                # the next report for long.
                'DEFAULT': {'rpc_response_timeout': 60},
                'agent': {'enabled_drivers': 'os_acc'},
                'cyborg_sys_admin': {
                    'helper_command': (
                        f'{python} {ON_HOST} {hardware.DIRECTORY} {helper} '
                        f'--config-file {layout.ETC / "cyborg.conf"}'
                    )
                },
            },
        )

    def start_control(self) -> None:
        nova = processes.Service(
            'nova-stub',
            [sys.executable, HERE / 'nova_stub.py', str(layout.NOVA_PORT)],
        )
        nova.start()
        super().start_control()
        nova.wait_for_http(cyborg_cloud.url(layout.NOVA_PORT))

    def start_host(self) -> None:
        """Make the host's resource provider, as nova-compute does."""
        catalog.connect().placement.create_resource_provider(name=layout.HOST)

    def start_agent(self) -> None:
        """Start Cyborg's agent again, and wait for its first report."""
        self.ask_for_report()
        self.agent.start()
        self.wait_for_report()

    def report(self) -> None:
        """Let the agent report what is there now, and wait until it has."""
        self.ask_for_report()
        self.wait_for_report()

    def ask_for_report(self) -> None:
        """Let the agent report, as soon as it can."""
        new = REPORTS / 'new'
        new.write_text(str(uuid.uuid4()))
        new.replace(REPORTS / 'wanted')

    def wait_for_report(self) -> None:
        """Wait until the agent has reported what was asked for last."""
        wanted, reported = REPORTS / 'wanted', REPORTS / 'reported'
        self.agent.wait_until(
            'report',
            lambda: (
                reported.exists()
                and reported.read_text() == wanted.read_text()
            ),
        )


def os_acc(*arguments: str, code: int = 0, text: str = '') -> str:
    """Run the command os-acc on the compute host.

    :param code: the exit code that is expected
    :param text: what the command must say on standard error
    :returns: its output
    """
    done = finish(*arguments)
    assert done.returncode == code, f'{done.args}\n{done.stdout}{done.stderr}'
    assert text in done.stderr, done.stderr
    return done.stdout


def finish(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command os-acc on the compute host, whatever its exit code."""
    return processes.finish(
        sys.executable,
        str(ON_HOST),
        str(hardware.DIRECTORY),
        layout.nova_program('os-acc'),
        '--config-file',
        str(hardware.CONF),
        *arguments,
    )


def plug(instance: str, code: int = 0, text: str = '') -> list[dict[str, Any]]:
    """Plug what Cyborg has bound to an instance.

    :param code: see os_acc(), as for text
    :returns: its VANs, as the command shows them
    """
    output = os_acc(*_plug(instance), code=code, text=text)
    found: list[dict[str, Any]] = json.loads(output) if not code else []
    return found


def try_to_plug(instance: str) -> subprocess.CompletedProcess[str]:
    """Plug what Cyborg has bound to an instance; it may fail."""
    return finish(*_plug(instance))


def _plug(instance: str) -> list[str]:
    cloud = ['--os-cloud', configuration.ADMIN_CLOUD]
    return ['plug', instance, '--from-cyborg', *cloud, '-f', 'json']


def unplug(instance: str) -> None:
    os_acc('unplug', instance)


def vans() -> list[objects.VAN]:
    """Return all VANs of the host."""
    os_acc_library.initialize(reset=True, read_only=True)
    return list(os_acc_library.get_vans())


def sql(query: str, *values: Any) -> list[tuple[Any, ...]]:
    """Read from or change Cyborg's database, without its foreign keys."""
    with (
        pymysql.connect(
            unix_socket=str(layout.MARIADB_SOCKET),
            user='root',
            database='cyborg',
            autocommit=True,
        ) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute('SET foreign_key_checks = 0')
        cursor.execute(query, values)
        return list(cursor.fetchall())


def check(*arguments: str, code: int = 0) -> list[dict[str, Any]]:
    """Run "os-acc cyborg check", and return what differs."""
    output = os_acc(
        'cyborg',
        'check',
        '--os-cloud',
        configuration.ADMIN_CLOUD,
        '-f',
        'json',
        *arguments,
        code=code,
    )
    found: list[dict[str, Any]] = json.loads(output)
    return found

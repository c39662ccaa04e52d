# SPDX-License-Identifier: Apache-2.0

"""MariaDB, and the databases of the services.

sqlite does not serve here: Nova's API then answers some requests with the
status 500, "database is locked".
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from concurrent import futures

import layout
import processes
import pymysql

NAMES = (
    'cyborg',
    'glance',
    'keystone',
    'nova_api',
    'nova_cell0',
    'nova_cell1',
    'placement',
)


def start() -> processes.Service:
    """Start MariaDB with a database for each service, all still empty."""
    data = layout.ROOT / 'mariadb'
    processes.run(
        'mariadb-install-db',
        '--no-defaults',
        '--user=root',
        f'--datadir={data}',
        '--skip-test-db',
        '--auth-root-authentication-method=socket',
        '--auth-root-socket-user=root',
    )
    service = processes.Service(
        'mariadb',
        [
            'mariadbd',
            '--no-defaults',
            '--user=root',
            f'--datadir={data}',
            f'--socket={layout.MARIADB_SOCKET}',
            f'--bind-address={layout.ADDRESS}',
            f'--pid-file={layout.ROOT / "mariadb.pid"}',
            '--max-connections=500',
        ],
    )
    service.start()
    with service.wait_until('connection', _connect) as connection:
        _create(connection.cursor())
    return service


def _connect() -> pymysql.Connection | None:
    try:
        return pymysql.connect(
            unix_socket=str(layout.MARIADB_SOCKET), user='root'
        )
    except pymysql.OperationalError:
        return None


def _create(cursor: pymysql.cursors.Cursor) -> None:
    users = [f"openstack@'{host}'" for host in (layout.ADDRESS, 'localhost')]
    for user in users:
        cursor.execute(f"CREATE USER {user} IDENTIFIED BY '{layout.PASSWORD}'")
    for name in NAMES:
        cursor.execute(f'CREATE DATABASE {name} CHARACTER SET utf8mb4')
        for user in users:
            cursor.execute(f'GRANT ALL ON {name}.* TO {user}')


def fill(
    executor: futures.Executor, services: Sequence[str]
) -> dict[str, futures.Future[None]]:
    """Create the tables of services, side by side.

    :returns: by the name of the service
    """
    steps: dict[str, Callable[[], None]] = {
        'keystone': _keystone,
        'nova': _nova,
        'placement': _placement,
        'glance': _glance,
        'cyborg': _cyborg,
    }
    return {name: executor.submit(steps[name]) for name in services}


def _keystone() -> None:
    manage = (
        layout.services_program('keystone-manage'),
        '--config-file',
        str(layout.ETC / 'keystone.conf'),
    )
    processes.run(*manage, 'db_sync')
    urls = []
    for face in ('public', 'internal', 'admin'):
        urls += [f'--bootstrap-{face}-url', layout.KEYSTONE]
    processes.run(
        *manage,
        'bootstrap',
        '--bootstrap-password',
        layout.PASSWORD,
        '--bootstrap-region-id',
        layout.REGION,
        *urls,
    )


def _placement() -> None:
    processes.run(
        layout.services_program('placement-manage'),
        '--config-file',
        str(layout.ETC / 'placement' / 'placement.conf'),
        'db',
        'sync',
    )


def _cyborg() -> None:
    processes.run(
        layout.services_program('cyborg-dbsync'),
        '--config-file',
        str(layout.ETC / 'cyborg.conf'),
        'upgrade',
    )


def _glance() -> None:
    processes.run(
        layout.nova_program('glance-manage'),
        '--config-file',
        str(layout.ETC / 'glance' / 'glance-api.conf'),
        'db_sync',
    )


def _nova() -> None:
    nova_manage('api_db', 'sync')
    nova_manage(
        'cell_v2',
        'map_cell0',
        '--database_connection',
        layout.database('nova_cell0'),
    )
    nova_manage('db', 'sync')  # cell 0, and the database of nova.conf
    nova_manage('cell_v2', 'create_cell', '--name', 'cell1')


def nova_manage(*arguments: str) -> None:
    """Run nova-manage."""
    processes.run(
        layout.nova_program('nova-manage'),
        '--config-file',
        str(layout.ETC / 'nova' / 'nova.conf'),
        *arguments,
    )

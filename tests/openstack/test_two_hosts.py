# SPDX-License-Identifier: Apache-2.0

"""Functions of FPGAs on two compute hosts: demand, and os-acc's weigher.

The FPGAs are devices of os-acc's driver fake. Cyborg does not know them.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
from concurrent import futures
import contextlib
import dataclasses
import json
import pathlib

import cloud as clouds
import commands
import configuration
import layout
from openstack.compute.v2.server import Server
import processes
import pytest
import second_host
from servers import TRAIT
from servers import Servers
from servers import os_acc
from servers import states
from servers import vans

from os_acc.kinds.fake.driver import hardware
from os_acc.placement import functions

CLASS = 'CUSTOM_FAKE_TEST'
#: A trait that the administrator gives to the FPGAs: the device local, of the
#: same resource class, cannot be programmed.
CARD = 'CUSTOM_FPGA_CARD'
#: The function of the first host's FPGAs, and that of the second host's.
FIRST, SECOND = 'aes', 'sha'


@dataclasses.dataclass(frozen=True)
class Host:
    """A compute host.

    :ivar conf: the configuration of its nova-compute
    :ivar fpgas: the UUIDs of the providers of its FPGAs, by name
    """

    name: str
    conf: pathlib.Path
    fpgas: dict[str, str]

    def os_acc(self, *arguments: str) -> str:
        """Run the command os-acc on this host."""
        return os_acc(*arguments, conf=self.conf)

    def names(self) -> set[str]:
        """The names of the providers of its FPGAs."""
        return {f'{self.name}_os-acc_{fpga}' for fpga in self.fpgas}

    def programmings(self) -> int:
        """How often its FPGAs were programmed."""
        path = layout.os_acc_state(self.conf) / 'fake-hardware'
        return sum(map(hardware.Hardware(str(path)).times, self.fpgas))


@pytest.fixture(scope='module')
def hosts(cloud: clouds.Cloud) -> Iterator[Sequence[Host]]:
    """Both hosts. The second one is there for this module only."""
    with contextlib.ExitStack() as stack:
        for name, conf in (
            ('os-acc-nova-demand', layout.NOVA_COMPUTE_CONF),
            ('os-acc-nova-demand-2', layout.SECOND_COMPUTE_CONF),
        ):
            demand = second_host.demand_service(name, conf)
            stack.callback(demand.stop)
            second_host.start_demand(demand)
        second = second_host.SecondHost()
        stack.callback(second.remove)
        second.start()
        yield [
            _host(layout.HOST, layout.NOVA_COMPUTE_CONF),
            _host(layout.SECOND_HOST, layout.SECOND_COMPUTE_CONF),
        ]
        assert vans(conf=layout.SECOND_COMPUTE_CONF) == []
    assert commands.providers(layout.SECOND_HOST) == {}


def _host(name: str, conf: pathlib.Path) -> Host:
    """Wait until the FPGAs of a host are reported, and mark them.

    The first host has devices of Cyborg, too.
    """
    start = f'{name}_os-acc_'
    places = {f'{start}{each}' for each in (*layout.FPGAS, 'local')}
    found = processes.wait_until(
        f'the devices of {name} in Placement',
        lambda: (
            found
            if (found := commands.providers(name)).keys() >= places
            else None
        ),
    )
    fpgas = {each: found[f'{start}{each}'] for each in layout.FPGAS}
    commands.openstack('trait', 'create', CARD)
    with futures.ThreadPoolExecutor() as executor:
        list(executor.map(_mark, fpgas.values()))
    return Host(name, conf, fpgas)


def _mark(provider: str) -> None:
    # The command replaces all traits.
    assert commands.traits(provider) == {TRAIT, functions.EMPTY}
    commands.openstack(
        *('resource', 'provider', 'trait', 'set', provider),
        *('--trait', TRAIT, '--trait', functions.EMPTY, '--trait', CARD),
        *('-f', 'json'),
    )


def test_a_boot_that_found_no_host(
    hosts: Sequence[Host], servers: Servers, tmp_path: pathlib.Path
) -> None:
    """A pool programs what a boot wanted, so that the next one succeeds."""
    document = tmp_path / 'host.json'
    pool = {'function': 'fft', 'on_demand': True}
    document.write_text(json.dumps({'version': 1, 'pools': [pool]}))
    for host in hosts:
        host.os_acc('apply', str(document))
        host.os_acc('pools', '--keep')
    fft = functions.trait('fft')
    flavor = servers.create_flavor(
        'fft',
        {
            f'resources:{CLASS}': '1',
            f'trait:{CARD}': 'required',
            f'trait:{fft}': 'required',
        },
    )
    everything = set().union(*(each.names() for each in hosts))
    assert commands.holders(functions.EMPTY) == everything
    assert commands.holders(fft) == set()

    refused = servers.wait(servers.begin(flavor), 'ERROR')

    assert 'No valid host' in refused.fault['message']
    assert commands.allocated(refused.id) == {}
    chosen = processes.wait_until(
        'a host has recorded the demand',
        lambda: [
            each
            for each in hosts
            if json.loads(each.os_acc('demand', '-f', 'json'))
        ],
    )

    for host in hosts:  # as a timer does
        host.os_acc('pools', '--keep')

    # Of the two hosts, one acts.
    assert [each.programmings() for each in chosen] == [1]
    assert sum(each.programmings() for each in hosts) == 1
    (programmed,) = processes.wait_until(
        'nova-compute has reported the function',
        lambda: commands.holders(fft),
    )
    assert programmed in chosen[0].names()
    assert commands.holders(functions.EMPTY) == everything - {programmed}

    server = servers.create(flavor)

    provider = commands.providers(chosen[0].name)[programmed]
    assert commands.traits(provider) == {TRAIT, fft, CARD}
    assert commands.allocated(server.id)[provider] == {CLASS: 1}
    (van,) = vans(server, chosen[0].conf)
    assert programmed == f'{chosen[0].name}_os-acc_{van["device"]}'
    assert states([van]) == {'plugged'}
    for host in hosts:
        document.write_text('{"version": 1}')
        host.os_acc('apply', str(document))


def test_the_weigher(
    cloud: clouds.Cloud, hosts: Sequence[Host], servers: Servers
) -> None:
    """Each boot goes to the host that has the function already."""
    flavors = {
        function: servers.create_flavor(
            function,
            {
                f'resources:{CLASS}': '1',
                f'trait:{CARD}': 'required',
                'os_acc:function_id': function,
            },
        )
        for function in (FIRST, SECOND)
    }
    program(hosts)

    made, programmings = boot(hosts, servers, flavors)

    for function, host in zip((FIRST, SECOND), hosts, strict=True):
        for server in made[function]:
            assert server.compute_host == host.name
            (van,) = vans(server, host.conf)
            provider = host.fpgas[van['device']]
            assert commands.allocated(server.id)[provider] == {CLASS: 1}
    assert programmings == 0

    # Without it, Nova spreads the servers over both hosts.
    for server in (*made[FIRST], *made[SECOND]):
        servers.delete(server)
    configuration.set_weigher(in_use=False)
    cloud.restart_scheduler()
    try:
        assert boot(hosts, servers, flavors)[1] == 2
    finally:
        configuration.set_weigher(in_use=True)
        cloud.restart_scheduler()


def program(hosts: Sequence[Host]) -> None:
    """Give each host's FPGAs their function, and wait until all know it."""
    for function, host in zip((FIRST, SECOND), hosts, strict=True):
        for fpga in host.fpgas:
            host.os_acc('device', 'program', fpga, '--function', function)
    for function, host in zip((FIRST, SECOND), hosts, strict=True):
        trait = functions.trait(function)
        processes.wait_until(
            f'the FPGAs of {host.name} have {trait}',
            lambda trait=trait, host=host: (
                commands.holders(trait) == host.names()
            ),
        )


def boot(
    hosts: Sequence[Host], servers: Servers, flavors: dict[str, str]
) -> tuple[dict[str, list[Server]], int]:
    """Boot two servers of each flavor, one after the other.

    :param flavors: by function
    :returns: the servers by function, and how often a boot programmed an FPGA
    """
    before = sum(each.programmings() for each in hosts)
    made = {
        function: [servers.create(flavor) for _ in range(2)]
        for function, flavor in flavors.items()
    }
    return made, sum(each.programmings() for each in hosts) - before

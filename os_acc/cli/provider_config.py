# SPDX-License-Identifier: Apache-2.0

"""os-acc provider-config: the devices of this host, for Nova's Placement."""

from __future__ import annotations

import argparse
import uuid

from oslo_config import cfg

import os_acc
from os_acc import exception
from os_acc import host as host_module
from os_acc import objects
from os_acc.cli import base
from os_acc.operations import discovery
from os_acc.placement import inventory
from os_acc.placement import provider_config


class ProviderConfig(base.Command):
    """Print the provider.yaml with which Nova offers the devices.

    Flavors can then request the devices without Cyborg. With --install, the
    file is written into the directory that nova-compute reads when it starts.
    Standard error says which devices and traits are left out, and why.
    """

    configured = True

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--install',
            action='store_true',
            help=f'write the file {provider_config.FILE} instead of printing '
            'it. Restart nova-compute afterwards',
        )
        parser.add_argument(
            '--directory',
            metavar='DIR',
            help='the directory of the file (default: the option '
            'provider_config_location of the group [compute] of nova.conf, '
            f'which is {provider_config.DIRECTORY} unless it is set)',
        )
        parser.add_argument(
            '--resource-class',
            action='append',
            default=[],
            metavar='NAME',
            help='only devices of this resource class; may be repeated. Use '
            'it if Cyborg or Nova manages the other devices',
        )
        parser.add_argument(
            '--force',
            action='store_true',
            help='with --install: replace a file that os-acc has not written, '
            'and remove resource classes that instances of this host have',
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        host = base.look()
        try:
            base.tell_if_empty(host.journal)
            # If the discovery fails, a device could be missing. Its
            # inventory must not vanish from Placement.
            offer = inventory.offer(
                discovery.devices(host),
                lambda name: _unusable(host, name),
                parsed_args.resource_class,
            )
            used = {
                entry.request.resource_class
                for entry in host.journal.entries()
                if entry.request.resource_class is not None
            }
        finally:
            host.close()
        for note in offer.notes:
            self.say(note)
        if not offer.inventories:
            self.say('no device can be offered')
        if parsed_args.install:
            self._install(parsed_args, offer, used)
        else:
            self.app.stdout.write(provider_config.text(offer))

    def _install(
        self,
        parsed_args: argparse.Namespace,
        offer: inventory.Offer,
        used: set[str],
    ) -> None:
        directory = parsed_args.directory or _directory()
        for text in provider_config.others(directory):
            self.say(text)
        written = provider_config.install(
            directory, offer, used, parsed_args.force
        )
        self.app.stdout.write(
            f'{directory.rstrip("/")}/{provider_config.FILE}: '
            + (
                'written. nova-compute reads it only when it starts: restart '
                'it\n'
                if written
                else 'unchanged\n'
            )
        )


def _unusable(host: host_module.Host, name: str) -> str | None:
    """Say why no driver takes a request for a resource class."""
    request = objects.AcceleratorRequest(
        uuid=str(uuid.uuid4()), resource_class=name
    )
    try:
        host.extensions.driver_for(request, host.conf.os_acc.drivers)
    except (
        exception.NoMatchingDriver,
        exception.AmbiguousDriver,
    ) as err:
        return str(err)
    return None


def _directory() -> str:
    """Nova's option [compute] provider_config_location.

    It is registered here, because this process does not import Nova.
    """
    os_acc.CONF.register_opt(
        cfg.StrOpt(
            'provider_config_location', default=provider_config.DIRECTORY
        ),
        group='compute',
    )
    directory: str = os_acc.CONF.compute.provider_config_location
    return directory

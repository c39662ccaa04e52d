# SPDX-License-Identifier: Apache-2.0

"""The requests of os-acc plug: ARQs of a file or of Cyborg, or selectors."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import os_acc
from os_acc import exception
from os_acc import objects
from os_acc import opts
from os_acc.cli import base
from os_acc.cli import progress
from os_acc.cli import selectors
from os_acc.cli import waiting
from os_acc.cyborg import api
from os_acc.cyborg import connections
from os_acc.cyborg import requests
from os_acc.state import instance_names
from os_acc.texts import documents


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where the requests come from."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        '--arqs',
        metavar='FILE',
        help="JSON file with the instance's bound ARQs, as Cyborg's API "
        'returns them; - reads standard input',
    )
    source.add_argument(
        '--from-cyborg',
        action='store_true',
        help="ask Cyborg for the instance's ARQs, and for the functions and "
        'bitstreams of their device profiles',
    )
    selectors.add_resource_class(source)
    selectors.add_options(parser)
    add_cloud(parser)
    add_wait(
        parser,
        'wait for a free device, and while another process works on the '
        'instance; with --from-cyborg: wait until Cyborg has finished binding '
        'all ARQs',
    )
    parser.add_argument(
        '--function',
        metavar='ID',
        help='the function to program for all requests; not with '
        '--from-cyborg',
    )
    parser.add_argument(
        '--bitstream',
        metavar='REF',
        help='the bitstream to program for all requests: a path, an https '
        'URL or the UUID of an image; not with --from-cyborg',
    )


def add_wait(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the option --wait."""
    parser.add_argument(
        '--wait',
        metavar='SECONDS',
        nargs='?',
        type=waiting.seconds,
        const=waiting.DEFAULT,
        help=f'{what} (default: {waiting.DEFAULT:g} seconds)',
    )


def add_cloud(parser: argparse.ArgumentParser) -> None:
    """Add the option that names a cloud."""
    parser.add_argument(
        '--os-cloud',
        metavar='NAME',
        help='the cloud of clouds.yaml to ask as a user with the role admin '
        '(default: OS_CLOUD, or OS_AUTH_URL and the other variables of the '
        'environment)',
    )


def read(parsed_args: argparse.Namespace) -> requests.Bound:
    """Read the ARQs, or make requests, as the options say."""
    if parsed_args.from_cyborg:
        _refuse(parsed_args, ['trait', 'count'], '--resource-class')
        for name in ('function', 'bitstream'):
            if getattr(parsed_args, name) is not None:
                raise exception.InvalidRequest(
                    f'plug: --{name} is not for --from-cyborg: the device '
                    'profile names the function and the bitstream'
                )
        return _from_cyborg(parsed_args)
    _refuse(parsed_args, ['os_cloud'], '--from-cyborg')
    if parsed_args.resource_class is not None:
        return _from_selectors(parsed_args)
    _refuse(parsed_args, ['trait', 'count'], '--resource-class')
    return _from_file(parsed_args)


def _refuse(
    parsed_args: argparse.Namespace, names: list[str], source: str
) -> None:
    """Refuse options that are for another source of the requests."""
    for name in names:
        if getattr(parsed_args, name) is not None:
            option = name.replace('_', '-')
            raise exception.InvalidRequest(f'plug: --{option} is for {source}')


def _from_selectors(parsed_args: argparse.Namespace) -> requests.Bound:
    made = selectors.requests(
        instance_names.instance_uuid(parsed_args.instance),
        parsed_args.resource_class,
        parsed_args.trait,
        parsed_args.count,
        parsed_args.function,
    )
    for request in made:
        request.bitstream = parsed_args.bitstream
    return requests.Bound(made, '')


def _from_cyborg(parsed_args: argparse.Namespace) -> requests.Bound:
    # Refuse a misspelt UUID before anything is asked.
    instance = objects.InstanceInfo(uuid=parsed_args.instance).uuid
    adapter = connections.by_cloud(
        connections.ACCELERATOR, parsed_args.os_cloud
    )
    return requests.bound(
        api.API(adapter),
        instance,
        opts.host(os_acc.CONF),
        parsed_args.wait,
        progress.Bar(sys.stderr),
    )


def _from_file(parsed_args: argparse.Namespace) -> requests.Bound:
    # Nova's instances have UUIDs: a name is an error here.
    _ = objects.InstanceInfo(uuid=parsed_args.instance)
    arqs = _file(parsed_args.arqs)
    made = objects.AcceleratorRequest.from_arqs(arqs)
    for request in made:
        request.function_id = parsed_args.function
        request.bitstream = parsed_args.bitstream
    return requests.Bound(made, str(arqs[0].get('project_id') or ''))


def _file(path: str) -> list[dict[str, Any]]:
    """Read ARQs from a file: Cyborg's whole response, or its list of ARQs."""
    try:
        content = documents.json_of(base.read(path))
    except (OSError, ValueError) as err:
        raise exception.InvalidRequest(
            subject='plug',
            field='--arqs',
            value=path,
            expected=f'a readable file with JSON ({err})',
        ) from err
    if isinstance(content, dict) and 'arqs' in content:
        content = content['arqs']
    if not isinstance(content, list) or not content:
        raise exception.InvalidRequest(
            subject='plug',
            field='--arqs',
            value=path,
            expected="a JSON list of ARQs, or Cyborg's answer with 'arqs'",
        )
    return content

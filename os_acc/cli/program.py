# SPDX-License-Identifier: Apache-2.0

"""os-acc device program: program a function ahead of time."""

from __future__ import annotations

import argparse

import os_acc
from os_acc.cli import base
from os_acc.cli import names


class DeviceProgram(base.Command):
    """Program a function into a device if it is not already loaded."""

    configured = True

    creates = True

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            'address',
            metavar='ADDRESS',
            help='the address that device list shows',
        )
        parser.add_argument(
            '--bitstream',
            metavar='WHAT',
            help='path, https URL or image UUID of the bitstream (default: '
            'the image whose properties name the function)',
        )
        parser.add_argument(
            '--function',
            metavar='ID',
            help='the ID of the function in the bitstream',
        )
        parser.add_argument(
            '--region',
            metavar='NAME',
            help='the region to program, if the device has several',
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.initialize()
        done = os_acc.program_device(
            names.device(parsed_args.address),
            parsed_args.bitstream,
            parsed_args.function,
            parsed_args.region,
            self.show_progress,
        )
        print('programmed' if done else 'already programmed')

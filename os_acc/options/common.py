# SPDX-License-Identifier: Apache-2.0

"""The options of the group [os_acc]. Root reads some of them, too."""

from __future__ import annotations

from typing import Any

from oslo_config import cfg

from os_acc.bitstreams import options as bitstream_opts
from os_acc.options import placement as placement_opts
from os_acc.options import values as option_values

GROUP = 'os_acc'

OPTS = [
    cfg.StrOpt(
        'plugin',
        default='libvirt',
        help='Name of the plugin that attaches devices to the instances of '
        'this host. It is the name of an entry point in the group '
        'os_acc.plugins.',
    ),
    cfg.ListOpt(
        'drivers',
        default=[],
        help='Names of drivers in order of preference, for requests that '
        'more than one driver claims. Drivers that are not named come last.',
    ),
    cfg.StrOpt(
        'host',
        default='',
        sample_default='<host name>',
        help='Name of this host in Nova and Cyborg. An ARQ that is bound to '
        'another host is refused. If this is empty, os-acc uses the option '
        'host of the group [DEFAULT], which nova-compute and the Cyborg agent '
        'have, or else the host name of the kernel.',
    ),
    cfg.StrOpt(
        'state_path',
        default='/var/lib/os-acc',
        help='Directory of the journal. It must be on a local disk. It '
        'belongs to the user that the calling service runs as, and nobody '
        'else can use it. If services of several users call os-acc, it must '
        'have mode 2770 and a group that these users are in: os-acc then lets '
        'the group use everything that it creates there.',
    ),
    cfg.StrOpt(
        'lock_path',
        default='',
        sample_default='<state_path>/locks',
        help='Directory of the lock files. All services of the host that use '
        'os-acc must use the same directory. If they run as several users and '
        'it is not below state_path, it must have mode 2770 and the group of '
        'state_path, too.',
    ),
    cfg.IntOpt(
        'max_workers',
        default=16,
        min=1,
        max=256,
        help='How many accelerators of one instance are prepared at the same '
        'time.',
    ),
    cfg.FloatOpt(
        'lock_timeout',
        default=300.0,
        min=0,
        help='Seconds to wait for another thread or process that is working '
        'on the same instance or device.',
    ),
    cfg.FloatOpt(
        'migration_timeout',
        default=3600.0,
        min=1,
        help='Seconds for which a migration waits for its caller alone. '
        'Afterwards recover() settles it by where the guest runs. A guest '
        'that is being moved is left alone. Set the same value on all hosts.',
    ),
    cfg.FloatOpt(
        'journal_timeout',
        default=30.0,
        min=0.1,
        help='Seconds to wait for another thread or process that is writing '
        'to the journal.',
    ),
    cfg.MultiStrOpt(
        'device_spec',
        default=[],
        mutable=True,
        help='The devices that os-acc may touch, as JSON objects in the style '
        "of Nova's [pci] device_spec. May be given several times; the first "
        'entry that matches a device applies. If it is not set, and '
        'device_spec_dir has no file, no device of the host is offered. '
        '"os-acc device spec" proposes values.',
    ),
    cfg.StrOpt(
        'device_spec_dir',
        default='/etc/os-acc/device_spec.d',
        mutable=True,
        help='Directory with files that end in .json, each with an entry of '
        'device_spec or a list of entries. They come before those of '
        'device_spec, in the order of the file names. The directory is reread '
        'at each call. It and its files must belong to root, and must not be '
        'writable by others. "os-acc device allow" and "os-acc device deny" '
        'write such files.',
    ),
    cfg.FloatOpt(
        'device_timeout',
        default=60.0,
        min=0.1,
        help='Seconds to wait until the kernel has bound, created, removed or '
        'reset a device.',
    ),
    cfg.FloatOpt(
        'release_timeout',
        default=60.0,
        min=0,
        help='Seconds to wait until the guest has closed the file of a '
        'device that is being released.',
    ),
    cfg.StrOpt(
        'cleaning_command',
        default='',
        help='Command that cleans a device between two tenants. It is run as '
        'root without a shell; {address} stands for the PCI address, the UUID '
        'of a mediated device, the path of a device file, the name of a work '
        'queue or the world wide name of a namespace. A device of another '
        'kind, or one that VANs share, is refused while it is set. It must '
        'not prompt: its standard input never delivers anything. If it fails, '
        'the VAN stays in state error and no other instance gets the device. '
        'A function that stores data (PCI class 01) is assigned only if it is '
        'an NVMe drive that os-acc itself can erase, or if this is set and '
        'its entry of device_spec has "command_empties": true, which says '
        'that the command erases it. The privileged daemon reads the option '
        'from its configuration files at each use, and only root must be able '
        'to write them.',
    ),
    cfg.FloatOpt(
        'cleaning_timeout',
        default=600.0,
        min=0.1,
        help='Seconds that cleaning_command may take. Then it is killed, '
        'with all processes that it started.',
    ),
    cfg.FloatOpt(
        'storage_cleaning_timeout',
        default=14400.0,
        min=1,
        max=86400,
        help='Seconds that erasing one NVMe drive may take, by Sanitize or '
        'Format NVM. Then the VAN goes to state error. The drive is erased '
        'again when os-acc releases the VAN again.',
    ),
    cfg.FloatOpt(
        'program_timeout',
        default=1800.0,
        min=0.1,
        help='Seconds that a command that programs, clears or checks a '
        'device may take. Then it is killed, with all processes that it '
        'started. A programming by the kernel cannot be killed: the device '
        'stays busy until it ends. Another request for the same device waits '
        'up to this long.',
    ),
    cfg.StrOpt(
        'xrt_path',
        default='/opt/xilinx/xrt',
        help="Directory of AMD's XRT. Its tools load the user images of "
        'devices '
        'with "programmer": "amd" in device_spec. They run as root.',
    ),
    cfg.FloatOpt(
        'hook_timeout',
        default=30.0,
        min=0.1,
        help='Seconds that each hook may take. A hook is an entry point in '
        'the group os_acc.programmed.',
    ),
]


#: The groups that every service has: the name, the title and the options.
GROUPS = (
    (GROUP, 'os-acc options', OPTS),
    (bitstream_opts.GROUP, 'os-acc: bitstreams', bitstream_opts.OPTS),
    (placement_opts.GROUP, 'os-acc: Placement', placement_opts.OPTS),
)


def register(conf: cfg.ConfigOpts) -> None:
    """Register the groups with conf. May be called again."""
    for group, title, options in GROUPS:
        conf.register_group(cfg.OptGroup(group, title=title))
        conf.register_opts(options, group=group)


def value(conf: cfg.ConfigOpts, name: str) -> Any:
    """Read an option of [os_acc]."""
    return option_values.read(conf, GROUP, option(name))


def option(name: str) -> cfg.Opt:
    """Return an option of [os_acc]."""
    return next(each for each in OPTS if each.dest == name)

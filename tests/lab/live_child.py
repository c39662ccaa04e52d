# SPDX-License-Identifier: Apache-2.0

"""A process that plugs or unplugs and kills itself at a given point."""

from __future__ import annotations

import json
import os
import signal
import sys

import live
import use

from acc_plug_libvirt import attach
from acc_plug_libvirt import detach
import os_acc
from os_acc import objects

order = json.loads(sys.argv[1])
use.configure(order['state'], initialize=False)
os_acc.CONF.set_override('release_timeout', 20.0, 'os_acc')
os_acc.initialize()
os_acc.CONF.set_override('connection_uri', live.URI, 'os_acc_libvirt')


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def after(act):
    def both(*args, **kwargs):
        act(*args, **kwargs)
        die()

    return both


instance = use.instance(order['instance'])
requests = [
    objects.AcceleratorRequest.obj_from_primitive(each)
    for each in order['requests']
]
if order['kill'] == 'detach':
    # This is called after the guest was asked.
    detach.Detach.is_attached = die
    os_acc.unplug(instance, live=True)
else:
    attach.attach = (
        die if order['kill'] == 'before attach' else after(attach.attach)
    )
    os_acc.plug(instance, requests, live=True)

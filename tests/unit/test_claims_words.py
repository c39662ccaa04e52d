# SPDX-License-Identifier: Apache-2.0

"""In which words each kind refuses a device that another VAN has."""

from __future__ import annotations

import pytest

from os_acc.claims import conflict
from os_acc.claims import facts
from os_acc.claims import meeting
from os_acc.claims import of_handle
from os_acc.claims import words

VMD = '0000:00:0e.0'
PF, VF = '0000:3b:00.0', '0000:3b:00.1'
BESIDE = '0000:3c:00.0'
UUID = 'c9d1b1f2-3f0f-4f65-8a54-5c3d2e0a1b01'

Relation = meeting.Relation


class Host:
    """A PF and its VF behind a VMD endpoint, and a function beside the PF."""

    def function(self, address):
        known = {
            VMD: facts.Function(VMD, VMD, '5'),
            PF: facts.Function(PF, PF, '7', (VMD,)),
            VF: facts.Function(VF, PF, '8', (VMD,)),
            BESIDE: facts.Function(BESIDE, BESIDE, '7'),
        }
        return known.get(address)

    def files(self, name, numbers):
        if name.startswith('disk'):
            whole = ('eui.1',) if name == 'disk' else ()
            return facts.Files(
                namespaces=whole,
                in_namespaces=() if whole else ('eui.1',),
                places=(name,),
                around=() if whole else ('disk',),
            )
        if name.endswith('+vfio'):
            return facts.Files((PF, BESIDE))
        queues = ((PF, 1),) if '+dsa+' in name else ()
        address = name.partition('+')[0]
        functions = (address,) if self.function(address) else ()
        return facts.Files(functions, queues=queues)

    def mdev_parent(self, uuid):
        return PF

    def is_set_up(self, address):
        return True

    def slot(self, index):
        return None


#: Each device as (handle, device).
WHOLE, PART, ABOVE, NEXT = (
    (f'pci/{PF}', PF),
    (f'pci/{VF}', PF),
    (f'pci/{VMD}', VMD),
    (f'pci/{BESIDE}', BESIDE),
)
MDEV = (f'mdev/{UUID}', PF)
QUEUE = (f'file/{PF}-wq1', PF)
QUEUE_FILE = (f'file/{PF}+dsa+wq.1', PF)
NPU = (f'file/{PF}+npu=whole', PF)
FILE, VF_FILE = (f'file/{PF}+drm+card', PF), (f'file/{VF}+drm+card', PF)
ACCEL, SHARE = ('file/accel', 'accel'), ('file/accel/any', 'accel')
DISK, PARTITION = ('file/disk', 'disk'), ('file/disk-1', 'disk-1')
BLOCK = ('block/eui.1', 'eui.1')
#: The file of VFIO for all members of the group of the PF.
GROUP_FILE = (f'file/{PF}+vfio', PF)
#: Of a driver that os-acc does not know.
OTHER_KIND = (f'other/{PF}', PF)


def met(wanted, other, **values):
    """How a VAN that wants something meets one that has something."""
    rows = [
        facts.Row(*each, van, f'of {van}', **values)
        for each, van in ((wanted, 'new'), (other, 'old'))
    ]
    own, held = (of_handle.holding(each, Host()) for each in rows)
    found = list(conflict.conflicts(own, [held]))
    return meeting.Meeting(*rows, found, words.why)


def has(what):
    return f'instance of old has {what} (VAN old)'


def both(what, node):
    return f'instance of old has {what[0]}, and both are of {node} (VAN old)'


def behind(what):
    return f'instance of old has {what[0]}, which is behind the file (VAN old)'


def same_disk(what):
    return (
        f'instance of old has {what}, which is the same device, a part of it, '
        'or the device of which it is a part (VAN old)'
    )


@pytest.mark.parametrize(
    ('wanted', 'other', 'relation', 'text'),
    [
        (WHOLE, WHOLE, Relation.SAME, has('it')),
        (WHOLE, FILE, Relation.SAME, has('it')),
        (PART, VF_FILE, Relation.SAME, has('it')),
        (WHOLE, PART, Relation.PART, has(PART[0])),
        (WHOLE, MDEV, Relation.PART, has(MDEV[0])),
        (WHOLE, QUEUE, Relation.PART, has(QUEUE[0])),
        (WHOLE, VF_FILE, Relation.PART, has(VF_FILE[0])),
        (WHOLE, ABOVE, Relation.ABOVE, has(f'{VMD}, which it is behind')),
        (ABOVE, WHOLE, Relation.BEHIND, has(f'{PF}, which is behind it')),
        (ABOVE, FILE, Relation.BEHIND, has(f'{PF}, which is behind it')),
        (PART, WHOLE, Relation.IN, f'its PF is taken: {has("it")}'),
        (PART, NPU, Relation.IN, f'its PF is taken: {has("it")}'),
        (ABOVE, MDEV, Relation.OTHER, both(MDEV, f'PCI function {VMD}')),
        (
            WHOLE,
            NEXT,
            Relation.GROUP,
            f'instance of old has {NEXT[0]} of the same IOMMU group 7 '
            '(VAN old)',
        ),
        (
            NEXT,
            GROUP_FILE,
            Relation.GROUP,
            f'instance of old has {GROUP_FILE[0]} of the same IOMMU group 7 '
            '(VAN old)',
        ),
        (
            OTHER_KIND,
            OTHER_KIND,
            Relation.SAME,
            both(OTHER_KIND, f'handle {OTHER_KIND[0]}'),
        ),
        (MDEV, MDEV, Relation.SAME, has(MDEV[0])),
        (MDEV, WHOLE, Relation.IN, has('it')),
        (MDEV, ABOVE, Relation.ABOVE, both(ABOVE, f'PCI function {VMD}')),
        (QUEUE, WHOLE, Relation.IN, has('it')),
        (
            QUEUE,
            QUEUE_FILE,
            Relation.SAME,
            'instance of old (VAN old) has the device file of its work queue '
            '1',
        ),
        (QUEUE, ABOVE, Relation.ABOVE, both(ABOVE, f'PCI function {VMD}')),
        (NPU, NPU, Relation.SAME, has('it')),
        (NPU, WHOLE, Relation.SAME, has('it')),
        (NPU, PART, Relation.PART, both(PART, f'PCI function {PF}')),
        (FILE, FILE, Relation.SAME, has(FILE[0])),
        (FILE, WHOLE, Relation.SAME, behind(WHOLE)),
        (FILE, MDEV, Relation.PART, behind(MDEV)),
        (FILE, VF_FILE, Relation.PART, behind(VF_FILE)),
        (FILE, QUEUE, Relation.PART, both(QUEUE, f'PCI function {PF}')),
        (FILE, ABOVE, Relation.ABOVE, behind(ABOVE)),
        (VF_FILE, FILE, Relation.IN, behind(FILE)),
        (ACCEL, SHARE, Relation.SAME, has(SHARE[0])),
        (SHARE, ACCEL, Relation.SAME, has('it alone')),
        (DISK, PARTITION, Relation.MEDIUM, same_disk(PARTITION[0])),
        (PARTITION, DISK, Relation.MEDIUM, same_disk(DISK[0])),
        (DISK, BLOCK, Relation.MEDIUM, same_disk(BLOCK[0])),
        (BLOCK, BLOCK, Relation.SAME, has('it')),
        (BLOCK, DISK, Relation.MEDIUM, has(DISK[0])),
    ],
)
def test_what_a_van_has_beside_what_is_wanted(wanted, other, relation, text):
    found = met(wanted, other)
    assert found.relation == relation
    assert found.reason.text == text


@pytest.mark.parametrize('like', [WHOLE, QUEUE])
def test_a_handle_of_another_kind_with_the_name_of_a_device(like):
    """A name means a device only in handles of its own kind."""
    other = (f'other/{like[0].partition("/")[2]}', PF)
    assert not met(other, like).conflicts


def test_a_disk_is_named_by_the_path_that_the_van_has():
    found = met(DISK, PARTITION, paths=('/dev/vda1', '/dev/vda2'))
    assert found.reason.text == same_disk('/dev/vda1')


@pytest.mark.parametrize('wanted', [QUEUE, NPU, ACCEL])
def test_a_number_is_named_with_the_path_that_had_it(wanted):
    """The kernel has given the number of one device to another one."""
    found = met(
        wanted,
        ('file/late', 'late'),
        numbers=('c 240:0', 'c 240:1'),
        paths=('/dev/one', '/dev/two'),
    )
    assert found.relation == Relation.NUMBER
    assert found.reason.text == (
        'instance of old was given the device number 240:0 of /dev/one (VAN '
        'old), and may still use it'
    )


def test_a_number_without_a_path_is_named_with_the_handle():
    found = met(ACCEL, ('file/late', 'late'), numbers=('c 240:0',))
    assert 'device number 240:0 of file/late (VAN old)' in found.reason.text


def test_a_service_of_the_host_is_named():
    found = met(WHOLE, WHOLE, called='host:ovs')
    assert found.reason.text == 'instance host:ovs has it (VAN old)'


def test_too_many_shares():
    found = met(SHARE, ('file/accel/2', 'accel'), most=1)
    assert found.reason.text == (
        '1 VANs have it, and its entry sets shared to 1'
    )


@pytest.mark.parametrize('other', [WHOLE, FILE, PART])
def test_a_driver_that_does_not_know_the_kinds(other):
    """What both have in common is said in the same words for all."""
    wanted = NPU if other == PART else PART
    assert met(wanted, other).in_common.text == both(
        other, f'PCI function {PF}'
    )

# SPDX-License-Identifier: Apache-2.0


"""rtnetlink by pyroute2, against messages as Linux packs them.

They are packed here by the structures of include/uapi/linux/if_link.h. The
kernel itself answers in tests/lab.
"""

from __future__ import annotations

import errno
import struct
import sys

import pyroute2
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
import pytest

from os_acc import exception
from os_acc.privileged.pci import rtnetlink

# Attributes of include/uapi/linux/if_link.h
IFLA_IFNAME, IFLA_VFINFO_LIST, IFLA_VF_INFO = 3, 22, 1
MAC, VLAN, SPOOFCHK, TRUST, BROADCAST, VLAN_LIST = 1, 2, 4, 9, 13, 12
UNKNOWN = 0xFFFFFFFF


def attribute(kind: int, *parts: bytes) -> bytes:
    data = b''.join(parts)
    header = struct.pack('HH', len(data) + 4, kind)
    return header + data + bytes(-len(data) % 4)


def numbers(kind: int, *values: int) -> bytes:
    return attribute(kind, struct.pack(f'{len(values)}I', *values))


def vf(number: int, mac: str, vlan, qos, proto, spoofchk, trust) -> bytes:
    raw = bytes.fromhex(mac.replace(':', ''))
    vlan_info = struct.pack('=III', number, vlan, qos)
    vlan_info += struct.pack('>H', proto) + bytes(2)
    return attribute(
        IFLA_VF_INFO,
        attribute(MAC, struct.pack('I', number), raw, bytes(26)),
        attribute(BROADCAST, bytes([255] * 6), bytes(26)),
        numbers(VLAN, number, vlan, qos),
        attribute(VLAN_LIST, attribute(1, vlan_info)),
        numbers(SPOOFCHK, number, spoofchk),
        numbers(TRUST, number, trust),
    )


def link(*vfs: bytes) -> ifinfmsg:
    """An RTM_NEWLINK as a socket gives it."""
    body = struct.pack('BBHiII', 0, 0, 1, 7, 0, 0)
    body += attribute(IFLA_IFNAME, b'ens8f0\0')
    if vfs:
        body += attribute(IFLA_VFINFO_LIST, *vfs)
    header = struct.pack('IHHII', len(body) + 16, 16, 0, 1, 1)
    message = ifinfmsg(header + body)
    message.decode()
    return message


@pytest.fixture
def kernel(monkeypatch):
    """What the kernel answers, and what it is asked."""

    class Kernel:
        answer: list[ifinfmsg] = []
        asked: list[tuple[str, dict]] = []
        error: Exception | None = None

        def __enter__(self):
            return self

        def __exit__(self, *error):
            return None

        def link(self, command, **values):
            self.asked.append((command, values))
            if self.error is not None:
                raise self.error
            return self.answer

    Kernel.asked = []
    monkeypatch.setattr(pyroute2, 'IPRoute', Kernel)
    return Kernel


def test_read(kernel):
    kernel.answer = [
        link(
            vf(0, 'fa:16:3e:00:00:01', 101, 3, 0x8100, 1, 0),
            vf(1, '00:00:00:00:00:00', 5, 0, 0x88A8, 0, 1),
            vf(2, '00:00:00:00:00:00', 0, 0, 0x8100, UNKNOWN, UNKNOWN),
        )
    ]
    assert rtnetlink.read_vf(7, 0) == {
        'mac_address': 'fa:16:3e:00:00:01',
        'vlan': [101, 3],
        'vlan_protocol': 0x8100,
        'trusted': False,
        'spoof_check': True,
    }
    assert rtnetlink.read_vf(7, 1) == {
        'mac_address': '00:00:00:00:00:00',
        'vlan': [5, 0],
        'vlan_protocol': 0x88A8,
        'trusted': True,
        'spoof_check': False,
    }
    third = rtnetlink.read_vf(7, 2)
    assert (third['trusted'], third['spoof_check']) == (None, None)
    # 1 is RTEXT_FILTER_VF: without it the kernel leaves the VFs out.
    assert kernel.asked[0] == ('get', {'index': 7, 'ext_mask': 1})


def test_a_driver_that_tells_the_mac_address_only(kernel):
    mac = attribute(MAC, struct.pack('I', 0), bytes(32))
    kernel.answer = [link(attribute(IFLA_VF_INFO, mac))]
    found = rtnetlink.read_vf(7, 0)
    assert found['mac_address'] == '00:00:00:00:00:00'
    assert [found[n] for n in ('vlan', 'trusted', 'spoof_check')] == [None] * 3


@pytest.mark.parametrize('vfs', [(), (0,)])
def test_no_such_vf(kernel, vfs):
    kernel.answer = [
        link(*(vf(n, '00:00:00:00:00:00', 0, 0, 0x8100, 1, 0) for n in vfs))
    ]
    with pytest.raises(OSError, match='interface 7 has no VF 1') as caught:
        rtnetlink.read_vf(7, 1)
    assert caught.value.errno == errno.ENODEV


@pytest.mark.parametrize(
    ('name', 'value', 'packed'),
    [
        (
            'mac_address',
            'fa:16:3e:00:00:01',
            attribute(
                MAC,
                struct.pack('I', 2),
                bytes.fromhex('fa163e000001'),
                bytes(26),
            ),
        ),
        ('vlan', [101, 3], numbers(VLAN, 2, 101, 3)),
        ('trusted', True, numbers(TRUST, 2, 1)),
        ('spoof_check', False, numbers(SPOOFCHK, 2, 0)),
    ],
)
def test_write(kernel, name, value, packed):
    """As pyroute2 packs it, the kernel must be able to read it."""
    rtnetlink.write_vf(7, 2, name, value)
    ((command, values),) = kernel.asked
    assert (command, values['index']) == ('set', 7)
    from pyroute2.requests.link import LinkIPRouteFilter

    message = ifinfmsg()
    message['attrs'] = list(
        LinkIPRouteFilter('set').set_vf(None, values['vf']).items()
    )
    message.encode()
    assert packed in bytes(message.data)


@pytest.mark.parametrize('number', [errno.EPERM, errno.EOPNOTSUPP])
def test_an_error_of_the_kernel(kernel, number):
    kernel.error = NetlinkError(number, 'text')
    for act in (
        lambda: rtnetlink.read_vf(7, 0),
        lambda: rtnetlink.write_vf(7, 0, 'trusted', True),
    ):
        with pytest.raises(OSError) as caught:
            act()
        assert caught.value.errno == number


def test_the_kernel_of_this_machine_understands_the_question():
    """The loopback interface, number 1, has no VFs."""
    with pytest.raises(OSError) as caught:
        rtnetlink.read_vf(1, 0)
    assert caught.value.errno == errno.ENODEV


def test_pyroute2_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, 'pyroute2', None)
    with pytest.raises(exception.PrivilegeError) as caught:
        rtnetlink.read_vf(7, 0)
    assert 'install os-acc[nic]' in str(caught.value)

# SPDX-License-Identifier: Apache-2.0

"""The versioned objects: canonical values, refusals, versions."""

from __future__ import annotations

import datetime
import subprocess
import sys
import unicodedata
import uuid

from hypothesis import example
from hypothesis import given
from hypothesis import strategies as st
from oslo_versionedobjects import base as ovo_base
from oslo_versionedobjects import fields as ovo_fields
from oslo_versionedobjects import fixture as ovo_fixture
import pytest

from os_acc import exception
from os_acc import objects
from os_acc.kernel import pci
from os_acc.objects import base

objects.register_all()

UUID = '21ceb89a-693d-421b-81d4-4e4e73b85c6d'
UUID2 = '0d573cd0-f0c1-4f7d-9b6f-9a8714390489'

# The versions of the objects. A new field changes both tables: give the class
# a new minor VERSION and an ADDED_IN for the field, then update the tables.
HASHES = {
    'AcceleratorRequest': '1.1-008a0603260589a41b8a4475f46767e8',
    'ApplyReport': '1.0-d1d5ccd9ae919b84acdee03e54553ace',
    'ApplyStep': '1.0-155275d798bde19eb55f5f8aa255fd42',
    'AttachHandle': '1.0-77509ea1ea0dd750d5864b9bd87d3f9d',
    'BlockHandle': '1.0-7438b9c3368b60605f90c3fd580010f1',
    'DRCHandle': '1.0-092324c3a52c85ac402d7a733cc6f491',
    'Device': '1.2-b61d8951618d8ef35ffc4520729158e8',
    'DeviceChipInfo': '1.0-ab8bdac0ff348d9729a79c980474b544',
    'DeviceFile': '1.0-d005d64e8fcb9564f8d24b3c3bc669cf',
    'DeviceFileHandle': '1.0-bcf7c7f55ad86564808fc2a41de5e297',
    'DeviceHandleInfo': '1.0-74327ccb946771caa5bea18d204ac9f8',
    'DeviceMdevTypeInfo': '1.0-a380928827220397eaa90c3471eaebd0',
    'HostDriverInfo': '1.0-ed828bd30f147bbec31150633dcaf645',
    'HostHandleInfo': '1.0-12bc2ca05231f271eefb1e1e1ecf50f4',
    'HostInfo': '1.0-34333a904f14ce93d59c1db3af3355ed',
    'HostPluginInfo': '1.1-03bdd99966f9595fa1cc590ca967183d',
    'InstanceInfo': '1.2-e0a7f1afd84366433fbd935481e556a4',
    'MdevHandle': '1.0-e5c9994de54ebe4ff7bad3cf71e6b66f',
    'MigrationAccelerator': '1.0-4a711d41c3c59b7ae6a417efccceec0e',
    'MigrationChange': '1.0-cff5bbe3d9c47a069c93ebf78bd8b644',
    'MigrationMap': '1.0-89446721f40f60fedab166366421ea98',
    'MigrationPlan': '1.0-6e3c65f2ca0b86ac613601ae53d20307',
    'PCIHandle': '1.0-ef77f65f317b86a6fd07ccc632cdfc07',
    'PortBinding': '1.0-72a66ee08f25f573a8708aec93b35f55',
    'RecoveryReport': '1.1-bd7296c930708fe27f1cedf47d93d7df',
    'TestHandle': '1.0-c5e17173ff82956c17df877a86e36edb',
    'VAN': '1.4-e42903f02de7c37d794b9e36c53c56de',
    'VANList': '1.0-15ecf022a68ddbb8c2a6739cfc9f8f5e',
}
FIELDS = {
    'AcceleratorRequest': (
        'bitstream device_profile_group_id device_profile_name '
        'device_rp_uuid driver function_id handle hostname '
        'instance_uuid port port_uuid resource_class state traits uuid'
    ),
    'ApplyReport': 'steps',
    'ApplyStep': 'after before name part reason result',
    'AttachHandle': '',
    'BlockHandle': 'path wwn',
    'DRCHandle': 'bus_grp_required drc_index drc_name',
    'Device': (
        'address chip driver function_id functions handles handles_free '
        'handles_total health health_reason health_since mdev_types '
        'numa_node product_id programming resource_class traits vendor_id'
    ),
    'DeviceChipInfo': 'address board functions interface_ids serial',
    'DeviceFile': 'major minor path permissions type',
    'DeviceFileHandle': 'files name share',
    'DeviceHandleInfo': 'handle holder reason region state',
    'DeviceMdevTypeInfo': 'available capacity label name',
    'HostDriverInfo': 'driver_name handle_info',
    'HostHandleInfo': 'handle_object_name max_version min_version',
    'HostInfo': 'driver_info load_errors plugin_info',
    'HostPluginInfo': 'guest_config_format handle_info plugin_name',
    'InstanceInfo': 'hypervisor_id image_id name process project_id uuid',
    'MdevHandle': 'parent type uuid',
    'MigrationAccelerator': (
        'driver handle_type left_behind live_migratable mdev_type obstacle '
        'request uuid way'
    ),
    'MigrationChange': 'source target uuid',
    'MigrationMap': 'changes format',
    'MigrationPlan': 'accelerators instance_uuid obstacles way',
    'PCIHandle': 'address managed physical_network',
    'PortBinding': (
        'mac_address physical_network spoof_check trusted vlan vlan_qos'
    ),
    'RecoveryReport': 'busy errors failed released restored unreadable',
    'TestHandle': 'name',
    'VAN': (
        'boot_id created_at device driver driver_data error function_id '
        'guest_config handle instance_uuid live_migratable migration_uuid '
        'migration_vans owner plugin state updated_at uuid'
    ),
    'VANList': 'objects',
}


def classes():
    return {name: [getattr(objects, name)] for name in objects.__all__}


def round_trip(obj):
    return type(obj).obj_from_primitive(obj.obj_to_primitive())


def refused(call, *parts):
    """Check that a call is refused, with the parts in the message."""
    with pytest.raises(exception.InvalidRequest) as caught:
        call()
    for part in parts:
        assert part in str(caught.value)


@pytest.fixture
def registry():
    """The registered classes by name; restored after the test."""
    known = base.VersionedObjectRegistry.obj_classes()
    before = {name: list(found) for name, found in known.items()}
    yield known
    known.clear()
    known.update(before)


class TestPCIAddress:
    @pytest.mark.parametrize(
        ('text', 'canonical'),
        [
            ('0000:0c:00.1', '0000:0c:00.1'),
            ('0000:0C:1F.7', '0000:0c:1f.7'),
            ('0c:00.1', '0000:0c:00.1'),
            ('0C:0A.1', '0000:0c:0a.1'),
            ('00000000:0c:00.1', '0000:0c:00.1'),
            ('00010000:e1:00.0', '10000:e1:00.0'),
            ('10000:E1:00.0', '10000:e1:00.0'),
            ('ffffffff:ff:1f.7', 'ffffffff:ff:1f.7'),
        ],
    )
    def test_canonical(self, text, canonical):
        assert objects.PCIHandle(address=text).address == canonical
        assert objects.TestHandle(name=text).name == canonical
        assert objects.VAN(device=text).device == canonical

    @pytest.mark.parametrize(
        'value',
        [
            '',
            '0000:0c:00.8',
            '0000:0c:20.0',
            '0000:0c:2f.0',
            '0000:c:00.1',
            '0000:00c:00.1',
            '0:0c:00.1',
            '000:0c:00.1',
            '100000000:0c:00.1',
            '0x0000:0x0c:0x00.0x1',
            '0000:0c:00',
            '0000:0c:00.1 ',
            ' 0000:0c:00.1',
            '0000:0c:00.1\n',
            '0000-0c-00.1',
            '0000:0g:00.1',
            '0000:0c:00.\u0661',
            '../0000:0c:00.1',
            b'0000:0c:00.1',
            0x0C001,
            ['0000:0c:00.1'],
            True,
        ],
    )
    def test_refused(self, value):
        refused(
            lambda: objects.PCIHandle(address=value),
            'PCIHandle: address is',
            repr(value),
            'expected a PCI address (dddd:bb:ss.f)',
        )

    def test_none_is_refused(self):
        with pytest.raises(ValueError, match='address'):
            objects.PCIHandle(address=None)

    @given(
        st.integers(0, 0xFFFFFFFF),
        st.integers(0, 0xFF),
        st.integers(0, 0x1F),
        st.integers(0, 7),
        st.data(),
    )
    def test_any_spelling_is_one_device(
        self, domain, bus, slot, function, data
    ):
        digits = data.draw(st.integers(4, 8), 'digits of the domain')
        text = f'{domain:0{digits}x}:{bus:02x}:{slot:02x}.{function:x}'
        if domain == 0 and data.draw(st.booleans(), 'no domain'):
            text = text.partition(':')[2]
        upper = data.draw(st.lists(st.booleans(), min_size=len(text)))
        text = ''.join(
            char.upper() if up else char
            for char, up in zip(text, upper, strict=False)
        )
        canonical = f'{domain:04x}:{bus:02x}:{slot:02x}.{function:x}'
        handle = objects.PCIHandle(address=text)
        assert handle.address == canonical
        assert handle.identity == f'pci/{canonical}'
        assert round_trip(handle) == handle
        assert round_trip(handle).address == canonical
        assert objects.VAN(device=text).device == canonical
        assert pci.parse(text) == (domain, bus, slot, function)

    @given(st.text() | st.from_regex(r'[0-9a-fA-F:.x/ \n]{4,20}'))
    def test_what_is_taken_is_canonical_already_or_longer(self, text):
        try:
            handle = objects.PCIHandle(address=text)
        except exception.InvalidRequest:
            assert pci.parse(text) is None
        else:
            assert text.lower().lstrip('0') in (
                handle.address.lstrip('0'),
                handle.address.removeprefix('0000:').lstrip('0'),
            )
            again = objects.PCIHandle(address=handle.address)
            assert again.address == handle.address

    @given(
        st.from_regex(r'([0-9a-fA-F]{3,9}:)?[0-9a-fA-F]{2}:[0-3]?.\.[0-9]')
        | st.from_regex(r'0[0-9a-f]{3,7}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]')
    )
    def test_canonical_is_what_would_be_written(self, text):
        assert pci.is_address(text) == (
            pci.parse(text) is not None and pci.canonical(text) == text
        )


class TestUUID:
    @pytest.mark.parametrize('value', [UUID, UUID.upper(), uuid.UUID(UUID)])
    def test_canonical(self, value):
        assert objects.MdevHandle(uuid=value).uuid == UUID
        assert objects.InstanceInfo(uuid=value).uuid == UUID

    @pytest.mark.parametrize(
        'value',
        [
            '',
            'zz',
            UUID.replace('-', ''),
            '{' + UUID + '}',
            'urn:uuid:' + UUID,
            UUID + '\n',
            UUID[:-1],
            UUID + '0',
            UUID.replace('2', '../', 1),
            5,
            uuid.UUID(UUID).bytes,
        ],
    )
    def test_refused(self, value):
        refused(
            lambda: objects.MdevHandle(uuid=value),
            f'MdevHandle: uuid is {value!r}, expected a UUID',
        )

    @given(st.uuids())
    def test_any(self, value):
        handle = objects.MdevHandle(uuid=str(value).upper())
        assert handle.uuid == str(value)
        assert round_trip(handle).uuid == str(value)


class TestDRCIndex:
    @pytest.mark.parametrize(
        ('value', 'canonical'),
        [
            ('2103001b', '2103001B'),
            ('0x2103001B', '2103001B'),
            (0x2103001B, '2103001B'),
            (1, '00000001'),
            ('00000001', '00000001'),
            (0xFFFFFFFF, 'FFFFFFFF'),
        ],
    )
    def test_canonical(self, value, canonical):
        handle = objects.DRCHandle(drc_index=value)
        assert handle.drc_index == canonical
        assert handle.identity == f'drc/{canonical}'
        assert round_trip(handle) == handle

    @pytest.mark.parametrize(
        'value',
        [
            0,
            -1,
            0x100000000,
            '00000000',
            '0x2103',
            '2103001',
            '02103001B',
            '2103001G',
            '2103001B\n',
            '',
            True,
            1.0,
            [],
        ],
    )
    def test_refused(self, value):
        refused(
            lambda: objects.DRCHandle(drc_index=value),
            f'DRCHandle: drc_index is {value!r}, expected 8 hex digits',
        )


class TestName:
    @pytest.mark.parametrize(
        'name',
        [
            'nvidia-223',
            'vfio_ap-passthrough',
            'U78CB.001.WZS0JZB-P1-C7',
            'CUSTOM_FPGA',
            'node-7.example.org',
            'a+b@c=d:e',
            '_x',
            '0',
            'a' * 255,
        ],
    )
    def test_taken(self, name):
        assert objects.VAN(function_id=name).function_id == name

    @pytest.mark.parametrize(
        'value',
        [
            '',
            '.',
            '..',
            '...',
            '.hidden',
            '-rf',
            'a/b',
            '/a',
            '../../etc/passwd',
            'a b',
            'a\0',
            'a\n',
            'a\\b',
            'a%2fb',
            'a;b',
            '\u0430',
            'a' * 256,
            b'a',
            7,
            ['a'],
        ],
    )
    def test_refused(self, value):
        refused(
            lambda: objects.VAN(function_id=value),
            'VAN: function_id is',
            repr(value),
            'expected a name of letters, digits and _.:+@=-',
        )

    @given(
        st.text(max_size=20),
        st.sampled_from(['/', '\\', '\0'])
        | st.characters(categories=['Cc', 'Cf', 'Zl', 'Zp', 'Zs']),
        st.text(max_size=20),
    )
    @example('a', '\n', '')
    @example('', '/', '')
    def test_slash_and_control_characters_are_refused(
        self, before, bad, after
    ):
        refused(lambda: objects.VAN(function_id=before + bad + after))
        refused(lambda: objects.TestHandle(name=before + bad + after))

    @given(st.text(max_size=20))
    def test_leading_dots_are_refused(self, after):
        for name in ('.' + after, '..' + after, '../' + after):
            refused(lambda name=name: objects.VAN(function_id=name))

    @given(
        st.text(max_size=300)
        | st.text(alphabet='aZ09_.:+@=-/~$\n', max_size=20)
    )
    def test_what_is_taken_is_one_component_of_a_path(self, name):
        try:
            van = objects.VAN(function_id=name)
        except exception.InvalidRequest:
            return
        assert van.function_id == name
        assert '/' not in name
        assert name not in ('', '.', '..')
        assert len(name.encode()) <= 255
        assert not any(unicodedata.category(c)[0] in 'CZ' for c in name)


class TestDeviceAddress:
    @pytest.mark.parametrize(
        ('value', 'canonical'),
        [
            ('mtty', 'mtty'),
            ('0.0.0033', '0.0.0033'),
            ('matrix', 'matrix'),
            ('0C:00.1', '0000:0c:00.1'),
            # These are no PCI addresses, so they are names.
            ('0000:0C:00.9', '0000:0C:00.9'),
        ],
    )
    def test_canonical(self, value, canonical):
        handle = objects.MdevHandle(parent=value)
        assert handle.parent == canonical
        assert round_trip(handle) == handle

    def test_refused(self):
        refused(
            lambda: objects.MdevHandle(parent='../mtty'),
            "MdevHandle: parent is '../mtty', expected a name",
        )


class TestObjects:
    def test_unset_nullable_is_none(self):
        handle = objects.PCIHandle(address='0c:00.1')
        assert handle.managed is None
        assert handle.physical_network is None
        request = objects.AcceleratorRequest(uuid=UUID)
        assert request.handle is None
        assert request.state is None
        van = objects.VAN(uuid=UUID)
        assert van.created_at is None
        assert van.guest_config is None
        assert round_trip(van) == van

    def test_reading_is_no_change(self):
        van = objects.VAN(uuid=UUID)
        van.obj_reset_changes()
        assert van.error is None
        assert van.driver_data == {}
        assert van.obj_what_changed() == set()

    def test_defaults(self):
        assert objects.AcceleratorRequest().traits == []
        assert objects.VAN().driver_data == {}
        device = objects.Device()
        assert device.traits == []
        assert device.programming == 'none'
        assert device.vendor_id == ''
        report = objects.RecoveryReport()
        assert report.released == report.restored == report.failed == []
        assert report.busy == []
        assert objects.HostInfo().driver_info == []
        assert objects.HostInfo().load_errors == {}
        assert len(objects.VANList()) == 0

    def test_defaults_are_not_shared(self):
        one = objects.AcceleratorRequest(uuid=UUID)
        one.traits.append('CUSTOM_A')
        assert one.traits == ['CUSTOM_A']
        assert objects.AcceleratorRequest().traits == []
        assert round_trip(one).traits == ['CUSTOM_A']

    def test_value_set_in_an_unset_dict_is_coerced(self):
        # Otherwise None is saved, and the row cannot be read again.
        van = objects.VAN(uuid=UUID)
        van.driver_data['tries'] = 5
        assert van.driver_data == {'tries': '5'}
        with pytest.raises(ValueError, match='None'):
            van.driver_data['region'] = None

    def test_unset_required_value_is_refused(self):
        refused(
            lambda: objects.PCIHandle().address,
            'PCIHandle: address is None, expected a value',
        )
        refused(lambda: objects.InstanceInfo().uuid, 'InstanceInfo: uuid')

    def test_wrong_state_and_programming_are_refused(self):
        with pytest.raises(ValueError, match='bogus'):
            objects.VAN(state='bogus')
        with pytest.raises(ValueError, match='bogus'):
            objects.Device(programming='bogus')
        with pytest.raises(ValueError, match='handles_free'):
            objects.Device(handles_free=-1)

    def test_wrong_handle_is_refused(self):
        for value in ('pci', objects.VAN(), {}):
            with pytest.raises(ValueError, match='handle'):
                objects.VAN(handle=value)

    def test_unknown_field_is_refused(self):
        for name in objects.__all__:
            cls = getattr(objects, name)
            if cls is not objects.AttachHandle:
                assert not hasattr(cls(), 'bogus')

    def test_equality(self):
        def handle(**changes):
            return objects.PCIHandle(**{'address': '0c:00.1', **changes})

        assert handle() == handle(address='0000:0C:00.1')
        assert handle() == handle(managed=None)
        assert handle() != handle(address='0c:00.2')
        assert handle() != handle(managed=False)
        assert handle() != objects.TestHandle(name='0c:00.1')
        assert handle() != '0000:0c:00.1'
        assert objects.VAN(handle=handle()) == objects.VAN(handle=handle())
        assert objects.VAN(handle=handle()) != objects.VAN()

    def test_equality_with_a_half_made_one(self):
        whole = objects.PCIHandle(address='0c:00.1')
        assert whole != objects.PCIHandle()
        assert objects.PCIHandle() != whole
        assert objects.PCIHandle() == objects.PCIHandle()

    def test_not_hashable(self):
        with pytest.raises(TypeError):
            hash(objects.VAN())

    def test_attach_handle_is_abstract(self):
        with pytest.raises(TypeError, match='abstract'):
            objects.AttachHandle()

    def test_handle_identity(self):
        identities = [
            objects.PCIHandle(address='0C:00.1', managed=True).identity,
            objects.MdevHandle(
                uuid=UUID.upper(), parent='mtty', type='mtty-1'
            ).identity,
            objects.DRCHandle(drc_index=0x2103001B).identity,
            objects.TestHandle(name='0C:00.1').identity,
        ]
        assert identities == [
            'pci/0000:0c:00.1',
            f'mdev/{UUID}',
            'drc/2103001B',
            'test/0000:0c:00.1',
        ]

    def test_identity_of_another_handle_class(self, registry):
        @base.VersionedObjectRegistry.register
        class CCWHandle(objects.AttachHandle):
            fields = {
                'devno': ovo_fields.StringField(),
                'css': ovo_fields.StringField(nullable=True),
            }

        handle = CCWHandle(devno='0.0.0033')
        assert handle.identity == 'CCWHandle/None/0.0.0033'
        van = objects.VAN(handle=handle)
        assert round_trip(van).handle == handle

    def test_van_round_trip(self):
        now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
        van = objects.VAN(
            uuid=UUID,
            instance_uuid=UUID2,
            driver='pci',
            plugin='libvirt',
            state='plugged',
            handle=objects.MdevHandle(
                uuid=UUID, parent='0000:65:00.0', type='nvidia-223'
            ),
            device='65:00.0',
            function_id='f-1',
            guest_config='<hostdev/>',
            driver_data={'device_api': 'vfio-pci'},
            boot_id='b',
            error='e',
            live_migratable=True,
            owner='nova',
            migration_uuid=UUID2,
            migration_vans=[UUID],
            created_at=now,
            updated_at=now,
        )
        assert set(van.fields) == {f for f in van.fields if f in van}
        again = round_trip(van)
        assert again == van
        assert type(again.handle) is objects.MdevHandle
        vans = objects.VANList(objects=[van, again])
        assert round_trip(vans) == vans
        assert [v.uuid for v in vans] == [UUID, UUID]

    def test_a_van_for_an_older_reader(self):
        data = objects.VAN(uuid=UUID, live_migratable=True).obj_to_primitive(
            '1.0'
        )['versioned_object.data']
        assert data == {'uuid': UUID}
        van = objects.VAN(uuid=UUID, live_migratable=True, owner='nova')
        data = van.obj_to_primitive('1.1')['versioned_object.data']
        assert data == {'uuid': UUID, 'live_migratable': True}
        van = objects.VAN(uuid=UUID, state='incoming', migration_uuid=UUID2)
        data = van.obj_to_primitive('1.2')['versioned_object.data']
        assert data == {'uuid': UUID, 'state': 'prepared'}
        van = objects.VAN(uuid=UUID, migration_vans=[UUID])
        data = van.obj_to_primitive('1.3')['versioned_object.data']
        assert data == {'uuid': UUID}

    def test_save_of_a_copy(self):
        with pytest.raises(exception.JournalError) as caught:
            objects.VAN(uuid=UUID).save()
        assert f'VAN {UUID} is a copy' in str(caught.value)

    def test_save_goes_to_the_journal(self):
        saved = []
        van = objects.VAN(uuid=UUID)
        van.connect(saved.append)
        van.save()
        assert saved == [van]
        assert van.obj_what_changed() == set()
        van.connect(None)
        with pytest.raises(exception.JournalError):
            van.save()

    def test_failed_save_keeps_the_changes(self):
        def fail(_van):
            raise exception.DeviceBusy(device='d', holder='h')

        van = objects.VAN(uuid=UUID)
        van.connect(fail)
        with pytest.raises(exception.DeviceBusy):
            van.save()
        assert 'uuid' in van.obj_what_changed()

    def test_report_progress(self):
        told = []
        van = objects.VAN(uuid=UUID)
        van.report_progress(0.5)
        van.connect(None, lambda *args: told.append(args))
        van.report_progress(0.5, 'programming')
        van.report_progress(None)
        assert told == [(0.5, 'programming'), (None, None)]

    def test_names(self):
        assert set(objects.__all__) <= set(dir(objects))
        for name in objects.__all__:
            assert getattr(objects, name).obj_name() == name
        with pytest.raises(AttributeError, match='Bogus'):
            _ = objects.Bogus

    def test_each_name_loads_alone(self):
        code = (
            'import sys\n'
            'from os_acc import objects\n'
            'for name in sys.argv[1:]:\n'
            '    assert getattr(objects, name).__name__ == name\n'
            "info = objects.HostHandleInfo.of('PCIHandle')\n"
            "assert info.get_common_version() == '1.0'\n"
        )
        for name in ('HostHandleInfo', 'VANList'):
            subprocess.run([sys.executable, '-c', code, name], check=True)


class TestVersions:
    def test_hashes(self):
        checker = ovo_fixture.ObjectVersionChecker(classes())
        assert checker.get_hashes() == HASHES

    def test_fields(self):
        found = {
            name: ' '.join(sorted(cls.fields))
            for name, (cls,) in classes().items()
        }
        assert found == FIELDS

    def test_values(self):
        # The hash does not cover the values of an enum. An older reader
        # refuses a new value.
        state = objects.VAN.fields['state'].get_schema()
        assert ' '.join(state['enum']) == (
            'preparing prepared plugging plugged incoming outgoing unplugging '
            'unpreparing error'
        )
        programming = objects.Device.fields['programming'].get_schema()
        assert ' '.join(programming['enum']) == 'none single dynamic'
        state = objects.DeviceHandleInfo.fields['state'].get_schema()
        assert ' '.join(state['enum']) == 'free used host absent reserved'
        way = objects.MigrationPlan.fields['way'].get_schema()
        assert ' '.join(way['enum']) == 'live replug cold'

    def test_all_of_ours_are_pinned(self):
        registered = base.VersionedObjectRegistry.obj_classes()
        assert set(registered) == set(HASHES)
        for (cls,) in classes().values():
            assert cls.OBJ_PROJECT_NAMESPACE == 'os_acc'

    def test_added_in_names_fields_and_versions_that_are(self):
        for (cls,) in classes().values():
            assert set(cls.ADDED_IN) <= set(cls.fields)
            assert all(v <= cls.VERSION for v in cls.ADDED_IN.values())

    def test_all_go_to_each_older_version(self):
        checker = ovo_fixture.ObjectVersionChecker(
            {n: c for n, c in classes().items() if n != 'AttachHandle'}
        )
        checker.test_compatibility_routines()

    @pytest.mark.parametrize('name', ['InstanceInfo', 'PCIHandle'])
    def test_another_project_has_a_class_of_that_name(self, name):
        """os-vif has an InstanceInfo, HostInfo, HostPluginInfo too.

        oslo.versionedobjects has one registry for all projects of a process,
        and nova-compute imports both libraries.
        """
        van = objects.VAN(handle=objects.PCIHandle(address='0c:00.1'))
        instance = objects.InstanceInfo(
            uuid=UUID, name='n', project_id='p', hypervisor_id='lpar'
        )
        theirs = type(
            name,
            (ovo_base.VersionedObject,),
            {
                'OBJ_PROJECT_NAMESPACE': 'os_vif',
                'fields': {'uuid': ovo_fields.UUIDField()},
            },
        )
        ovo_base.VersionedObjectRegistry()  # the fixture needs an existing one
        with ovo_fixture.VersionedObjectRegistryFixture():
            ovo_base.VersionedObjectRegistry.register(theirs)
            assert round_trip(instance) == instance
            assert type(round_trip(instance)) is objects.InstanceInfo
            assert round_trip(van) == van
            assert type(round_trip(van).handle) is objects.PCIHandle

    def test_ours_do_not_take_the_place_of_anothers(self):
        code = (
            'from oslo_versionedobjects import base\n'
            'before = dict(base.VersionedObjectRegistry.obj_classes())\n'
            'from os_acc import objects\n'
            'objects.register_all()\n'
            'after = dict(base.VersionedObjectRegistry.obj_classes())\n'
            'assert after == before\n'
        )
        subprocess.run([sys.executable, '-c', code], check=True)


class TestInstanceInfo:
    def test_it_needs_only_a_uuid(self):
        info = objects.InstanceInfo(uuid=UUID)
        assert (info.name, info.project_id) == (None, None)
        assert round_trip(info) == info
        given = objects.InstanceInfo(uuid=UUID, name=None, project_id=None)
        assert round_trip(given) == given == info

    @pytest.mark.parametrize('values', [{}, {'name': None}, {'name': 'n'}])
    def test_a_reader_of_version_1_0_gets_texts(self, values):
        info = objects.InstanceInfo(uuid=UUID, **values)
        primitive = info.obj_to_primitive('1.0')
        assert primitive['versioned_object.version'] == '1.0'
        assert primitive['versioned_object.data'] == {
            'uuid': UUID,
            'name': values.get('name') or '',
            'project_id': '',
        }

    def test_version_1_1_keeps_none(self):
        info = objects.InstanceInfo(uuid=UUID, name=None, project_id='p')
        for version in (None, '1.1'):
            data = info.obj_to_primitive(version)['versioned_object.data']
            assert data == {'uuid': UUID, 'name': None, 'project_id': 'p'}

    def test_a_reader_of_version_1_1_gets_no_process(self):
        info = objects.InstanceInfo(uuid=UUID, process='b/4026531836/7/8')
        data = info.obj_to_primitive('1.1')['versioned_object.data']
        assert data == {'uuid': UUID}

    def test_what_version_1_0_wrote_is_read(self):
        primitive = objects.InstanceInfo(
            uuid=UUID, name='n', project_id=''
        ).obj_to_primitive('1.0')
        info = objects.InstanceInfo.obj_from_primitive(primitive)
        assert (info.name, info.project_id) == ('n', '')
        assert info.VERSION == '1.2'
        assert info.process is None


class TestCompatibility:
    """Reading and writing other versions, with a version 1.1 of the test."""

    @pytest.fixture
    def pci_1_1(self, registry):
        class PCIHandle(objects.PCIHandle):
            VERSION = '1.1'
            ADDED_IN = {'zone': '1.1'}
            fields = {'zone': ovo_fields.StringField(nullable=True)}

        # It replaces version 1.0, as in a later os-acc.
        registry['PCIHandle'] = []
        base.VersionedObjectRegistry.register(PCIHandle)
        return PCIHandle

    def test_to_an_older_version(self, pci_1_1):
        handle = pci_1_1(address='0c:00.1', managed=True, zone='z')
        primitive = handle.obj_to_primitive('1.0')
        assert primitive['versioned_object.version'] == '1.0'
        assert primitive['versioned_object.data'] == {
            'address': '0000:0c:00.1',
            'managed': True,
        }
        assert 'zone' not in primitive['versioned_object.changes']

    def test_the_older_one_reads_it(self, pci_1_1, registry):
        handle = pci_1_1(address='0c:00.1', managed=True, zone='z')
        primitive = handle.obj_to_primitive('1.0')
        registry['PCIHandle'] = [objects.PCIHandle]
        assert objects.PCIHandle.obj_from_primitive(
            primitive
        ) == objects.PCIHandle(address='0c:00.1', managed=True)

    def test_to_its_own_version(self, pci_1_1):
        handle = pci_1_1(address='0c:00.1', zone='z')
        data = handle.obj_to_primitive('1.1')['versioned_object.data']
        assert data['zone'] == 'z'
        assert round_trip(handle) == handle

    def test_from_an_older_version(self, pci_1_1):
        old = objects.PCIHandle(address='0c:00.1', managed=False)
        handle = pci_1_1.obj_from_primitive(old.obj_to_primitive())
        assert type(handle) is pci_1_1
        assert handle.VERSION == '1.1'
        assert handle.address == '0000:0c:00.1'
        assert handle.managed is False
        assert handle.zone is None

    def test_from_a_newer_version(self, pci_1_1, registry):
        primitive = pci_1_1(address='0c:00.1', zone='z').obj_to_primitive()
        van = objects.VAN(uuid=UUID, handle=pci_1_1(address='0c:00.1'))
        van_primitive = van.obj_to_primitive()
        registry['PCIHandle'] = [objects.PCIHandle]
        handle = objects.PCIHandle.obj_from_primitive(primitive)
        assert handle == objects.PCIHandle(address='0c:00.1')
        assert handle.VERSION == '1.0'
        assert objects.VAN.obj_from_primitive(van_primitive).handle == handle

    def test_a_newer_version_is_written_back(self, pci_1_1, registry):
        """What an older os-acc reads and saves loses nothing."""
        newer = pci_1_1(address='0c:00.1', zone='z')
        van = objects.VAN(uuid=UUID, handle=newer)
        written = van.obj_to_primitive()
        registry['PCIHandle'] = [objects.PCIHandle]
        read = objects.VAN.obj_from_primitive(written)
        read.handle.managed = True
        again = read.obj_clone().obj_to_primitive()
        assert read.obj_to_primitive() == again
        registry['PCIHandle'] = [pci_1_1]
        handle = objects.VAN.obj_from_primitive(again).handle
        assert handle == pci_1_1(address='0c:00.1', managed=True, zone='z')
        assert handle.VERSION == '1.1'
        # What it is asked for in its own version, is in that version.
        data = read.handle.obj_to_primitive('1.0')
        assert data['versioned_object.version'] == '1.0'
        assert 'zone' not in data['versioned_object.data']

    def test_two_clones_share_nothing_of_it(self, pci_1_1, registry):
        primitive = pci_1_1(address='0c:00.1').obj_to_primitive()
        primitive['versioned_object.data']['zone'] = {'a': ['b']}
        registry['PCIHandle'] = [objects.PCIHandle]
        read = objects.PCIHandle.obj_from_primitive(primitive)
        clone = read.obj_clone()
        data = clone.obj_to_primitive()['versioned_object.data']
        data['zone']['a'].append('c')
        for each in (read, clone):
            data = each.obj_to_primitive()['versioned_object.data']
            assert data['zone'] == {'a': ['b']}

    def test_an_unknown_field_of_its_own_version_is_dropped(self):
        primitive = objects.PCIHandle(address='0c:00.1').obj_to_primitive()
        primitive['versioned_object.data']['zone'] = 'z'
        read = objects.PCIHandle.obj_from_primitive(primitive)
        data = read.obj_to_primitive()['versioned_object.data']
        assert 'zone' not in data

    def test_of_another_major_version(self, pci_1_1):
        primitive = pci_1_1(address='0c:00.1').obj_to_primitive()
        primitive['versioned_object.version'] = '2.0'
        with pytest.raises(Exception, match=r'Version 2\.0 of PCIHandle'):
            pci_1_1.obj_from_primitive(primitive)

    def test_versions_are_compared_as_numbers(self, registry):
        class PCIHandle(objects.PCIHandle):
            VERSION = '1.10'
            ADDED_IN = {'zone': '1.9', 'late': '1.10'}
            fields = {
                'zone': ovo_fields.StringField(nullable=True),
                'late': ovo_fields.StringField(nullable=True),
            }

        base.VersionedObjectRegistry.register(PCIHandle)
        handle = PCIHandle(address='0c:00.1', zone='z', late='l')
        data = {
            version: set(
                handle.obj_to_primitive(version)['versioned_object.data']
            )
            for version in ('1.8', '1.9', '1.10')
        }
        assert data == {
            '1.8': {'address'},
            '1.9': {'address', 'zone'},
            '1.10': {'address', 'zone', 'late'},
        }

    def test_with_an_object_in_it(self, registry):
        class VAN(objects.VAN):
            VERSION = '1.1'
            ADDED_IN = {'zone': '1.1'}
            fields = {'zone': ovo_fields.StringField(nullable=True)}

        base.VersionedObjectRegistry.register(VAN)
        handle = objects.PCIHandle(address='0c:00.1')
        van = VAN(uuid=UUID, zone='z', handle=handle)
        primitive = van.obj_to_primitive('1.0')
        registry['VAN'] = [objects.VAN]
        assert objects.VAN.obj_from_primitive(primitive) == objects.VAN(
            uuid=UUID, handle=handle
        )

    def test_with_an_object_in_a_field_that_is_new(self, registry):
        @base.VersionedObjectRegistry.register
        class VAN(objects.VAN):
            VERSION = '1.1'
            ADDED_IN = {'second': '1.1'}
            fields = {
                'second': ovo_fields.ObjectField('PCIHandle', nullable=True)
            }

        second = objects.PCIHandle(address='0c:00.1')
        data = VAN(uuid=UUID, second=second).obj_to_primitive('1.0')
        assert data['versioned_object.data'] == {'uuid': UUID}

    def test_what_changed_in_any_kind_of_field(self, registry):
        """As in oslo, the value of the field decides, not its class."""

        @base.VersionedObjectRegistry.register
        class OwnHandle(objects.AttachHandle):
            VERSION = '1.0'
            fields = {
                'first': ovo_fields.ObjectField('PCIHandle'),
                'second': ovo_fields.Field(ovo_fields.Object('PCIHandle')),
                'listed': ovo_fields.ListOfObjectsField('PCIHandle'),
            }

        def new():
            return objects.PCIHandle(address='0c:00.1')

        own = OwnHandle(first=new(), second=new(), listed=[new()])
        own.obj_reset_changes(recursive=True)
        own.second.obj_reset_changes()  # oslo does not reset this one
        assert own.obj_what_changed() == set()
        for each in (own.first, own.second, own.listed[0]):
            each.address = '0c:00.2'
        assert own.obj_what_changed() == {'first', 'second'}
        assert own.obj_what_changed() == (
            ovo_base.VersionedObject.obj_what_changed(own)
        )

    def test_nothing_of_this_is_left(self):
        assert base.VersionedObjectRegistry.obj_classes() == classes()


class TestDeviceHandles:
    def device(self):
        return objects.Device(
            address='0000:3b:00.0',
            driver='pci',
            handles_total=3,
            handles_free=2,
            handles=[
                objects.DeviceHandleInfo(
                    handle=objects.PCIHandle(address='0000:3b:00.1'),
                    state='used',
                    holder=UUID,
                    reason='instance x has it',
                    region='0',
                )
            ],
            mdev_types=[
                objects.DeviceMdevTypeInfo(
                    name='mtty-1', label='one', capacity=2, available=2
                )
            ],
            functions={'0': None, '1': 'aes'},
        )

    def test_round_trip(self):
        device = self.device()
        assert round_trip(device) == device
        assert device.counted() == (3, 2)

    def test_to_a_reader_of_1_0(self):
        primitive = self.device().obj_to_primitive('1.0')
        data = primitive['versioned_object.data']
        assert not {'handles', 'mdev_types', 'functions'} & set(data)
        assert (data['handles_total'], data['handles_free']) == (3, 2)

    def test_from_a_writer_of_1_0(self):
        primitive = self.device().obj_to_primitive('1.0')
        device = objects.Device.obj_from_primitive(primitive)
        assert (device.handles, device.mdev_types) == ([], [])
        assert (device.functions, device.handles_free) == ({}, 2)

    def test_an_unknown_state(self):
        with pytest.raises(ValueError, match='lost'):
            objects.DeviceHandleInfo(state='lost')

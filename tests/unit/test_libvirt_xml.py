# SPDX-License-Identifier: Apache-2.0

"""acc_plug_libvirt: what the <hostdev> of each VAN says."""

from __future__ import annotations

import sys
import uuid

from hypothesis import given
from hypothesis import strategies as st
from lxml import etree
from oslo_config import cfg
import pytest

import acc_plug_libvirt
from acc_plug_libvirt import hostdev
from os_acc import exception
from os_acc import objects
from os_acc import opts

VAN = '9ae35b76-f322-49dc-ab63-c80d16eb1810'
MDEV = '21ceb89a-693d-421b-81d4-4e4e73b85c6d'
INSTANCE = objects.InstanceInfo(
    uuid='0d573cd0-f0c1-4f7d-9b6f-9a8714390489', name='n', project_id='p'
)


def load():
    return acc_plug_libvirt.LibvirtPlugin.load('libvirt')


@pytest.fixture(scope='module')
def plugin():
    """The plugin with all options at their defaults."""
    return load()


@pytest.fixture
def options():
    """Set options of [os_acc_libvirt] for plugins that are loaded later."""
    load()
    made = []

    def set_them(**values):
        for name, value in values.items():
            cfg.CONF.set_override(name, value, 'os_acc_libvirt')
            made.append(name)

    yield set_them
    for name in made:
        cfg.CONF.clear_override(name, 'os_acc_libvirt')


@pytest.fixture
def plug():
    """Plug a handle with a new plugin, and parse the guest_config."""

    def act(handle, **driver_data):
        return etree.fromstring(text_of(load(), handle, **driver_data))

    return act


def text_of(plugin, handle, **driver_data):
    van = objects.VAN(uuid=VAN, handle=handle, driver_data=driver_data)
    plugin.plug(van, INSTANCE, live=False)
    return van.guest_config


def pci(address='0c:00.1', **fields):
    return objects.PCIHandle(address=address, **fields)


def mdev(name='nvidia-223', parent='0000:65:00.0'):
    return objects.MdevHandle(uuid=MDEV, parent=parent, type=name)


def meaning(element):
    """An element as data, without the order and the white space."""
    assert not (element.text or '').strip()
    children = [meaning(child) for child in element]
    return element.tag, dict(element.attrib), sorted(children, key=str)


def same(element, expected):
    return meaning(element) == meaning(etree.fromstring(expected))


class TestPCI:
    @pytest.mark.parametrize(
        ('handle', 'option', 'expected'),
        [
            (None, None, 'yes'),
            (None, True, 'yes'),
            (None, False, 'no'),
            (True, None, 'yes'),
            (True, False, 'yes'),
            (False, None, 'no'),
            (False, True, 'no'),
        ],
    )
    def test_managed(self, plug, options, handle, option, expected):
        if option is not None:
            options(managed=option)
        assert same(
            plug(pci(managed=handle)),
            f"""
            <hostdev mode='subsystem' type='pci' managed='{expected}'>
              <source>
                <address domain='0x0000' bus='0x0c' slot='0x00'
                         function='0x1'/>
              </source>
              <alias name='ua-acc-{VAN}'/>
            </hostdev>
            """,
        )

    @pytest.mark.parametrize(
        ('address', 'expected'),
        [
            ('10000:e1:00.0', ('0x10000', '0xe1', '0x00', '0x0')),
            ('FFFFFFFF:FF:1F.7', ('0xffffffff', '0xff', '0x1f', '0x7')),
            ('00ab:0a:10.3', ('0x00ab', '0x0a', '0x10', '0x3')),
        ],
    )
    def test_address(self, plug, address, expected):
        found = plug(pci(address)).find('source/address')
        keys = ('domain', 'bus', 'slot', 'function')
        assert dict(found.attrib) == dict(zip(keys, expected, strict=True))

    def test_all_options(self, plug, options):
        options(
            managed=False,
            vfio_driver='mlx5_vfio_pci',
            iommufd=True,
            rom_bar=False,
            guest_addresses=['0c:00.1=05:00.0'],
        )
        assert same(
            plug(pci()),
            f"""
            <hostdev mode='subsystem' type='pci' managed='no'>
              <driver name='vfio' model='mlx5_vfio_pci' iommufd='yes'/>
              <source>
                <address domain='0x0000' bus='0x0c' slot='0x00'
                         function='0x1'/>
              </source>
              <rom bar='off'/>
              <alias name='ua-acc-{VAN}'/>
              <address type='pci' domain='0x0000' bus='0x05' slot='0x00'
                       function='0x0'/>
            </hostdev>
            """,
        )

    @pytest.mark.parametrize(
        ('values', 'expected'),
        [
            ({}, None),
            ({'vfio_driver': ''}, None),
            (
                {'vfio_driver': 'nvgrace_gpu_vfio_pci'},
                {'name': 'vfio', 'model': 'nvgrace_gpu_vfio_pci'},
            ),
            ({'iommufd': True}, {'iommufd': 'yes'}),
            ({'iommufd': False}, {'iommufd': 'no'}),
            (
                {'vfio_driver': 'x', 'iommufd': False},
                {'name': 'vfio', 'model': 'x', 'iommufd': 'no'},
            ),
        ],
    )
    def test_driver(self, plug, options, values, expected):
        options(**values)
        drivers = plug(pci()).findall('driver')
        assert [dict(d.attrib) for d in drivers] == (
            [expected] if expected else []
        )

    @pytest.mark.parametrize(
        ('values', 'managed', 'hints', 'expected'),
        [
            ({}, False, {'iommufd': 'yes'}, {'iommufd': 'yes'}),
            ({'iommufd': False}, False, {'iommufd': 'yes'}, {'iommufd': 'no'}),
            ({}, False, {'vfio_driver': 'mlx5_vfio_pci'}, None),
            (
                {'vfio_driver': 'x'},
                True,
                {'vfio_driver': 'mlx5_vfio_pci', 'iommufd': 'yes'},
                {'name': 'vfio', 'model': 'mlx5_vfio_pci', 'iommufd': 'yes'},
            ),
        ],
    )
    def test_hints_of_a_driver(
        self, plug, options, values, managed, hints, expected
    ):
        options(**values)
        drivers = plug(pci(managed=managed), **hints).findall('driver')
        assert [dict(d.attrib) for d in drivers] == (
            [expected] if expected else []
        )

    @pytest.mark.parametrize(
        ('value', 'expected'),
        [(None, []), (True, [{'bar': 'on'}]), (False, [{'bar': 'off'}])],
    )
    def test_rom(self, plug, options, value, expected):
        options(rom_bar=value)
        found = plug(pci()).findall('rom')
        assert [dict(rom.attrib) for rom in found] == expected

    def test_options_of_mdevs_leave_it_alone(self, plug, options):
        plain = meaning(plug(pci(), device_api='vfio-ap'))
        options(display=True, ramfb=True)
        assert meaning(plug(pci())) == plain

    def test_option_is_escaped(self, plug, options):
        nasty = """<&'"/>"""
        options(vfio_driver=nasty)
        assert plug(pci()).find('driver').get('model') == nasty

    @given(
        st.integers(0, 0xFFFFFFFF),
        st.integers(0, 0xFF),
        st.integers(0, 0x1F),
        st.integers(0, 7),
        st.none() | st.booleans(),
    )
    def test_any_address(self, plugin, domain, bus, slot, function, managed):
        text = f'{domain:04x}:{bus:02x}:{slot:02x}.{function}'
        handle = pci(text, managed=managed)
        element = etree.fromstring(text_of(plugin, handle))
        attrib = element.find('source/address').attrib
        assert all(value.startswith('0x') for value in attrib.values())
        again = '{domain:04x}:{bus:02x}:{slot:02x}.{function:x}'.format(
            **{key: int(value, 16) for key, value in attrib.items()}
        )
        assert pci(again, managed=element.get('managed') == 'yes') == pci(
            text, managed=managed is not False
        )


class TestMdev:
    @pytest.mark.parametrize(
        ('driver_data', 'name', 'model'),
        [
            ({}, 'nvidia-223', 'vfio-pci'),
            ({}, 'i915-GVTg_V5_4', 'vfio-pci'),
            ({}, 'vfio_ap-passthrough', 'vfio-ap'),
            ({}, 'vfio_ccw-io', 'vfio-ccw'),
            ({}, 'vfio_apart-1', 'vfio-pci'),
            ({'device_api': 'vfio-pci'}, 'vfio_ap-passthrough', 'vfio-pci'),
            ({'device_api': 'vfio-ap'}, 'nvidia-223', 'vfio-ap'),
            ({'device_api': 'vfio-ccw'}, 'nvidia-223', 'vfio-ccw'),
        ],
    )
    def test_model(self, plug, driver_data, name, model):
        assert same(
            plug(mdev(name), **driver_data),
            f"""
            <hostdev mode='subsystem' type='mdev' managed='no'
                     model='{model}'>
              <source>
                <address uuid='{MDEV}'/>
              </source>
              <alias name='ua-acc-{VAN}'/>
            </hostdev>
            """,
        )

    def test_model_from_the_kernel(self, plug, tmp_path, monkeypatch):
        # A directory replaces sysfs: the host of this test has no mdevs.
        monkeypatch.setattr(hostdev, 'MDEV_API', str(tmp_path / '{}'))
        (tmp_path / MDEV).write_text('vfio-ap\n', encoding='ascii')
        assert plug(mdev()).get('model') == 'vfio-ap'
        # The driver's hint overrides the kernel.
        assert plug(mdev(), device_api='vfio-pci').get('model') == 'vfio-pci'
        (tmp_path / MDEV).write_text('vfio-platform\n', encoding='ascii')
        with pytest.raises(exception.InvalidRequest, match='vfio-platform'):
            plug(mdev())

    @pytest.mark.parametrize('value', ['', 'vfio', 'vfio-platform', '"'])
    def test_wrong_model(self, plug, value):
        with pytest.raises(exception.InvalidRequest) as caught:
            plug(mdev(), device_api=value)
        assert str(caught.value) == (
            f'VAN {VAN}: device_api is {value!r}, expected one of vfio-pci, '
            'vfio-ap, vfio-ccw'
        )

    @pytest.mark.parametrize(
        ('name', 'display', 'ramfb', 'expected'),
        [
            ('nvidia-223', False, False, {}),
            ('nvidia-223', True, False, {'display': 'on'}),
            ('nvidia-223', True, True, {'display': 'on', 'ramfb': 'on'}),
            ('nvidia-223', False, True, {}),
            ('vfio_ap-passthrough', True, True, {}),
            ('vfio_ccw-io', True, True, {}),
        ],
    )
    def test_display(self, plug, options, name, display, ramfb, expected):
        plain = plug(mdev(name))
        options(display=display, ramfb=ramfb)
        for key, value in expected.items():
            plain.set(key, value)
        assert meaning(plug(mdev(name))) == meaning(plain)

    def test_options_of_functions_leave_it_alone(self, plug, options):
        plain = meaning(plug(mdev()))
        options(managed=False, vfio_driver='x', iommufd=True, rom_bar=True)
        assert meaning(plug(mdev())) == plain
        options(managed=True)
        assert meaning(plug(mdev())) == plain


class TestGuestAddress:
    EXPECTED = {
        'type': 'pci',
        'domain': '0x0000',
        'bus': '0x0a',
        'slot': '0x1f',
        'function': '0x7',
    }

    @staticmethod
    def found(element):
        return [dict(address.attrib) for address in element.findall('address')]

    def test_none(self, plug):
        assert self.found(plug(pci())) == self.found(plug(mdev())) == []

    @pytest.mark.parametrize(
        'text', ['0000:0a:1f.7', '0a:1f.7', '0A:1F.7', '00000000:0a:1f.7']
    )
    @pytest.mark.parametrize('handle', [pci(), mdev()])
    def test_by_the_driver(self, plug, handle, text):
        assert self.found(plug(handle, guest_address=text)) == [self.EXPECTED]

    @pytest.mark.parametrize(
        ('handle', 'name'),
        [
            (pci(), '0000:0c:00.1'),
            (pci(), '0C:00.1'),
            (pci(), '00000000:0c:00.1'),
            (pci('10000:e1:00.0'), '00010000:E1:00.0'),
            (mdev(), MDEV),
            (mdev(), MDEV.upper()),
        ],
    )
    def test_by_the_option(self, plug, options, handle, name):
        # In the format of a configuration file.
        options(guest_addresses=f'0d:00.0=01:00.0, {name}=0A:1F.7')
        assert self.found(plug(handle)) == [self.EXPECTED]

    @pytest.mark.parametrize('handle', [pci('0d:00.0'), mdev()])
    def test_another_device_of_the_guest_has_it(self, options, handle):
        """By the option and by a driver, in different spellings."""
        options(guest_addresses='0c:00.1=0a:1f.7')
        plugin = load()
        first = objects.VAN(uuid=str(uuid.uuid4()), handle=pci())
        plugin.plug(first, INSTANCE, live=False)
        text = '0000:0A:1F.7'
        van = objects.VAN(
            uuid=VAN, handle=handle, driver_data={'guest_address': text}
        )
        van.connect(None, others=lambda: [first])
        with pytest.raises(exception.InvalidRequest) as caught:
            plugin.plug(van, INSTANCE, live=False)
        for part in (text, first.uuid, 'pci/0000:0c:00.1', VAN):
            assert part in str(caught.value)
        van.driver_data = {'guest_address': '0a:1f.6'}
        plugin.plug(van, INSTANCE, live=False)
        assert 'function="0x6"' in van.guest_config

    @pytest.mark.parametrize('api', ['vfio-ap', 'vfio-ccw'])
    def test_an_mdev_that_is_no_pci_device_has_none(self, plug, api):
        element = plug(mdev(), device_api=api, guest_address='0a:1f.7')
        assert self.found(element) == []

    def test_the_host_bridge_has_its_own(self, plug):
        with pytest.raises(exception.InvalidRequest, match='not all zero'):
            plug(pci(), guest_address='0000:00:00.0')

    def test_option_for_others(self, plug, options):
        options(guest_addresses=[f'{MDEV}=05:00.0', '0c:00.2=06:00.0'])
        assert self.found(plug(pci())) == []

    def test_driver_before_option(self, plug, options):
        options(guest_addresses=['0c:00.1=05:00.0'])
        found = self.found(plug(pci(), guest_address='0a:1f.7'))
        assert found == [self.EXPECTED]

    @pytest.mark.parametrize(
        'text', ['', 'x', '0a:1f.8', '0a:20.0', '0x0a:0x1f.0x7', '../..']
    )
    def test_wrong(self, plug, text):
        with pytest.raises(exception.InvalidRequest) as caught:
            plug(pci(), guest_address=text)
        assert str(caught.value) == (
            f'VAN {VAN}: guest_address is {text!r}, expected a PCI address '
            '(dddd:bb:ss.f), not all zero'
        )

    @pytest.mark.parametrize(
        'text',
        [
            '0c:00.1=',
            '0c:00.1=x',
            '0c:00.1=0a:1f.8',
            '0c:00.1=0a:20.0',
            '0c:00.1=0x0a:0x1f.0x7',
            '0c:00.1=../..',
            '0c:00.1',
            '0c:00.1=05:00.0=06:00.0',
            'eth0=05:00.0',
            '=05:00.0',
        ],
    )
    def test_wrong_option(self, text, tmp_path):
        """initialize() refuses it, before anything is plugged."""
        file = tmp_path / 'nova.conf'
        file.write_text(f'[os_acc_libvirt]\nguest_addresses = {text}\n')
        groups = [
            ('os_acc_libvirt', acc_plug_libvirt.LibvirtPlugin.CONFIG_OPTS)
        ]
        conf = cfg.ConfigOpts()
        opts.register(conf)
        conf.register_opts(groups[0][1], groups[0][0])
        conf([], default_config_files=[str(file)])
        with pytest.raises(exception.InvalidRequest) as caught:
            opts.check(conf, groups)
        assert str(caught.value).startswith(
            'configuration: [os_acc_libvirt] guest_addresses in '
            f"{file}:2: Value {text!r} doesn't match regex"
        )

    def test_option_for_the_host_bridge(self, plug, options):
        options(guest_addresses=['0c:00.1=00:00.0'])
        with pytest.raises(exception.InvalidRequest, match='not all zero'):
            plug(pci())


class TestPlugin:
    def test_describe(self, plugin):
        info = plugin.describe()
        assert info.plugin_name == 'libvirt'
        takes = [h.handle_object_name for h in info.handle_info]
        assert takes == [
            'PCIHandle',
            'MdevHandle',
            'BlockHandle',
            'TestHandle',
        ]

    def test_test_handle_needs_nothing(self, options):
        options(guest_addresses=['0c:00.1=05:00.0'])
        handle = objects.TestHandle(name='0c:00.1')
        assert text_of(load(), handle) is None

    @pytest.mark.parametrize(
        ('handle', 'name'),
        [(objects.DRCHandle(drc_index=1), 'DRCHandle'), (None, 'None')],
    )
    def test_other_handles_are_refused(self, plugin, handle, name):
        with pytest.raises(exception.UnsupportedHandle) as caught:
            text_of(plugin, handle)
        assert str(caught.value) == (
            f"plugin 'libvirt' does not accept {name}; it accepts: PCIHandle, "
            'MdevHandle, BlockHandle, TestHandle'
        )

    def test_live_without_the_package(self, plugin, monkeypatch):
        monkeypatch.setitem(sys.modules, 'libvirt', None)
        with pytest.raises(exception.HypervisorError, match='libvirt-python'):
            plugin.check_live()

    def test_plugged_again(self, plugin):
        van = objects.VAN(uuid=VAN, handle=pci())
        plugin.plug(van, INSTANCE, live=False)
        first = van.guest_config
        plugin.plug(van, INSTANCE, live=False)
        assert van.guest_config == first

    def test_options_are_read_once(self, options):
        """They change when initialize(reset=True) loads the plugin again."""
        loaded = load()
        assert 'managed="yes"' in text_of(loaded, pci())
        options(managed=False)
        assert 'managed="yes"' in text_of(loaded, pci())
        assert 'managed="no"' in text_of(load(), pci())

    def test_unplug(self, plugin):
        van = objects.VAN(uuid=VAN, handle=pci())
        plugin.unplug(van, INSTANCE, live=False)  # not plugged: no error
        plugin.plug(van, INSTANCE, live=False)
        plugin.unplug(van, INSTANCE, live=False)

    def test_it_is_one_element_and_no_document(self, plugin):
        text = text_of(plugin, pci())
        assert text.startswith('<hostdev ')
        assert '<?xml' not in text
        assert text.endswith('</hostdev>\n')

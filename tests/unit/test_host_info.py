# SPDX-License-Identifier: Apache-2.0

"""HostInfo and its parts: which handle versions a host speaks."""

from __future__ import annotations

import pytest

from os_acc import exception
from os_acc import objects
from os_acc.objects import base

objects.register_all()


def handle_info(name='PCIHandle', lowest='1.0', highest='1.0'):
    return objects.HostHandleInfo(
        handle_object_name=name, min_version=lowest, max_version=highest
    )


def host_info():
    return objects.HostInfo(
        plugin_info=[
            objects.HostPluginInfo(
                plugin_name='libvirt',
                handle_info=[
                    handle_info('PCIHandle'),
                    handle_info('MdevHandle'),
                ],
            ),
            objects.HostPluginInfo(
                plugin_name='powervm', handle_info=[handle_info('DRCHandle')]
            ),
        ],
        driver_info=[
            objects.HostDriverInfo(
                driver_name='pci', handle_info=[handle_info('PCIHandle')]
            ),
            objects.HostDriverInfo(
                driver_name='mdev', handle_info=[handle_info('MdevHandle')]
            ),
            objects.HostDriverInfo(driver_name='silent', handle_info=[]),
        ],
    )


def names(info):
    return (
        [
            (p.plugin_name, [h.handle_object_name for h in p.handle_info])
            for p in info.plugin_info
        ],
        [
            (d.driver_name, [h.handle_object_name for h in d.handle_info])
            for d in info.driver_info
        ],
    )


@pytest.fixture
def versions():
    """PCIHandle in the versions 1.0, 1.2, 1.10 and 2.0."""
    known = base.VersionedObjectRegistry.obj_classes()
    before = list(known['PCIHandle'])
    for version in ('1.2', '2.0', '1.10'):
        cls = type('PCIHandle', (objects.PCIHandle,), {'VERSION': version})
        base.VersionedObjectRegistry.register(cls)
    yield
    known['PCIHandle'] = before


class TestHandleInfo:
    def test_of(self):
        for name in ('PCIHandle', 'MdevHandle', 'DRCHandle', 'TestHandle'):
            info = objects.HostHandleInfo.of(name)
            assert info == handle_info(name)
            assert info.get_common_version() == '1.0'

    def test_of_a_class_with_several_versions(self, versions):
        info = objects.HostHandleInfo.of('PCIHandle')
        assert info == handle_info(lowest='2.0', highest='2.0')

    @pytest.mark.parametrize(
        ('lowest', 'highest', 'common'),
        [
            ('1.0', '1.0', '1.0'),
            ('1.0', '1.1', '1.0'),
            ('1.0', '1.2', '1.2'),
            ('1.0', '1.9', '1.2'),
            ('1.0', '1.99', '1.10'),
            ('1.2', '1.10', '1.10'),
            ('1.0', '3.0', '2.0'),
            ('2.0', '2.0', '2.0'),
        ],
    )
    def test_the_highest_common_version(
        self, versions, lowest, highest, common
    ):
        info = handle_info(lowest=lowest, highest=highest)
        assert info.get_common_version() == common

    @pytest.mark.parametrize(
        ('lowest', 'highest'),
        [('0.1', '0.9'), ('1.3', '1.9'), ('2.1', '9.0'), ('1.2', '1.0')],
    )
    def test_no_common_version(self, versions, lowest, highest):
        info = handle_info(lowest=lowest, highest=highest)
        with pytest.raises(exception.UnsupportedHandleVersion) as caught:
            info.get_common_version()
        assert str(caught.value) == (
            'PCIHandle: version 2.0, 1.10, 1.2, 1.0 is not between '
            f'{lowest} and {highest}'
        )

    def test_unknown_class(self):
        for call in (
            handle_info('CCWHandle').get_common_version,
            lambda: objects.HostHandleInfo.of('CCWHandle'),
        ):
            with pytest.raises(exception.UnsupportedHandle, match='CCWHandle'):
                call()
        # Nor is it known by having been asked for.
        assert 'CCWHandle' not in base.VersionedObjectRegistry.obj_classes()

    def test_round_trip(self):
        info = host_info()
        info.load_errors = {'driver gpu': 'ImportError: no'}
        assert (
            objects.HostInfo.obj_from_primitive(info.obj_to_primitive())
            == info
        )


class TestHasAndGet:
    def test_plugin(self):
        info = host_info()
        assert info.has_plugin('libvirt')
        assert not info.has_plugin('pci')
        assert info.get_plugin('powervm').plugin_name == 'powervm'
        with pytest.raises(exception.NoMatchingPlugin, match="'noop'"):
            info.get_plugin('noop')

    def test_driver(self):
        info = host_info()
        assert info.has_driver('mdev')
        assert not info.has_driver('libvirt')
        assert info.get_driver('mdev').driver_name == 'mdev'
        with pytest.raises(exception.NoMatchingDriver, match="'gpu'"):
            info.get_driver('gpu')

    def test_handle(self):
        info = host_info()
        for holder in (info.get_plugin('libvirt'), info.get_driver('mdev')):
            assert holder.has_handle('MdevHandle')
            assert not holder.has_handle('DRCHandle')
            assert holder.get_handle('MdevHandle') == handle_info('MdevHandle')

    def test_missing_handle_says_what_there_is(self):
        info = host_info()
        with pytest.raises(exception.UnsupportedHandle) as caught:
            info.get_plugin('libvirt').get_handle('DRCHandle')
        assert str(caught.value) == (
            "plugin 'libvirt' does not accept DRCHandle; it accepts: "
            'PCIHandle, MdevHandle'
        )
        with pytest.raises(exception.UnsupportedHandle) as caught:
            info.get_driver('silent').get_handle('DRCHandle')
        assert "driver 'silent' does not accept DRCHandle" in str(caught.value)
        assert str(caught.value).endswith('none')


class TestFilter:
    @pytest.mark.parametrize(
        ('permitted', 'plugins', 'drivers'),
        [
            (
                ['PCIHandle'],
                [('libvirt', ['PCIHandle'])],
                [('pci', ['PCIHandle'])],
            ),
            (
                {'DRCHandle', 'MdevHandle'},
                [('libvirt', ['MdevHandle']), ('powervm', ['DRCHandle'])],
                [('mdev', ['MdevHandle'])],
            ),
            (
                ('PCIHandle', 'MdevHandle', 'Unknown'),
                [('libvirt', ['PCIHandle', 'MdevHandle'])],
                [('pci', ['PCIHandle']), ('mdev', ['MdevHandle'])],
            ),
            ([], [], []),
        ],
    )
    def test_host(self, permitted, plugins, drivers):
        info = host_info()
        info.filter_handle_types(permitted)
        assert names(info) == (plugins, drivers)

    def test_load_errors_stay(self):
        info = host_info()
        info.load_errors = {'driver gpu': 'ImportError: no'}
        info.filter_handle_types([])
        assert info.load_errors == {'driver gpu': 'ImportError: no'}

    def test_one(self):
        plugin = host_info().get_plugin('libvirt')
        plugin.filter_handle_types(['MdevHandle'])
        assert plugin.handle_info == [handle_info('MdevHandle')]

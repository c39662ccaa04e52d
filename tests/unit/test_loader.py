# SPDX-License-Identifier: Apache-2.0

"""Which driver, and what becomes of a broken one."""

from __future__ import annotations

from importlib import metadata
import logging

from oslo_config import cfg
import pytest
from stevedore import extension as stevedore_extension

from os_acc import driver as driver_base
from os_acc import exception
from os_acc import loader
from os_acc import objects
from os_acc import plugin as plugin_base

UUID = '9ae35b76-f322-49dc-ab63-c80d16eb1810'


class Driver(driver_base.DriverBase):
    """Claims what it is told to."""

    claim = True

    def can_handle(self, request):
        if isinstance(self.claim, Exception):
            raise self.claim
        return self.claim

    def get_devices(self):
        return []

    def prepareVAN(self, van, request, instance_info):
        pass

    def unprepareVAN(self, van, instance_info):
        pass


class Plugin(plugin_base.PluginBase):
    def describe(self):
        return objects.HostPluginInfo(plugin_name=self.name, handle_info=[])

    def plug(self, van, instance_info, live):
        pass

    def unplug(self, van, instance_info, live):
        pass


class Unloadable(Driver):
    @classmethod
    def load(cls, name):
        raise RuntimeError(f'{name} has no firmware')


class Unfinished(driver_base.DriverBase):
    """Lacks the methods of the contract."""


class WithOptions(Driver):
    CONFIG_OPTS = (cfg.IntOpt('speed', default=3),)


class Optional(Driver):
    @classmethod
    def load(cls, name):
        raise exception.MissingPackage(
            what=f'driver {name}', package='acme_sdk', extra='acme'
        )


class OtherOptions(Driver):
    CONFIG_OPTS = (cfg.StrOpt('speed', default='fast'),)


class NoDriver:
    """Not of our classes."""


an_instance = Driver(None)


def make(name, claim=True, generic=False):
    driver = Driver(None)
    driver.name, driver.claim, driver.generic = name, claim, generic
    return driver


def extensions(*drivers, plugins=(), errors=()):
    return loader.Extensions(
        {d.name: d for d in drivers}, dict(plugins), dict(errors)
    )


def request(**fields):
    return objects.AcceleratorRequest(uuid=UUID, **fields)


class TestDriverFor:
    def choose(self, *drivers, preferred=(), **fields):
        chosen = extensions(*drivers).driver_for(request(**fields), preferred)
        return chosen.name

    def test_the_one_that_claims_it(self):
        assert (
            self.choose(make('a', False), make('b'), make('c', False)) == 'b'
        )

    def test_named_whatever_the_others_claim(self):
        drivers = [make('a'), make('b', False)]
        assert self.choose(*drivers, driver='b') == 'b'
        assert self.choose(*drivers, driver='b', preferred=['a']) == 'b'

    def test_named_is_not_asked(self):
        assert self.choose(make('a', RuntimeError('x')), driver='a') == 'a'

    def test_unknown_name(self):
        with pytest.raises(exception.NoMatchingDriver) as caught:
            self.choose(make('b'), make('a'), driver='gpu')
        assert str(caught.value) == (
            "No driver for driver name 'gpu': the loaded drivers are: a, b"
        )

    def test_name_that_failed_to_load(self):
        found = extensions(errors={'driver gpu': 'ImportError: no cuda'})
        with pytest.raises(exception.NoMatchingDriver) as caught:
            found.driver_for(request(driver='gpu'), [])
        assert 'it failed to load: ImportError: no cuda' in str(caught.value)

    def test_specific_before_generic(self):
        drivers = [make('aa', generic=True), make('b'), make('c', False)]
        assert self.choose(*drivers) == 'b'
        assert self.choose(*drivers[::-1]) == 'b'

    def test_specific_before_a_preferred_generic(self):
        drivers = [make('pci', generic=True), make('qat')]
        assert self.choose(*drivers, preferred=['pci']) == 'qat'

    def test_generic_where_no_specific_one_claims_it(self):
        drivers = [make('pci', generic=True), make('qat', False)]
        assert self.choose(*drivers) == 'pci'

    def test_ambiguous(self):
        for generic in (False, True):
            drivers = [make(n, generic=generic) for n in ('b', 'a', 'c')]
            drivers.append(make('d', False))
            with pytest.raises(exception.AmbiguousDriver) as caught:
                self.choose(*drivers, resource_class='FPGA', traits=['T'])
            assert str(caught.value) == (
                'More than one driver claims '
                f"request {UUID} (resource_class='FPGA', traits=['T']): "
                'a, b, c. Order them in [os_acc] drivers, or name one in the '
                'request'
            )

    @pytest.mark.parametrize(
        ('preferred', 'chosen'),
        [
            (['b'], 'b'),
            (['c', 'a'], 'c'),
            (['a', 'c'], 'a'),
            (['unknown', 'c'], 'c'),
            (['no', 'b', 'c'], 'b'),
        ],
    )
    def test_preferred(self, preferred, chosen):
        drivers = [make('a'), make('b'), make('c'), make('no', False)]
        assert self.choose(*drivers, preferred=preferred) == chosen

    def test_preferred_that_claim_nothing_do_not_help(self):
        drivers = [make('a'), make('b'), make('no', False)]
        with pytest.raises(exception.AmbiguousDriver):
            self.choose(*drivers, preferred=['no', 'unknown'])

    def test_none_claims_it(self):
        handle = objects.PCIHandle(address='0c:00.1')
        with pytest.raises(exception.NoMatchingDriver) as caught:
            self.choose(make('b', False), make('a', False), handle=handle)
        assert str(caught.value) == (
            f'No driver for request {UUID} (pci/0000:0c:00.1): none of a, b '
            'claims it'
        )

    def test_no_driver_at_all(self):
        with pytest.raises(exception.NoMatchingDriver, match='no selector'):
            self.choose()

    def test_one_cannot_say(self):
        # Even where another one claims it: it might be the wrong one.
        broken = RuntimeError('sysfs is gone')
        with pytest.raises(exception.NoMatchingDriver) as caught:
            self.choose(make('a'), make('b', broken))
        assert caught.value.__cause__ is broken
        assert "can_handle() of driver 'b' failed" in str(caught.value)
        assert 'RuntimeError: sysfs is gone' in str(caught.value)


class TestByName:
    def test_driver_and_plugin(self):
        driver, plugin = make('a'), Plugin(None)
        found = extensions(driver, plugins={'p': plugin})
        assert found.driver('a') is driver
        assert found.plugin('p') is plugin

    def test_unknown_plugin(self):
        found = extensions(
            plugins={'q': Plugin(None), 'p': Plugin(None)},
            errors={'plugin powervm': 'ImportError: pypowervm'},
        )
        with pytest.raises(exception.NoMatchingPlugin) as caught:
            found.plugin('xen')
        assert str(caught.value) == (
            "Plugin 'xen' is unavailable: the loaded plugins are: p, q"
        )
        with pytest.raises(exception.NoMatchingPlugin) as caught:
            found.plugin('powervm')
        assert 'failed to load: ImportError: pypowervm' in str(caught.value)

    def test_a_driver_is_no_plugin(self):
        found = extensions(make('a'), errors={'driver b': 'broken'})
        with pytest.raises(exception.NoMatchingPlugin, match='none'):
            found.plugin('a')
        with pytest.raises(exception.NoMatchingPlugin, match='none'):
            found.plugin('b')


@pytest.fixture
def entry_points(monkeypatch):
    """Set what stevedore finds installed: (name, value) pairs."""
    cache = stevedore_extension.ExtensionManager.ENTRY_POINT_CACHE

    def set_them(*found, namespace=loader.DRIVERS):
        listed = [
            metadata.EntryPoint(
                name,
                value if ':' in value else f'{__name__}:{value}',
                namespace,
            )
            for name, value in found
        ]
        monkeypatch.setitem(cache, namespace, listed)

    for namespace in (loader.DRIVERS, loader.PLUGINS):
        set_them(namespace=namespace)
    return set_them


class TestLoad:
    def load(self):
        loaded, errors = loader.load(loader.DRIVERS, driver_base.DriverBase)
        for name, made in loaded.items():
            assert made.name == name
            assert isinstance(made, driver_base.DriverBase)
        assert not set(loaded) & set(errors)
        return sorted(loaded), errors

    def test_all_good(self, entry_points):
        entry_points(('acc-a', 'Driver'), ('acc-b', 'Driver'))
        assert self.load() == (['acc-a', 'acc-b'], {})

    def test_nothing_installed(self, entry_points):
        assert self.load() == ([], {})

    @pytest.mark.parametrize(
        ('value', 'reason'),
        [
            ('no_such_module_of_ours:Driver', 'ModuleNotFoundError'),
            ('Bogus', 'AttributeError'),
            ('NoDriver', 'NoDriver'),
            ('Plugin', 'is not a DriverBase'),
            ('an_instance', 'is not a DriverBase'),
            ('make', 'is not a DriverBase'),
            ('Unfinished', 'TypeError'),
            ('Unloadable', 'RuntimeError: broken has no firmware'),
        ],
    )
    def test_a_broken_one(self, entry_points, caplog, value, reason):
        entry_points(
            ('acc-a', 'Driver'), ('broken', value), ('acc-b', 'Driver')
        )
        loaded, errors = self.load()
        assert loaded == ['acc-a', 'acc-b']
        assert list(errors) == ['broken']
        assert reason in errors['broken']
        assert 'Cannot load' in caplog.text
        assert reason in caplog.text

    @pytest.mark.parametrize(
        ('line', 'reason'),
        [
            ("raise RuntimeError('boom')", 'RuntimeError: boom'),
            ('import', 'SyntaxError'),
            ('import no_such_module_of_ours', 'no_such_module_of_ours'),
            ("raise AssertionError('boom')", 'AssertionError: boom'),
            ('import sys; sys.exit(3)', 'SystemExit: 3'),
        ],
    )
    def test_a_module_that_cannot_be_imported(
        self, entry_points, tmp_path, monkeypatch, line, reason
    ):
        (tmp_path / 'acc_broken.py').write_text(line, encoding='utf-8')
        monkeypatch.syspath_prepend(tmp_path)
        entry_points(('acc-a', 'Driver'), ('broken', 'acc_broken:Driver'))
        loaded, errors = self.load()
        assert loaded == ['acc-a']
        assert reason in errors['broken']

    @pytest.mark.parametrize('times', [2, 3])
    def test_a_name_that_is_there_twice(self, entry_points, times):
        entry_points(*[('acc-a', 'Driver')] * times, ('acc-b', 'Driver'))
        loaded, errors = self.load()
        assert loaded == ['acc-b']
        assert list(errors) == ['acc-a']
        assert 'two installed packages' in errors['acc-a']

    def test_a_name_that_is_there_twice_once_broken(self, entry_points):
        for values in (('Driver', 'Unloadable'), ('Unloadable', 'Driver')):
            entry_points(*[('acc-a', value) for value in values])
            loaded, errors = self.load()
            assert loaded == []
            assert 'acc-a' in errors

    def test_an_optional_package_is_not_installed(self, entry_points, caplog):
        entry_points(('acc-a', 'Optional'), ('acc-b', 'Unloadable'))
        found = loader.load_all()
        assert found.optional == {'acc-a'}
        assert set(found.errors) == {'driver acc-a', 'driver acc-b'}
        assert set(found.lacking((), ())) == {'acc-b'}
        logged = [e for e in caplog.records if e.levelname == 'ERROR']
        assert [e for e in logged if 'acc-b' in e.getMessage()]
        assert not [e for e in logged if 'acc-a' in e.getMessage()]

    def test_options(self, entry_points):
        entry_points(('acc-opt', 'WithOptions'))
        assert self.load() == (['acc-opt'], {})
        loaded, _ = loader.load(loader.DRIVERS, driver_base.DriverBase)
        assert loaded['acc-opt'].config.speed == 3
        assert cfg.CONF['os_acc_acc-opt'].speed == 3

    def test_options_that_clash(self, entry_points):
        entry_points(('acc-clash', 'WithOptions'))
        self.load()
        entry_points(('acc-clash', 'OtherOptions'), ('acc-a', 'Driver'))
        loaded, errors = self.load()
        assert loaded == ['acc-a']
        assert 'DuplicateOptError' in errors['acc-clash']


class TestLoadAll:
    def test_kinds_are_kept_apart(self, entry_points, caplog):
        caplog.set_level(logging.INFO, 'os_acc')
        entry_points(('one', 'Driver'), ('two', 'Plugin'))
        entry_points(
            ('one', 'Driver'), ('two', 'Plugin'), namespace=loader.PLUGINS
        )
        found = loader.load_all()
        assert list(found.drivers) == ['one']
        assert list(found.plugins) == ['two']
        assert sorted(found.errors) == ['driver two', 'plugin one']
        assert 'drivers: one; plugins: two' in caplog.text
        with pytest.raises(exception.NoMatchingPlugin, match='not a Plugin'):
            found.plugin('one')

    def test_our_own(self):
        found = loader.load_all()
        assert 'fake' in found.drivers
        assert {'libvirt', 'noop'} <= set(found.plugins)
        ours = {'driver fake', 'plugin libvirt', 'plugin noop'}
        assert not ours & set(found.errors)


class TestImportable:
    def test_names_and_options(self, entry_points):
        entry_points(('acc-a', 'Driver'), ('acc-opt', 'WithOptions'))
        entry_points(('acc-p', 'Plugin'), namespace=loader.PLUGINS)
        found = {
            i.name: [o.name for o in i.options] for i in loader.importable()
        }
        assert found == {'acc-a': [], 'acc-opt': ['speed'], 'acc-p': []}

    def test_a_broken_one_is_left_out(self, entry_points):
        entry_points(('acc-a', 'Driver'), ('broken', 'no_such_module:X'))
        assert [i.name for i in loader.importable()] == ['acc-a']

    def test_one_of_a_wrong_class_is_left_out(self, entry_points):
        entry_points(('acc-opt', 'WithOptions'), ('broken', 'NoDriver'))
        assert [i.name for i in loader.importable()] == ['acc-opt']
        groups = [group for group, _ in loader.list_opts()]
        assert groups == [
            'os_acc',
            'os_acc_bitstreams',
            'os_acc_placement',
            'os_acc_acc-opt',
        ]

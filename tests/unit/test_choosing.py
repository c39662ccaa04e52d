# SPDX-License-Identifier: Apache-2.0

"""One device that has failed or cannot be read does not stop the others."""

from __future__ import annotations

import errno
import os

import devices
import pytest
import vendor
import vgpu_card

import os_acc
from os_acc import exception
from os_acc import loader
from os_acc import objects
from os_acc.drivers import choosing
from os_acc.kernel import mdev_types
from os_acc.kernel import sysfs
from os_acc.kernel import vgpu_cards
from os_acc.kinds.vgpu import rules as vgpu_rules

FIRST, SECOND = '0000:2b:00.0', '0000:3b:00.0'


@pytest.fixture
def broken(monkeypatch):
    """Files that cannot be read, or that have nonsense in them, by name."""
    files: dict[str, object] = {}
    real = sysfs.read

    def read(path):
        for name, answer in files.items():
            if path.endswith(name):
                if isinstance(answer, int):
                    raise OSError(answer, os.strerror(answer), path)
                return answer
        return real(path)

    monkeypatch.setattr(sysfs, 'read', read)
    return files


@pytest.fixture
def cards(kernel):
    """Two whole cards."""
    for address in (FIRST, SECOND):
        kernel.add_function(address, '10de:1b38', 0x030200, 'nvidia')
    devices.spec({'vendor_id': '10de', 'resource_class': 'CUSTOM_V'})
    os_acc.initialize()


def mdev_cards(kernel, tmp_path, monkeypatch):
    for address in (FIRST, SECOND):
        path = kernel.add_function(address, '10de:1b38', 0x030200, 'nvidia')
        kernel.add_mdev_parent(path, {'nvidia-47': 2}, 24)
    entry = {'vendor_id': '10de', 'mdev_types': ['nvidia-47']}
    devices.spec({**entry, 'resource_class': 'CUSTOM_V'})


def with_vgpus(kernel, tmp_path, monkeypatch):
    monkeypatch.setattr(vgpu_cards, 'PATH', str(tmp_path / 'none.xml'))
    for address in (FIRST, SECOND):
        vgpu_card.Card(kernel, address, {558: ('A40-1Q', 1)}, size=2, vfs=2)
    entry = {'vendor_id': '10de', 'vgpu_type': 'A40-1Q'}
    devices.spec({**entry, 'resource_class': 'CUSTOM_V'})


def plug(resource_class='CUSTOM_V'):
    request = devices.wanted(resource_class)
    (van,) = os_acc.plug(devices.instance(), [request])
    return van


def listed():
    return {each.address: each for each in os_acc.get_devices()}


@pytest.mark.parametrize(
    ('make', 'name'),
    [
        (mdev_cards, f'{FIRST}/mdev_supported_types/nvidia-47/name'),
        (mdev_cards, f'{FIRST}/mdev_supported_types/nvidia-47/description'),
        (
            mdev_cards,
            f'{FIRST}/mdev_supported_types/nvidia-47/available_instances',
        ),
        (with_vgpus, '0000:2b:00.4/nvidia/current_vgpu_type'),
        (with_vgpus, '0000:2b:00.4/nvidia/creatable_vgpu_types'),
        (with_vgpus, f'{FIRST}/aer_dev_fatal'),
    ],
)
def test_a_file_of_one_card_cannot_be_read(
    kernel, tmp_path, monkeypatch, broken, make, name
):
    make(kernel, tmp_path, monkeypatch)
    os_acc.initialize()
    broken[name] = errno.EIO
    there = listed()
    assert there[FIRST].health == 'unhealthy'
    assert name.rpartition('/')[2] in there[FIRST].health_reason
    assert os.strerror(errno.EIO) in there[FIRST].health_reason
    assert there[FIRST].handles_free == 0
    assert there[SECOND].health == 'ok'
    assert plug().device == SECOND


@pytest.mark.parametrize(
    ('name', 'answer'),
    [
        ('modalias', errno.EIO),
        ('modalias', 'nonsense'),
        ('numa_node', 'nonsense'),
        ('aer_dev_fatal', errno.EACCES),
    ],
)
def test_a_whole_card_cannot_be_read(cards, broken, name, answer):
    broken[f'{FIRST}/{name}'] = answer
    there = listed()
    assert there[FIRST].health == 'unhealthy'
    assert there[FIRST].handles_free == 0
    assert there[SECOND].health == 'ok'
    assert plug().device in there


def test_what_a_failed_card_has_given_out_stays_listed(cards, broken):
    van = plug()
    broken[f'{van.device}/numa_node'] = 'nonsense'
    (handle,) = listed()[van.device].handles
    assert (handle.state, handle.holder) == ('used', van.uuid)


def test_a_card_that_cannot_be_bound_is_left_as_it_was(cards, kernel):
    before = kernel.snapshot()[FIRST]
    kernel.fail(f'*/{FIRST}/driver_override', errno.EIO)
    assert plug().device == SECOND
    assert kernel.snapshot()[FIRST] == before


def test_no_card_is_left_and_each_reason_is_told(cards, kernel, broken):
    plug()
    broken[f'{SECOND}/modalias'] = errno.EIO
    with pytest.raises(exception.PlugException) as caught:
        plug()
    assert isinstance(caught.value.__cause__, exception.DeviceNotFound)
    assert f'{SECOND}/modalias cannot be read' in str(caught.value)
    assert '(EIO)' in str(caught.value)


def test_a_bitstream_that_fails_is_tried_on_one_card_only(kernel, tmp_path):
    tool = vendor.installed(kernel, tmp_path / 'vendor')
    other = '0000:1a:00.0'
    kernel.add_function(other, '8086:09c4', 0x120000, 'dfl-pci')
    one = {k: v for k, v in tool.spec().items() if k != 'num_vfs'}
    devices.spec(one, {**one, 'address': other})
    os_acc.initialize()
    tool.mode('fail')
    request = devices.wanted('FPGA')
    request.bitstream = tool.bitstream('aes')
    with pytest.raises(exception.PlugException):
        os_acc.plug(devices.instance(), [request])
    assert len(tool.calls()) == 1


class TestChoose:
    """The rule, on a driver whose devices fail as they are told."""

    def choose(self, errors, undo=lambda: None):
        van = objects.VAN(uuid=devices.wanted('X').uuid)
        tried = []

        def take(name):
            tried.append(name)
            if errors[name] is not None:
                raise errors[name]

        choosing.choose(
            van,
            devices.wanted('CUSTOM_X'),
            errors,
            lambda name: [name],
            take,
            undo,
            'there is none',
        )
        return tried

    @pytest.mark.parametrize(
        'err',
        [
            exception.DeviceBusy(device='a', reason='it is'),
            exception.DeviceUnhealthy(device='a', reason='it is'),
            exception.CleaningFailed(device='a', reason='it is'),
            exception.DeviceInUseByHost(device='a', by='it'),
            exception.DeviceNotFound(wanted='a', reason='gone'),
            exception.LockTimeout(seconds=1.0, what='a'),
            OSError(errno.EIO, 'I/O error', '/sys/a'),
            PermissionError(errno.EACCES, 'no', '/sys/a'),
            ValueError('invalid literal'),
        ],
        ids=lambda err: type(err).__name__,
    )
    def test_goes_on(self, err):
        assert self.choose({'a': err, 'b': None}) == ['a', 'b']

    @pytest.mark.parametrize(
        'err',
        [
            exception.InvalidRequest(
                subject='a', field='b', value='c', expected='d'
            ),
            exception.JournalError(path='p', reason='broken'),
            exception.JournalBusy(path='p', seconds=1.0),
            exception.PrivilegeError(reason='no daemon'),
            exception.BitstreamError(bitstream='b', reason='bad'),
            OSError(errno.EMFILE, 'too many files'),
            TypeError('a fault of the driver'),
        ],
        ids=lambda err: type(err).__name__,
    )
    def test_ends(self, err):
        with pytest.raises(type(err)):
            self.choose({'a': err, 'b': None})

    def test_waits_for_two_devices_at_most(self):
        late = {n: exception.Timeout(seconds=60.0, what=n) for n in 'abc'}
        with pytest.raises(exception.Timeout, match='for b'):
            self.choose(late)

    def test_says_first_what_can_be_mended(self):
        errors = {
            'a': exception.DeviceBusy(device='a', reason='in use'),
            'b': OSError(errno.EIO, 'I/O error', '/sys/b'),
        }
        with pytest.raises(exception.DeviceNotFound) as caught:
            self.choose(errors)
        text = str(caught.value)
        assert text.index('/sys/b cannot be read') < text.index('a is busy')


class TestVFsBelowABridge:
    """Each plug would make VFs, refuse them, and remove them."""

    @pytest.fixture
    def pf(self, kernel):
        kernel.add_function(
            devices.PF, '8086:4940', 0x0B4000, 'qat', group=7, totalvfs=4
        )
        devices.spec(
            {
                'address': devices.PF,
                'num_vfs': 4,
                'resource_class': 'CUSTOM_V',
            }
        )
        os_acc.initialize()
        return devices.PF

    def free(self, address):
        return listed()[address].handles_free

    def test_with_a_bridge_in_the_group_none_is_free(self, kernel, pf):
        kernel.add_function(devices.BRIDGE, '8086:2030', 0x060400, group=7)
        assert self.free(pf) == 0
        before = kernel.snapshot()
        with pytest.raises(exception.PlugException, match='ACS'):
            plug()
        assert kernel.snapshot() == before

    def test_with_a_switch_in_the_group_none_is_free(self, kernel, pf):
        kernel.add_function(
            devices.BRIDGE,
            '10b5:8747',
            0x068000,
            group=7,
            files={'secondary_bus_number': '1\n'},
        )
        assert self.free(pf) == 0

    def test_beside_other_functions_of_its_card_all_are_free(self, kernel, pf):
        kernel.add_function('0000:01:01.0', '8086:4941', 0x0B4000, group=7)
        assert self.free(pf) == 4
        assert plug().device == pf

    def test_with_a_bridge_in_another_group_all_are_free(self, kernel, pf):
        kernel.add_function(devices.BRIDGE, '8086:2030', 0x060400)
        assert self.free(pf) == 4


def configured(*names):
    os_acc.CONF.set_override('drivers', list(names), 'os_acc')


class TestNotLoaded:
    """The devices of a driver that is not loaded are not gone."""

    def failed(self):
        with pytest.raises(exception.DiscoveryFailed) as caught:
            os_acc.get_devices()
        return str(caught.value)

    def test_one_that_fails_to_import(self, host):
        host.errors['driver acme'] = 'ModuleNotFoundError: acme_sdk'
        text = self.failed()
        assert "'acme' is not loaded" in text
        assert 'acme_sdk' in text

    def test_another_that_fails_if_drivers_are_configured(self, host):
        host.errors['driver acme'] = 'ModuleNotFoundError: acme_sdk'
        configured('recording')
        assert os_acc.get_devices()

    def test_one_that_is_configured_and_not_installed(self, host):
        configured('recording', 'acme')
        assert "'acme' is not loaded" in self.failed()

    def test_one_that_has_vans_is_removed(self, host):
        request = objects.AcceleratorRequest(
            uuid=devices.wanted('X').uuid,
            handle=objects.TestHandle(name='t'),
        )
        os_acc.plug(devices.instance(), [request])
        (name,) = host.drivers
        configured('other')
        host.drivers['other'] = host.drivers[name]
        del host.drivers[name]
        assert f'{name!r} is not loaded' in self.failed()

    def test_a_plugin_does_not_count(self, host):
        host.errors['plugin acme'] = 'ModuleNotFoundError: acme_sdk'
        assert os_acc.get_devices()

    def test_a_request_that_nobody_claims_names_it(self, host):
        host.errors['driver acme'] = 'ModuleNotFoundError: acme_sdk'
        host.driver.can_handle = lambda request: False
        with pytest.raises(exception.NoMatchingDriver, match='acme_sdk'):
            os_acc.plug(devices.instance(), [devices.wanted('CUSTOM_X')])

    def test_optional_and_not_installed(self):
        """A driver that says itself that it is not for this host."""
        errors = {'driver acme': 'it needs the package acme_sdk'}
        loaded = loader.Extensions({}, {}, errors, frozenset({'acme'}))
        assert loaded.lacking((), ()) == {}
        assert 'acme_sdk' in loaded.lacking((), {'acme'})['acme']
        assert 'acme_sdk' in loaded.lacking(['acme'], ())['acme']


def test_the_doctor_goes_on_after_a_device_that_vanishes(
    kernel, tmp_path, monkeypatch
):
    mdev_cards(kernel, tmp_path, monkeypatch)
    os_acc.initialize()
    real = mdev_types.types

    def types(parent):
        if parent == FIRST:
            raise exception.DeviceNotFound(wanted=parent, reason='it is gone')
        return real(parent)

    monkeypatch.setattr(mdev_types, 'types', types)
    driver = os_acc._host.extensions.drivers['mdev']
    first, second = driver.diagnose()
    assert 'it is gone' in first.text
    assert (second.subject, second.verdict) == (f'mdev parent {SECOND}', 'ok')


def test_the_doctor_goes_on_after_a_vf_that_vanishes(
    kernel, tmp_path, monkeypatch
):
    with_vgpus(kernel, tmp_path, monkeypatch)
    os_acc.initialize()

    def obstacles(vf, *args, **values):
        raise exception.DeviceNotFound(wanted=vf.address, reason='it is gone')

    monkeypatch.setattr(vgpu_rules, 'vgpu_obstacles', obstacles)
    driver = os_acc._host.extensions.drivers['nvidia_vgpu']
    gone = [each for each in driver.diagnose() if 'gone' in each.text]
    assert len(gone) == 4

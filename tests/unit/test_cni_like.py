# SPDX-License-Identifier: Apache-2.0

"""os-acc cni-like: answers, errors by code, and repeated calls."""

from __future__ import annotations

import io
import json

import hypothesis
from hypothesis import strategies
import pytest
import standalone
from standalone import PCI

from os_acc import exception
from os_acc import journal
from os_acc.cli import cni
from os_acc.cli import cni_config
from os_acc.kinds.fake.driver.driver import FakeDriver
from os_acc.state import instance_names

CONFIGURATION = {
    'cniVersion': '1.1.0',
    'name': 'accelerators',
    'type': 'os-acc',
    'resourceClass': PCI,
}


@pytest.fixture
def run(clean, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv('CNI_CONTAINERID', 'c1')
    monkeypatch.setenv('CNI_IFNAME', 'acc0')
    monkeypatch.delenv('CNI_COMMAND', raising=False)
    return standalone.make(tmp_path, capsys, monkeypatch)


def call(run, action, text=None, **fields):
    """:returns: the answer; None: there was none, which is a success"""
    if text is None:
        text = json.dumps({**CONFIGURATION, **fields})
    result = run('cni-like', action, stdin=text)
    assert result.code == 0, result
    return result.json if result.out else None


def fails(run, action, code, text=None, **fields):
    """:returns: the details of the error"""
    if text is None:
        text = json.dumps({**CONFIGURATION, **fields})
    result = run('cni-like', action, stdin=text)
    assert result.code == 1, result
    error = result.json
    assert set(error) == {'cniVersion', 'code', 'msg', 'details'}
    assert error['code'] == code, error
    assert error['msg'] == cni_config.MESSAGES[code]
    assert error['cniVersion'] in cni_config.VERSIONS
    return error['details']


# --- what succeeds


def test_add_and_del_twice(run):
    first = call(run, 'add', count=2)
    uuid = instance_names.attachment_uuid('accelerators', 'c1', 'acc0')
    vans = [instance_names.request_uuid(uuid, each) for each in range(2)]
    assert first['cniVersion'] == '1.1.0'
    assert first['interfaces'] == []
    assert first['cdiDevices'] == [
        f'example.org/accelerator={van}' for van in vans
    ]
    assert [van['uuid'] for van in first['devices']] == vans
    assert call(run, 'add', count=2) == first
    assert call(run, 'check', count=2) is None
    (name,) = {van['instance_name'] for van in run.vans()}
    assert name == 'accelerators/c1/acc0'
    assert call(run, 'del', count=2) is None
    assert call(run, 'del', count=2) is None
    assert run.handles() == []


def test_del_leaves_the_others_alone(run, monkeypatch):
    call(run, 'add')
    monkeypatch.setenv('CNI_IFNAME', 'acc1')
    call(run, 'add')
    name = 'accelerators/c1/acc0'
    arguments = ('--resource-class', PCI, '--json')
    run.fine('plug', name, *arguments)
    call(run, 'del')
    left = run.vans()
    assert len(left) == 2
    monkeypatch.setenv('CNI_IFNAME', 'acc0')
    call(run, 'del')
    (left,) = run.vans()
    assert left['instance_uuid'] == instance_names.instance_uuid(name)


def test_del_needs_only_the_attachment(run):
    call(run, 'add')
    text = json.dumps(
        {
            'cniVersion': '0.4.0',
            'name': 'accelerators',
            'type': 'os-acc',
            'unknown': 1,
            'count': 'many',
            'prevResult': 7,
        }
    )
    assert call(run, 'del', text) is None
    assert run.handles() == []


def test_what_an_earlier_plugin_has_answered(run):
    earlier = {
        'cniVersion': '1.0.0',
        'interfaces': [{'name': 'eth0'}],
        'cdiDevices': ['a/b=c'],
    }
    answer = call(run, 'add', prevResult=earlier)
    assert answer['cniVersion'] == '1.1.0'
    assert answer['interfaces'] == [{'name': 'eth0'}]
    assert answer['cdiDevices'][0] == 'a/b=c'
    assert len(answer['cdiDevices']) == 2
    assert call(run, 'check', prevResult=answer) is None
    details = fails(run, 'check', 102, prevResult=earlier)
    assert 'prevResult lacks the device' in details


def test_what_the_runtime_adds_is_no_error(run):
    call(
        run,
        'add',
        args={'cni': {}},
        runtimeConfig={},
        capabilities={},
        **{'cni.dev/attachments': []},
    )


@pytest.mark.parametrize('version', cni_config.VERSIONS)
def test_the_versions(run, version):
    assert call(run, 'add', cniVersion=version)['cniVersion'] == version
    assert call(run, 'version', cniVersion=version) == {
        'cniVersion': version,
        'supportedVersions': list(cni_config.VERSIONS),
    }


def test_all_fields(run):
    run.configure(devices='fpga0:pci:2:single')
    answer = call(
        run,
        'add',
        traits=['CUSTOM_FAKE_DEVICE'],
        function='aes',
        driver='fake',
        plugin='noop',
        wait=1,
    )
    assert answer['cdiDevices'] == []
    assert answer['devices'][0]['function_id'] == 'aes'


def test_the_command_of_the_environment(run, monkeypatch):
    monkeypatch.setenv('CNI_COMMAND', 'ADD')
    call(run, 'add')
    assert 'CNI_COMMAND' in fails(run, 'del', 4)


@pytest.mark.parametrize('version', ['0.1.0', '0.2.0', '2.0.0'])
def test_a_question_for_the_versions_in_any_version(run, version):
    """The answer has the version of the question."""
    answer = call(run, 'version', json.dumps({'cniVersion': version}))
    assert answer['cniVersion'] == version
    assert answer['supportedVersions'][-1] == '1.1.0'


# --- gc


VALID = 'cni.dev/valid-attachments'


@pytest.fixture
def add(run, monkeypatch):
    """Add an attachment."""

    def add(container, interface='acc0', **fields):
        monkeypatch.setenv('CNI_CONTAINERID', container)
        monkeypatch.setenv('CNI_IFNAME', interface)
        call(run, 'add', **fields)
        # The runtime sets neither for gc.
        monkeypatch.delenv('CNI_CONTAINERID')
        monkeypatch.delenv('CNI_IFNAME')

    run.configure(devices='nic0:pci:8')
    return add


def names(run):
    return {van['instance_name'] for van in run.vans()}


def valid(*pairs):
    return [{'containerID': c, 'ifname': i} for c, i in pairs]


def test_gc_releases_what_is_not_valid_any_more(run, add):
    add('c1')
    add('c1', 'acc1')
    add('c2', count=2)
    call(run, 'gc', **{VALID: valid(('c1', 'acc0'), ('c9', 'acc0'))})
    assert names(run) == {'accelerators/c1/acc0'}
    call(run, 'gc', **{VALID: valid(('c1', 'acc0'))})
    assert names(run) == {'accelerators/c1/acc0'}
    call(run, 'gc', **{VALID: []})
    assert run.handles() == []
    assert call(run, 'gc', **{VALID: []}) is None


def test_gc_touches_only_its_network(run, add):
    """Not another network, nor an instance of a plug with such a name."""
    add('c1')
    add('c1', name='others')
    name = 'accelerators/c7/acc0'
    run.fine('plug', name, '--resource-class', PCI, '--json')
    call(run, 'gc', **{VALID: []})
    assert names(run) == {'others/c1/acc0', name}


@pytest.mark.parametrize(
    'fields',
    [
        {},
        {VALID: {}},
        {VALID: 'c1'},
        {VALID: ['c1']},
        {VALID: [{'containerID': 'c1'}]},
        {VALID: [{'containerID': 'c1', 'ifname': 7}]},
        {VALID: [{'containerID': '', 'ifname': 'acc0'}]},
    ],
)
def test_gc_of_a_list_that_is_wrong_releases_nothing(run, add, fields):
    add('c1')
    assert 'cni.dev/valid-attachments' in fails(run, 'gc', 7, **fields)
    assert names(run) == {'accelerators/c1/acc0'}


def test_gc_of_a_list_that_libcni_writes(run, add):
    """It writes null if there is none; old releases use another name."""
    add('c1')
    add('c2')
    call(run, 'gc', **{'cni.dev/attachments': valid(('c1', 'acc0'))})
    assert names(run) == {'accelerators/c1/acc0'}
    both = {VALID: None, 'cni.dev/attachments': valid(('c1', 'acc0'))}
    call(run, 'gc', **both)
    assert run.handles() == []


def test_gc_releases_as_many_as_possible(run, add, monkeypatch):
    """A device that is open stays, the others go; a later gc takes it."""
    add('c1')
    add('c2')
    add('c3')
    undo = FakeDriver.unprepareVAN

    def busy(driver, van, info):
        if info.name == 'accelerators/c2/acc0':
            raise exception.DeviceBusy(device='d', holder='process 7')
        undo(driver, van, info)

    with monkeypatch.context() as patch:
        patch.setattr(FakeDriver, 'unprepareVAN', busy)
        details = fails(run, 'gc', 11, **{VALID: []})
    assert 'accelerators/c2/acc0' in details
    assert 'process 7' in details
    assert names(run) == {'accelerators/c2/acc0'}
    call(run, 'gc', **{VALID: []})
    assert run.handles() == []


def test_gc_needs_no_more_than_the_list(run, add):
    add('c1')
    text = {'cniVersion': '1.1.0', 'name': 'accelerators', 'type': 'os-acc'}
    call(run, 'gc', json.dumps({**text, 'unknown': 1, VALID: []}))
    assert run.handles() == []


# --- status


def test_status(run):
    assert call(run, 'status') is None
    assert call(run, 'status', driver='fake') is None
    call(run, 'add', count=2)
    assert call(run, 'status') is None
    assert '1 of 2 devices are available' in fails(run, 'status', 50, count=2)
    fails(run, 'status', 50, traits=['CUSTOM_A'])
    fails(run, 'status', 50, driver='pci')
    assert "'nope'" in fails(run, 'status', 50, plugin='nope')


def test_status_where_a_driver_fails(run):
    run.configure(fail='get_devices')
    assert '0 of 1 devices' in fails(run, 'status', 50)


def test_status_of_a_device_that_others_use_with_another_function(run):
    """A handle is free, but add would fail."""
    run.configure(devices='fpga0:pci:2:single')
    call(run, 'add', function='aes')
    assert call(run, 'status', function='aes') is None
    details = fails(run, 'status', 50, function='sha')
    assert 'programmed with aes' in details


def test_status_without_a_configuration(run):
    run.path.unlink()
    fails(run, 'status', 50)


def test_status_without_a_journal(run, monkeypatch):
    def fail():
        raise exception.JournalError(path='p', reason='it is damaged')

    monkeypatch.setattr(cni.base, 'look', fail)
    assert 'damaged' in fails(run, 'status', 51)


# --- errors


@pytest.mark.parametrize(
    ('action', 'version'),
    [
        ('add', '0.2.0'),
        ('add', '2.0.0'),
        ('del', '9.9.9'),
        ('check', '0.3.1'),
        ('status', '1.0.0'),
        ('gc', '1.0.0'),
    ],
)
def test_a_version_that_is_not_supported(run, action, version):
    assert version in fails(run, action, 1, cniVersion=version)


def test_no_version(run):
    fails(run, 'add', 1, '{"name": "n", "type": "t"}')


def test_a_field_that_is_not_supported(run):
    details = fails(run, 'add', 2, ipam={'type': 'host-local'})
    # The specification asks for key and value.
    assert 'ipam' in details
    assert 'host-local' in details


def test_check_of_what_was_never_added(run):
    assert 'accelerators/c1/acc0' in fails(run, 'check', 3)
    call(run, 'add')
    call(run, 'del')
    fails(run, 'check', 3)


@pytest.mark.parametrize('action', ['add', 'del', 'check'])
@pytest.mark.parametrize(
    ('name', 'value'),
    [
        ('CNI_CONTAINERID', None),
        ('CNI_CONTAINERID', ''),
        ('CNI_CONTAINERID', '-a'),
        ('CNI_CONTAINERID', 'a/b'),
        ('CNI_CONTAINERID', 'a\n'),
        ('CNI_CONTAINERID', 'a' * 256),
        ('CNI_IFNAME', None),
        ('CNI_IFNAME', 'a' * 16),
        ('CNI_IFNAME', '..'),
        ('CNI_IFNAME', 'a:b'),
        ('CNI_IFNAME', 'a b'),
        ('CNI_IFNAME', 'a\x7f'),
    ],
)
def test_the_environment(run, monkeypatch, action, name, value):
    if value is None:
        monkeypatch.delenv(name)
    else:
        monkeypatch.setenv(name, value)
    assert name in fails(run, action, 4)


def test_wrong_arguments(run):
    for arguments in ((), ('nonsense',), ('add', 'more')):
        result = run('cni-like', *arguments)
        assert result.code == 1
        assert result.json['code'] == 4


def test_input_that_cannot_be_read(monkeypatch):
    class Broken(io.BytesIO):
        def read(self, size):
            raise OSError(5, 'Input/output error')

    with pytest.raises(cni_config.CNIError) as caught:
        cni_config.decode(Broken())
    assert caught.value.code == 5


@pytest.mark.parametrize(
    'text',
    [
        '',
        '{',
        '[]',
        '7',
        '[' * 100_000,
        json.dumps({**CONFIGURATION, 'cniVersion': 1}),
        json.dumps({**CONFIGURATION, 'cniVersion': 'new'}),
        json.dumps({**CONFIGURATION, 'name': 'x' * (1 << 20)}),
    ],
)
def test_input_that_cannot_be_decoded(run, text):
    fails(run, 'add', 6, text)


def test_input_that_is_no_text():
    with pytest.raises(cni_config.CNIError) as caught:
        cni_config.decode(io.BytesIO(b'"\xff"'))
    assert caught.value.code == 6


@pytest.mark.parametrize(
    'fields',
    [
        {'name': ''},
        {'name': '/'},
        {'name': 'a' * 256},
        {'name': None},
        {'type': ''},
        {'type': 'a/b'},
        {'type': 7},
        {'resourceClass': ''},
        {'resourceClass': 'lower'},
        {'resourceClass': 'NOBODY_HAS_IT'},
        {'traits': 'X'},
        {'traits': ['']},
        {'traits': ['lower']},
        {'count': 0},
        {'count': True},
        {'count': 257},
        {'function': ''},
        {'wait': -1},
        {'wait': 10**400},
        {'wait': '1'},
        {'driver': 'nobody'},
        {'prevResult': [1]},
        {'prevResult': {'cdiDevices': 'x'}},
    ],
)
def test_a_configuration_that_is_invalid(run, fields):
    fails(run, 'add', 7, **fields)
    assert run.handles() == []


def test_no_resource_class(run):
    text = json.dumps(
        {'cniVersion': '1.1.0', 'name': 'n', 'type': 'os-acc', 'count': 1}
    )
    assert 'resourceClass' in fails(run, 'add', 7, text)


def test_add_with_another_configuration(run):
    call(run, 'add', count=2)
    assert 'at least 2, as many as it has' in fails(run, 'add', 7)
    fails(run, 'add', 7, count=2, traits=['CUSTOM_A'])
    assert '2 devices, and 1' in fails(run, 'check', 102)
    fails(run, 'check', 7, count=2, traits=['CUSTOM_A'])


def test_no_device_is_free(run):
    assert 'no fake device' in fails(run, 'add', 11, count=4)
    assert run.handles() == []


def test_plug_and_unplug_that_fail(run):
    run.configure(fail='postplug')
    fails(run, 'add', 100)
    run.configure(fail='unprepareVAN')
    call(run, 'add')
    fails(run, 'del', 101)
    assert 'its state is error' in fails(run, 'check', 102)
    run.configure()
    call(run, 'del')


def test_a_device_that_is_still_in_use(run, monkeypatch):
    call(run, 'add')

    def busy(*args):
        raise exception.DeviceBusy(device='d', holder='process 7')

    with monkeypatch.context() as patch:
        patch.setattr(FakeDriver, 'unprepareVAN', busy)
        assert 'process 7' in fails(run, 'del', 11)
    call(run, 'del')


def test_a_plugin_that_is_not_there(run):
    fails(run, 'add', 103, plugin='nope')


@pytest.mark.parametrize('action', ['add', 'del', 'check'])
def test_a_configuration_file_that_is_missing_or_broken(run, action):
    run.path.write_text('nonsense')
    fails(run, action, 103)
    run.path.unlink()
    assert str(run.path) in fails(run, action, 103)


def test_a_fault_of_os_acc(run, monkeypatch):
    def fail(*args):
        raise RuntimeError('a fault\nof os-acc')

    monkeypatch.setattr(cni.selectors, 'check_count', fail)
    details = fails(run, 'add', 199)
    assert details == 'RuntimeError: a fault of os-acc'
    text = json.dumps(CONFIGURATION)
    assert 'Traceback' in run('--debug', 'cni-like', 'add', stdin=text).err


# --- check


def test_check_of_what_is_half_done(run):
    call(run, 'add')
    opened = journal.Journal(str(run.state_path), 5)
    opened.mark(opened.entries(), 'unplugging')
    opened.close()
    assert 'its state is unplugging' in fails(run, 'check', 102)
    # It changes nothing.
    assert [van['state'] for van in run.vans()] == ['unplugging']
    call(run, 'add')
    call(run, 'check')


def test_check_of_a_device_that_is_lost(run, monkeypatch):
    call(run, 'add')
    (path,) = (run.path.parent / 'state/fake-hardware').glob('handle-*')
    text = path.read_text()
    path.unlink()
    assert 'is lost' in fails(run, 'check', 102)
    path.write_text(text)
    call(run, 'check')
    monkeypatch.setattr(standalone.CDIPlugin, 'intact', False)
    assert 'is lost' in fails(run, 'check', 102)

    def fail(*args):
        raise exception.DeviceError(device='d', reason='it does not answer')

    monkeypatch.setattr(FakeDriver, 'is_intact', fail)
    assert 'does not answer' in fails(run, 'check', 102)


def test_check_of_a_row_that_cannot_be_read(run, monkeypatch):
    call(run, 'add')
    opened = journal.Journal(str(run.state_path), 5)
    import sqlite3

    with sqlite3.connect(opened.path) as db:
        db.execute("UPDATE van SET van = '{'")
    opened.close()
    assert 'cannot be read' in fails(run, 'check', 102)


# --- any input


_SCALARS = (
    strategies.none()
    | strategies.booleans()
    | strategies.integers()
    | strategies.floats()
    | strategies.text(max_size=5)
)
_VALUES = (
    _SCALARS
    | strategies.lists(_SCALARS, max_size=3)
    | strategies.dictionaries(
        strategies.text(max_size=5), _SCALARS, max_size=2
    )
)
# A configuration that is right but for a few fields.
_NEARLY_RIGHT = strategies.dictionaries(
    strategies.sampled_from(
        [*CONFIGURATION, 'count', 'prevResult', 'traits', 'wait', 'x']
    ),
    _VALUES,
    max_size=3,
).map(lambda fields: {**CONFIGURATION, **fields})


@hypothesis.given(_NEARLY_RIGHT | _VALUES)
def test_any_json_is_read_or_refused(value):
    codes = set(cni_config.MESSAGES)
    try:
        stream = io.BytesIO(json.dumps(value).encode())
        found = cni_config.check(cni_config.decode(stream), 'add')
        found.wanted().requests(cni_config.Attachment('n', 'c', 'i').info.uuid)
    except cni_config.CNIError as err:
        assert err.code in codes
    except exception.InvalidRequest:
        pass

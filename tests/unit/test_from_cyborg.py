# SPDX-License-Identifier: Apache-2.0

"""os-acc plug --from-cyborg, and the library call behind it."""

from __future__ import annotations

import copy
import json
import os
import pathlib
import signal
import time

import cloud_double
import command
import pytest

import os_acc
from os_acc import exception
from os_acc import journal
from os_acc import progress
from os_acc.cyborg import api as api_module
from os_acc.cyborg import connections
from os_acc.cyborg import requests
from os_acc.placement import client

INSTANCE = 'ac407c84-63e6-412c-91a9-6bf933a420ad'
OTHER = 'b5a2c9a4-7b1c-4e70-8a4e-30a4c1a3a7f1'
DATA = pathlib.Path(__file__).parent.parent / 'data'
PATH = '/accelerator/v2/accelerator_requests'


@pytest.fixture
def cloud(clean, tmp_path, monkeypatch):
    for name in [n for n in os.environ if n.startswith('OS_')]:
        monkeypatch.delenv(name)
    with cloud_double.serving() as server:
        file = server.clouds_yaml(tmp_path)
        monkeypatch.setenv('OS_CLIENT_CONFIG_FILE', str(file))
        yield server


@pytest.fixture
def api(cloud):
    adapter = connections.by_cloud(connections.ACCELERATOR, cloud_double.CLOUD)
    return api_module.API(adapter)


@pytest.fixture
def run(cloud, tmp_path, capsys, monkeypatch):
    os_acc.CONF.set_override('host', 'vm', 'os_acc')
    monkeypatch.setattr(requests, '_PAUSE', 0.01)
    return command.Command(tmp_path / 'state', capsys, monkeypatch)


def plug(*arguments):
    return (
        *('plug', INSTANCE, '--from-cyborg'),
        *('--os-cloud', cloud_double.CLOUD, '-f', 'json', *arguments),
    )


def bound(**values):
    return cloud_double.arq(instance_uuid=INSTANCE, **values)


# --- the API


def test_the_api_lists(cloud, api):
    mine, other = bound(), cloud_double.arq()
    cloud.arqs = [mine, other]
    assert api.arqs() == [mine, other]
    assert api.arqs(INSTANCE) == [mine]
    assert api.arq(mine['uuid']) == mine
    assert api.arq(OTHER) is None
    assert api.profile_groups('crypto') == [{}]
    with pytest.raises(exception.RemoteServiceError, match="'zip'"):
        api.profile_groups('zip')
    cloud.deployables = [{'name': 'vm_gpu0'}]
    assert api.deployables() == [{'name': 'vm_gpu0'}]


def test_an_api_that_ignores_the_instance(cloud, api, monkeypatch):
    mine = bound()
    cloud.arqs = [mine, cloud_double.arq()]
    monkeypatch.setattr(
        cloud_double.urllib.parse, 'parse_qsl', lambda query: []
    )
    assert api.arqs(INSTANCE) == [mine]


def test_a_handle_that_is_gone(cloud, api):
    mine, broken = bound(), bound()
    cloud.arqs = [mine, broken]
    cloud.broken = broken['uuid']
    with pytest.raises(api_module.BoundHandleGone, match='id 7') as caught:
        api.arqs()
    assert caught.value.handle_id == '7'
    assert api.arq(mine['uuid']) == mine
    with pytest.raises(api_module.BoundHandleGone):
        api.arq(broken['uuid'])


@pytest.mark.parametrize('status', [401, 403, 404, 500, 503])
def test_an_api_that_fails(cloud, api, status):
    cloud.failures[PATH] = status
    with pytest.raises(exception.RemoteServiceError) as caught:
        api.arqs()
    assert not isinstance(caught.value, api_module.BoundHandleGone)
    assert str(status) in str(caught.value)


@pytest.mark.parametrize(
    'answer',
    [
        b'',
        b'<html>',
        b'[]',
        b'{"arqs": 1}',
        b'{"arqs": [1]}',
        b'[' * 100_000,
    ],
)
def test_an_api_that_answers_nonsense(answer):
    class Answer:
        status_code = 200
        text = answer.decode()

        def json(self):
            return json.loads(answer)

    class Adapter:
        def get(self, *args, **kwargs):
            return Answer()

    with pytest.raises(exception.RemoteServiceError, match='the answer'):
        api_module.API(Adapter()).arqs()


@pytest.mark.parametrize('service', ['accelerator', 'placement'])
def test_a_service_that_never_answers(cloud, tmp_path, service):
    """The time limit is that of the cloud."""
    content = json.loads(cloud.clouds_yaml(tmp_path).read_text())
    content['clouds'][cloud_double.CLOUD]['api_timeout'] = 0.2
    (tmp_path / 'clouds.yaml').write_text(json.dumps(content))
    adapter = connections.by_cloud(service, cloud_double.CLOUD)
    cloud.hook = lambda path: time.sleep(20 * (f'/{service}/' in path))
    # Its late answer finds nobody. Nothing of that goes to standard error.
    cloud.handle_error = lambda *_: None
    before = time.monotonic()
    with pytest.raises(exception.RemoteServiceError, match='timed out'):
        if service == 'accelerator':
            api_module.API(adapter).arqs()
        else:
            client.Client(adapter).traits(OTHER)
    assert time.monotonic() - before < 15


def test_a_service_that_is_down(cloud, api):
    api.arqs()
    cloud.server_close()
    cloud.shutdown()
    with pytest.raises(exception.RemoteServiceError, match='accelerator'):
        api.arqs()


def test_no_cloud_is_named(clean, tmp_path, monkeypatch):
    for name in [n for n in os.environ if n.startswith('OS_')]:
        monkeypatch.delenv(name)
    monkeypatch.setenv('HOME', str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(exception.RemoteServiceError) as caught:
        connections.by_cloud('accelerator', None)
    assert 'auth_url' in str(caught.value)
    assert '--os-cloud or OS_CLOUD' in str(caught.value)
    with pytest.raises(exception.RemoteServiceError, match='Cloud nix'):
        connections.by_cloud('accelerator', 'nix')


def test_who_sees_all_arqs(cloud):
    for roles, expected in ((['admin', 'x'], True), (['member'], False)):
        cloud.roles = roles
        adapter = connections.by_cloud('accelerator', cloud_double.CLOUD)
        assert api_module.API(adapter).sees_all() is expected


def test_who_sees_all_arqs_without_keystone():
    from keystoneauth1 import adapter
    from keystoneauth1 import noauth
    from keystoneauth1 import session

    made = session.Session(auth=noauth.NoAuth(endpoint='http://127.0.0.1'))
    assert api_module.API(adapter.Adapter(made)).sees_all()


# --- requests.bound


def test_bound(cloud, api):
    cloud.arqs = [
        bound(device_profile_group_id=1),
        cloud_double.arq(),
        bound(address='0000:0c:00.2'),
    ]
    cloud.profiles['crypto'] = [
        {},
        {'accel:function_id': 'aes', 'accel:bitstream_id': 'image'},
    ]
    found = requests.bound(api, INSTANCE, 'vm')
    assert [r.uuid for r in found.requests] == [
        arq['uuid'] for arq in (cloud.arqs[0], cloud.arqs[2])
    ]
    assert [r.function_id for r in found.requests] == ['aes', None]
    assert [r.bitstream for r in found.requests] == ['image', None]
    assert found.project_id == cloud_double.PROJECT


@pytest.mark.parametrize(
    ('values', 'words'),
    [
        ({'hostname': 'node-9'}, ['hostname', 'node-9', "'vm'"]),
        ({'state': 'Initial'}, ['state', 'Initial', 'not bound yet']),
        ({'state': 'BindStarted'}, ['BindStarted', 'not finished']),
        ({'state': 'BindFailed'}, ['BindFailed', 'the logs of Cyborg']),
        ({'state': 'Unbound'}, ['Unbound', 'was unbound']),
        ({'state': 'UnbindFailed'}, ['UnbindFailed', 'unbind failed']),
        ({'state': 'Deleting'}, ['Deleting', 'being deleted']),
        ({'state': 'Newly'}, ['Newly', "'Bound'"]),
        ({'state': None}, ['state']),
        ({'device_profile_group_id': 3}, ['device_profile_group_id', '3']),
        ({'attach_handle_type': 'DISK'}, ['attach_handle_type', 'DISK']),
    ],
)
def test_an_arq_that_cannot_be_plugged(cloud, api, values, words):
    cloud.arqs = [bound(), bound(**values)]
    with pytest.raises(exception.InvalidRequest) as caught:
        requests.bound(api, INSTANCE, 'vm')
    for word in (cloud.arqs[1]['uuid'], *words):
        assert word in str(caught.value)


def test_no_arq_at_all(api, cloud):
    cloud.arqs = [cloud_double.arq()]
    for wait in (None, 0.0):
        with pytest.raises(exception.InvalidRequest, match=INSTANCE):
            requests.bound(api, INSTANCE, 'vm', wait)


def test_a_profile_that_is_gone(cloud, api):
    cloud.arqs = [bound()]
    del cloud.profiles['crypto']
    with pytest.raises(exception.RemoteServiceError, match='crypto'):
        requests.bound(api, INSTANCE, 'vm')


@pytest.mark.parametrize(
    ('groups', 'numbers', 'missing'),
    [
        ([{'resources:FPGA': '2'}], [0], '2 ARQs of group 0'),
        ([{'resources:FPGA': '1'}, {'resources:PGPU': '1'}], [0], 'group 1'),
        ([{'resources:FPGA': '2'}], [0, 0, 0], 'instead of 3'),
        ([{'resources:FPGA': '2'}], [0, 0, 0, 0], None),
        (
            [{'resources:FPGA': '1', 'trait:CUSTOM_FPGA_XILINX': 'required'}],
            [0],
            '2 ARQs',
        ),
        ([{'resources:FPGA': 'x'}], [0], None),
    ],
)
def test_all_arqs_of_the_profiles(cloud, api, groups, numbers, missing):
    cloud.profiles['crypto'] = groups
    cloud.arqs = [
        bound(device_profile_group_id=n, address=f'0000:0c:00.{i}')
        for i, n in enumerate(numbers)
    ]
    for wait in (None, 0.0):
        if missing is None:
            assert requests.bound(api, INSTANCE, 'vm', wait).requests
            continue
        with pytest.raises(exception.InvalidRequest, match=missing):
            requests.bound(api, INSTANCE, 'vm', wait)


class TestWait:
    @pytest.fixture(autouse=True)
    def fast(self, monkeypatch):
        monkeypatch.setattr(requests, '_PAUSE', 0.01)

    def test_until_all_are_bound(self, cloud, api):
        """No ARQ, then one that is being bound, then one of two, then all."""
        one, two = bound(), bound(address='0000:0c:00.2')
        starting = {**two, 'state': 'BindStarted', 'attach_handle_info': {}}
        steps = [[], [starting], [one, {**two, 'state': 'Initial'}]]
        events: list[progress.Progress] = []

        def hook(path):
            if path == PATH:
                cloud.arqs = steps.pop(0) if steps else [one, two]

        cloud.hook = hook
        found = requests.bound(api, INSTANCE, 'vm', 30, events.append)
        assert [r.uuid for r in found.requests] == [one['uuid'], two['uuid']]
        assert [(e.status, e.fraction) for e in events] == [
            ('started', None),
            ('running', 0.0),
            ('running', 0.0),
            ('running', 0.5),
            ('done', 1.0),
        ]
        assert {(e.step, e.instance_uuid) for e in events} == {
            ('bind', INSTANCE)
        }
        assert events[3].message == '1 of 2 ARQs are bound'

    def test_until_no_arq_of_a_profile_is_missing(self, cloud, api):
        """Cyborg binds the first before the others belong to anybody."""
        one, two = bound(), bound(address='0000:0c:00.2')
        cloud.profiles['crypto'] = [{'resources:FPGA': '2'}]
        steps = [[one], [one], [one, two]]

        def hook(path):
            if path == PATH and steps:
                cloud.arqs = steps.pop(0)

        cloud.hook = hook
        found = requests.bound(api, INSTANCE, 'vm', 30)
        assert [r.uuid for r in found.requests] == [one['uuid'], two['uuid']]

    def test_a_bind_that_fails_ends_the_wait(self, cloud, api):
        cloud.arqs = [bound(), bound(state='BindFailed')]
        with pytest.raises(exception.ARQNotBound, match='BindFailed'):
            requests.bound(api, INSTANCE, 'vm', 30)

    def test_the_deadline(self, cloud, api):
        cloud.arqs = [bound(state='BindStarted')]
        events: list[progress.Progress] = []
        before = time.monotonic()
        with pytest.raises(exception.Timeout) as caught:
            requests.bound(api, INSTANCE, 'vm', 2.0, events.append)
        assert 2.0 <= time.monotonic() - before < 60
        assert cloud.arqs[0]['uuid'] in str(caught.value)
        assert 'BindStarted' in str(caught.value)
        assert events[-1].status == 'failed'
        assert {each.message for each in events[1:-1]} == {
            '0 of 1 ARQs are bound'
        }

    def test_a_service_that_fails_meanwhile(self, cloud, api):
        cloud.failures[PATH] = 503
        with pytest.raises(exception.RemoteServiceError, match='503'):
            requests.bound(api, INSTANCE, 'vm', 30)


# --- the command


def test_plug_from_cyborg(run, cloud):
    cloud.arqs = [bound(), bound(address='0000:0c:00.2'), cloud_double.arq()]
    rows = run.fine(*plug()).json
    assert [row['uuid'] for row in rows] == [a['uuid'] for a in cloud.arqs[:2]]
    assert {row['state'] for row in rows} == {'plugged'}
    # Again: the same VANs.
    assert run.fine(*plug()).json == rows
    (shown, _) = run.fine('van', 'list', '-f', 'json').json
    assert shown['instance_uuid'] == INSTANCE


def test_the_project_is_that_of_the_arq(run, cloud):
    cloud.arqs = [bound()]
    run.fine(*plug())
    opened = journal.Journal(str(run.state_path), 5)
    (entry,) = opened.entries()
    opened.close()
    assert entry.instance_info.project_id == cloud_double.PROJECT


def test_the_cloud_of_the_environment(run, cloud, monkeypatch):
    cloud.arqs = [bound()]
    monkeypatch.setenv('OS_CLOUD', cloud_double.CLOUD)
    run.fine('plug', INSTANCE, '--from-cyborg')


def test_the_variables_of_the_environment(run, cloud, monkeypatch):
    cloud.arqs = [bound()]
    monkeypatch.delenv('OS_CLIENT_CONFIG_FILE')
    for name, value in {
        'AUTH_URL': f'{cloud.url}/identity/v3',
        'USERNAME': 'nova',
        'PASSWORD': 'secret',
        'PROJECT_NAME': 'service',
        'USER_DOMAIN_ID': 'default',
        'PROJECT_DOMAIN_ID': 'default',
    }.items():
        monkeypatch.setenv(f'OS_{name}', value)
    run.fine('plug', INSTANCE, '--from-cyborg')


def test_a_cyborg_that_cannot_list(run, cloud):
    cloud.arqs = [bound()]
    cloud.broken = OTHER
    line = run.fails(1, *plug())
    assert 'id 7 of its table attach_handles' in line
    assert 'os-acc cyborg check says what to do' in line


@pytest.mark.parametrize(
    ('arqs', 'code', 'text'),
    [
        ([], 2, INSTANCE),
        ([bound(hostname='node-9')], 2, 'hostname'),
        ([bound(state='BindFailed')], 2, 'ARQNotBound'),
        ([bound(state='BindStarted')], 2, 'its bind has not finished'),
        ([bound(device_profile_name='zip')], 1, "no device profile 'zip'"),
    ],
)
def test_plug_that_is_refused(run, cloud, arqs, code, text):
    cloud.arqs = copy.deepcopy(arqs)
    assert text in run.fails(code, *plug())
    assert not run.state_path.exists()


def test_a_function_of_the_profile_goes_to_the_driver(run, cloud):
    """A driver that programs nothing is not given a function silently."""
    cloud.arqs = [bound()]
    cloud.profiles['crypto'] = [{'accel:function_id': 'aes'}]
    line = run.fails(2, *plug('--driver', 'pci'))
    assert 'function_id' in line and 'aes' in line


def test_plug_that_waits(run, cloud, monkeypatch):
    done = bound()
    cloud.arqs = [{**done, 'state': 'BindStarted'}]
    asked = []

    def hook(path):
        asked.append(path)
        if asked.count(PATH) == 3:
            cloud.arqs = [done]

    cloud.hook = hook
    monkeypatch.setattr('sys.stderr.isatty', lambda: True, raising=False)
    result = run(*plug('--wait'))
    assert result.code == 0
    assert '0 of 1 ARQs are bound' in result.err
    assert f'instance {INSTANCE[:8]}' in result.err
    assert result.json[0]['state'] == 'plugged'


def test_plug_that_waits_too_long(run, cloud):
    cloud.arqs = [bound(state='BindStarted')]
    line = run.fails(1, *plug('--wait', '0.1'))
    assert line.startswith('Timeout: ') and cloud.arqs[0]['uuid'] in line


def test_ctrl_c_during_the_wait(run, cloud, interruptible):
    cloud.arqs = [bound(state='BindStarted')]
    asked = []

    def hook(path):
        asked.append(path)
        if asked.count(PATH) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    cloud.hook = hook
    result = run(*plug('--wait', '60'))
    assert result.code == 130
    assert 'Traceback' not in result.err
    assert not run.state_path.exists()


@pytest.mark.parametrize(
    ('arguments', 'text'),
    [
        (['--from-cyborg', '--function', 'aes'], '--function'),
        (['--from-cyborg', '--bitstream', '/x'], '--bitstream'),
        (['--arqs', '-', '--os-cloud', 'x'], '--os-cloud'),
    ],
)
def test_options_that_do_not_fit(run, arguments, text):
    assert text in run.fails(2, 'plug', INSTANCE, *arguments)


@pytest.mark.parametrize(
    'arguments',
    [
        [],
        ['--from-cyborg', '--arqs', '-'],
        ['--from-cyborg', '--wait', 'nan'],
        ['--from-cyborg', '--wait', '-1'],
        ['--from-cyborg', '--wait', 'soon'],
    ],
)
def test_options_that_are_wrong(run, arguments):
    result = run('plug', INSTANCE, *arguments)
    assert result.code == 2
    assert 'error: ' in result.err


def test_an_instance_that_is_no_uuid(run, cloud):
    line = run.fails(2, 'plug', 'web-1', '--from-cyborg')
    assert 'web-1' in line
    assert cloud.asked == []


def test_a_cloud_that_is_unknown(run):
    line = run.fails(
        1, 'plug', INSTANCE, '--from-cyborg', '--os-cloud', 'nowhere'
    )
    assert 'nowhere' in line


def test_the_function_and_bitstream_for_a_file(run):
    """They go to all ARQs of the file."""
    plugging = ('plug', INSTANCE, '--arqs', DATA / 'bound-arqs-fake.json')
    line = run.fails(2, *plugging, '--driver', 'pci', '--bitstream', '/x')
    assert 'bitstream' in line
    run.fine(*plugging, '--function', 'aes')
    opened = journal.Journal(str(run.state_path), 5)
    asked = [entry.request.function_id for entry in opened.entries()]
    opened.close()
    assert asked == ['aes', 'aes']

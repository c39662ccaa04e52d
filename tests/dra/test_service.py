# SPDX-License-Identifier: Apache-2.0

"""The sockets, the registration, and the messages on the wire."""

from __future__ import annotations

import os
import pathlib
import uuid

from google.protobuf import descriptor
import grpc
from node_parts import DRIVER
from node_parts import GPU
import pytest
import stand_in_kubelet

import os_acc
from os_acc_dra import errors
from os_acc_dra import messages
from os_acc_dra import offers
from os_acc_dra import probe
from os_acc_dra import process as process_module
from os_acc_dra import service as service_module

FIELD = descriptor.FieldDescriptor
ONE = offers.name_of(f'pci/{GPU}')


def test_what_the_registration_says(node):
    info = node.kubelet.info
    assert (info.type, info.name) == ('DRAPlugin', DRIVER)
    assert list(info.supported_versions) == [
        'v1.DRAPlugin',
        'v1beta1.DRAPlugin',
        'v1alpha1.DRAResourceHealth',
    ]
    assert info.endpoint == str(
        node.kubelet.directory / f'plugins/{DRIVER}/dra.sock'
    )


@pytest.mark.parametrize('version', ['v1.DRAPlugin', 'v1beta1.DRAPlugin'])
def test_a_kubelet_that_knows_one_version(node, version):
    kubelet = stand_in_kubelet.Kubelet(
        node.kubelet.directory, node.server, known=(version,)
    )
    kubelet.register()
    claim = node.claim('one', ONE)
    cdi_id, _ = kubelet.prepare(claim)
    assert cdi_id.endswith(os_acc.get_vans()[0].uuid)
    kubelet.unprepare(claim)
    assert len(os_acc.get_vans()) == 0


def test_the_messages_are_as_protoc_makes_them():
    """Each field of them, by the .proto files that the tests have."""
    for classes, compiled, version in (
        (messages.REGISTRATION, stand_in_kubelet.registration, 'v1'),
        (messages.DRA, stand_in_kubelet.dra, 'v1'),
        (messages.DRA, stand_in_kubelet.dra_beta, 'v1beta1'),
        (messages.HEALTH, stand_in_kubelet.health, 'v1alpha1'),
    ):
        names = set(compiled.DESCRIPTOR.message_types_by_name)
        assert set(classes) == names
        for name in names:
            own = described(classes[name].DESCRIPTOR)
            other = described(getattr(compiled, name).DESCRIPTOR)
            other.pop('share_id', None)  # of v1, and never set
            assert own == other, (version, name)


def described(message):
    """Number, type and label of each field, those of messages in it too."""
    return {
        each.name: (
            each.number,
            # An enum is the same as an int32 on the wire.
            FIELD.TYPE_INT32 if each.type == FIELD.TYPE_ENUM else each.type,
            each.is_repeated,
            described(each.message_type) if each.message_type else None,
        )
        for each in message.fields
        if each.name != 'share_id'
    }


def test_the_sockets_are_for_root_alone(node):
    for path in (node.process.endpoint, node.process.registration):
        assert os.stat(path).st_mode & 0o077 == 0


def test_the_stop_removes_the_registration_first(node, monkeypatch):
    order = []
    stop = grpc._server._Server.stop

    def stopped(server, grace):
        order.append(pathlib.Path(node.process.registration).exists())
        return stop(server, grace)

    monkeypatch.setattr(grpc._server._Server, 'stop', stopped)
    assert node.process.is_reachable()
    node.service.stop(1)
    assert order == [False, False]
    assert not node.process.is_reachable()
    assert not pathlib.Path(node.process.endpoint).exists()


def test_a_socket_that_somebody_removes(node):
    os.unlink(node.process.registration)
    assert not node.process.is_reachable()


def serving(node, directory, pod_uid=''):
    """Another process, without its being one."""
    process = process_module.Process(str(directory), DRIVER, pod_uid)
    return service_module.Service(node.calls, DRIVER, process, node.health)


def test_sockets_that_a_killed_process_has_left(node, directory):
    node.service.stop(0)
    node.process.release()
    for path in (node.process.endpoint, node.process.registration):
        pathlib.Path(path).touch()
    again = serving(node, directory)
    again.start()
    node.kubelet.register()
    assert node.kubelet.prepare(node.claim('one', ONE))
    again.stop(0)


def test_a_second_process_is_refused(node, directory):
    """gRPC itself would take over the sockets of the first one."""
    second = serving(node, directory)
    with pytest.raises(errors.ConfigurationError, match='another process'):
        second.start()
    assert node.kubelet.prepare(node.claim('one', ONE))


def test_two_pods_serve(node, directory):
    """As in a rolling update; each has its own sockets."""
    second = serving(node, directory, 'a-1')
    second.start()
    node.kubelet.register()
    assert node.kubelet.info.endpoint.endswith('/dra-a-1.sock')
    claim = node.claim('one', ONE)
    ids = node.kubelet.prepare(claim)
    second.stop(1)
    node.kubelet.register()
    assert node.kubelet.info.endpoint == node.process.endpoint
    node.kubelet.prepared.clear()
    assert node.kubelet.prepare(claim) == ids


def test_a_long_name_of_a_driver():
    """The names of the sockets are then digests, and differ all the same."""
    made = [
        process_module.Process('/var/lib/kubelet', 'd' * 63, uid)
        for uid in ('', *(str(uuid.UUID(int=n)) for n in range(9)))
    ]
    for kind in ('endpoint', 'registration'):
        paths = {getattr(each, kind) for each in made}
        assert len(paths) == len(made)
        assert all(len(path) <= 107 for path in paths)


def test_what_dead_processes_have_left(directory):
    """The kubelet would try for ever to register what is dead."""
    alive = process_module.Process(str(directory), DRIVER, 'alive')
    dead = process_module.Process(str(directory), DRIVER, 'dead')
    for each in (alive, dead):
        each.reserve()
        for path in (each.endpoint, each.registration):
            pathlib.Path(path).touch()
    left = set(directory.rglob('*dead*'))
    dead.release()  # a SIGKILL leaves all of its files
    for path in left:
        path.touch()
    process_module.Process(str(directory), DRIVER, 'new').reserve()
    assert len(left) == 3
    assert not set(directory.rglob('*dead*'))
    assert alive.is_reachable()


def test_one_process_publishes(directory):
    first, second = (
        process_module.Process(str(directory), DRIVER, uid)
        for uid in ('a', 'b')
    )
    first.reserve()
    second.reserve()
    assert first.publishes()
    assert not second.publishes()
    first.release()
    assert second.publishes()


def test_a_path_that_is_too_long(node, directory):
    long = serving(node, directory / ('x' * 80))
    with pytest.raises(errors.ConfigurationError, match='107 bytes'):
        long.start()


def test_a_directory_that_cannot_be_used(node, directory):
    (directory / 'file').touch()
    wrong = serving(node, directory / 'file')
    with pytest.raises(errors.ConfigurationError, match='cannot be used'):
        wrong.start()


def test_the_probe(node, capsys):
    arguments = ['--config-file', str(node.kubelet.directory / 'conf')]
    (node.kubelet.directory / 'conf').write_text(
        f'[os_acc_dra]\nkubelet_path = {node.kubelet.directory}\n'
    )
    assert probe.main(arguments) == 0
    os.unlink(node.process.endpoint)
    assert probe.main(arguments) == 1
    assert 'no answer: UNAVAILABLE' in capsys.readouterr().err
    os.unlink(node.process.registration)
    assert probe.main(arguments) == 1
    assert probe.main(['--config-file', '/nonexistent']) == 1
    assert '/nonexistent' in capsys.readouterr().err

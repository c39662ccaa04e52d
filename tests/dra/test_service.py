# SPDX-License-Identifier: Apache-2.0

"""The sockets, the registration, and the messages on the wire."""

from __future__ import annotations

import os
import pathlib

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
    for path in (node.service.endpoint, node.service.registration):
        assert os.stat(path).st_mode & 0o077 == 0


def test_the_stop_removes_the_registration_first(node, monkeypatch):
    order = []
    stop = grpc._server._Server.stop

    def stopped(server, grace):
        order.append(pathlib.Path(node.service.registration).exists())
        return stop(server, grace)

    monkeypatch.setattr(grpc._server._Server, 'stop', stopped)
    assert node.service.is_reachable()
    node.service.stop(1)
    assert order == [False, False]
    assert not node.service.is_reachable()
    assert not pathlib.Path(node.service.endpoint).exists()


def test_a_socket_that_somebody_removes(node):
    os.unlink(node.service.registration)
    assert not node.service.is_reachable()


def test_sockets_that_a_killed_process_has_left(node, directory):
    node.service.stop(0)
    for path in (node.service.endpoint, node.service.registration):
        pathlib.Path(path).touch()
    again = service_module.Service(
        node.calls, DRIVER, str(directory), node.health
    )
    again.start()
    node.kubelet.register()
    assert node.kubelet.prepare(node.claim('one', ONE))
    again.stop(0)


def test_a_second_process_is_refused(node, directory):
    """gRPC itself would take over the sockets of the first one."""
    second = service_module.Service(
        node.calls, DRIVER, str(directory), node.health
    )
    with pytest.raises(errors.ConfigurationError, match='another process'):
        second.start()
    assert node.kubelet.prepare(node.claim('one', ONE))


def test_a_path_that_is_too_long(node, directory):
    long = service_module.Service(
        node.calls, DRIVER, str(directory / ('x' * 80)), node.health
    )
    with pytest.raises(errors.ConfigurationError, match='107 bytes'):
        long.start()


def test_a_directory_that_cannot_be_used(node, directory):
    (directory / 'file').touch()
    wrong = service_module.Service(
        node.calls, DRIVER, str(directory / 'file'), node.health
    )
    with pytest.raises(errors.ConfigurationError, match='cannot be used'):
        wrong.start()


def test_the_probe(node, capsys):
    arguments = ['--config-file', str(node.kubelet.directory / 'conf')]
    (node.kubelet.directory / 'conf').write_text(
        f'[os_acc_dra]\nkubelet_path = {node.kubelet.directory}\n'
    )
    assert probe.main(arguments) == 0
    os.unlink(node.service.endpoint)
    assert probe.main(arguments) == 1
    assert 'no answer: UNAVAILABLE' in capsys.readouterr().err
    os.unlink(node.service.registration)
    assert probe.main(arguments) == 1
    assert probe.main(['--config-file', '/nonexistent']) == 1
    assert '/nonexistent' in capsys.readouterr().err

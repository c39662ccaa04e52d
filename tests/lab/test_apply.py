# SPDX-License-Identifier: Apache-2.0

"""os-acc apply on real devices: VFs, mediated devices, an FPGA card."""

from __future__ import annotations

from collections.abc import Callable
import pathlib
import signal
import uuid

import dfl_card
import lab_devices
import processes
import pytest
import test_crash
import test_dfl
import use

import os_acc
from os_acc import journal
from os_acc import objects
from os_acc.kernel import mdev
from os_acc.kernel import sriov
from os_acc.privileged import root_folder

INSTANCE = '7c0a6bb0-1111-4222-8333-444455556666'
NVME, CARD = lab_devices.NVME_PF, lab_devices.DFL_PF
CLEANED = {'command_empties': True}
WATCHED = (
    *test_crash.WATCHED,
    (journal.Journal, 'journal', ['save_desired', 'keep_vfs']),
    (root_folder.RootFiles, 'files', ['write', 'delete']),
)


def document(vfs: int = 0, mdevs: int = 0, card: str | None = None):
    """A document.

    :param vfs: of the drive with SR-IOV
    :param mdevs: made ahead of time
    :param card: the bitstream of the first region of the card, which gets VFs
    """
    made = {
        'version': 1,
        'offered': [
            {'address': NVME, **CLEANED} | ({'num_vfs': vfs} if vfs else {}),
            {'address': use.MTTY, 'mdev_types': ['mtty-1']},
        ],
        'mdevs': [{'device': use.MTTY, 'type': 'mtty-1', 'count': mdevs}]
        if mdevs
        else [],
    }
    if card is not None:
        made['offered'].append(test_dfl.SPEC)
        made['functions'] = [
            {
                'device': CARD,
                'region': '0',
                'function': test_dfl.AES,
                'bitstream': card,
            }
        ]
    return made


def configure(directory: pathlib.Path, initialize: bool = True) -> None:
    use.configure(directory / 'state', (), initialize=False)
    for name, value, group in (
        ('device_spec_dir', str(directory / 'specs'), 'os_acc'),
        ('allowed_folders', [str(directory / 'images')], 'os_acc_bitstreams'),
    ):
        os_acc.CONF.set_override(name, value, group)
    if initialize:
        os_acc.initialize(reset=True)


@pytest.fixture
def here(tmp_path):
    configure(tmp_path)
    yield
    use.close()


def there() -> tuple[int, int]:
    """How many VFs and mediated devices there are."""
    return sriov.count(NVME), len(mdev.devices())


def results(report) -> list[str]:
    return [step.result for step in report.steps]


def test_applied_twice_and_taken_back(here, snapshot):
    before = snapshot()
    wanted = document(3, 2)
    assert {*results(os_acc.apply(wanted, check=True))} == {'would change'}
    assert snapshot() == before
    assert {*results(os_acc.apply(wanted))} == {'changed'}
    made = snapshot()
    assert there() == (3, 2)
    assert {*results(os_acc.apply(wanted))} == {'unchanged'}
    assert snapshot() == made
    os_acc.apply(document())
    assert snapshot() == before


def test_while_a_guest_has_a_part(here, snapshot):
    """The rest is done, and this part when the guest has gone."""
    before = snapshot()
    os_acc.apply(document(2, 1))
    guest = use.instance(INSTANCE)
    vans = os_acc.plug(guest, [use.pci_request(use.VFS[1])])
    report = os_acc.apply(document(4, 2))
    assert there() == (2, 2)
    (step,) = (each for each in report.steps if each.result == 'in the way')
    assert step.name == NVME
    assert vans[0].uuid in step.reason
    assert use.driver_of(use.VFS[1]) == 'vfio-pci'
    os_acc.unplug(guest)
    os_acc.apply_again()
    assert there() == (4, 2)
    os_acc.apply(document())
    assert snapshot() == before


def test_the_functions_of_a_card(tmp_path, snapshot):
    images = test_dfl.make_images(tmp_path / 'images')
    dfl_card.up()
    configure(tmp_path)
    before = snapshot()
    try:
        wanted = document(card=images[test_dfl.AES])
        assert 'changed' in results(os_acc.apply(wanted))
        assert sriov.count(CARD) == lab_devices.DFL_PF_VFS
        loads = dfl_card.value('programmed')
        assert {*results(os_acc.apply(wanted))} == {'unchanged'}
        assert dfl_card.value('programmed') == loads
        (device,) = (d for d in os_acc.get_devices() if d.address == CARD)
        assert test_dfl.AES in str(device.functions)
        os_acc.apply(document())
        assert snapshot() == before
    finally:
        use.close()
        dfl_card.down()


def _process(
    directory: pathlib.Path,
    work: Callable[[], object],
    kill_at: int | None = None,
) -> tuple[int, list[str]]:
    """Do work in a new process, which is killed at a boundary.

    :returns: how it ended, and the boundaries that it passed
    """
    return processes.run_watched(
        work, WATCHED, kill_at, lambda: configure(directory)
    )


def test_killed_at_any_step(tmp_path, snapshot, report):
    """The next apply, or the next start of a service, finishes it."""
    before = snapshot()
    one, two = document(2, 2), document(3, 1)

    def to_one() -> None:
        os_acc.apply(one)

    def to_two() -> None:
        os_acc.apply(two)

    def nothing() -> None:
        """Only initialize()."""

    assert _process(tmp_path, to_one)[0] == 0
    code, names = _process(tmp_path, to_two)
    assert (code, there()) == (0, (3, 1))
    steps = use.some_steps(5, len(names))
    for number, kill_at in enumerate(steps):
        assert _process(tmp_path, to_one)[0] == 0
        assert there() == (2, 2), names[kill_at]
        code, _ = _process(tmp_path, to_two, kill_at)
        assert code == -signal.SIGKILL, names[kill_at]
        if number % 2:
            # Before the document was saved, the earlier one is in force.
            work, expected = nothing, {(3, 1), (2, 2)}
        else:
            work, expected = to_two, {(3, 1)}
        assert _process(tmp_path, work)[0] == 0, names[kill_at]
        assert there() in expected, names[kill_at]
    report(f'lab: apply: killed at {len(steps)} of {len(names)} steps')
    assert _process(tmp_path, lambda: os_acc.apply(document()))[0] == 0
    assert snapshot() == before


@pytest.mark.boot1
def test_before_the_reboot(lab_state, leave_all):
    """Guests use two of four VFs and one of two mediated devices."""
    directory = lab_state / 'apply'
    directory.mkdir()
    configure(directory)
    os_acc.apply(document(4, 2))
    os_acc.plug(
        use.instance(INSTANCE),
        [
            use.pci_request(use.VFS[1]),
            use.pci_request(use.VFS[3]),
            _one_made(),
        ],
    )
    use.close()


@pytest.mark.boot2
def test_after_the_reboot(lab_state, snapshot):
    before = snapshot()
    assert there() == (0, 0)
    # A service that starts: it makes all devices of the document again, and
    # each guest gets the ones that it had.
    configure(lab_state / 'apply')
    assert there() == (4, 2)
    first, second, van = os_acc.get_vans()
    assert [each.handle.address for each in (first, second)] == [
        use.VFS[1],
        use.VFS[3],
    ]
    # The host's driver takes no free VF.
    used = [None, 'vfio-pci'] * 2
    assert [use.driver_of(vf) for vf in use.VFS] == used
    left = {each.uuid for each in mdev.devices()}
    assert van.handle.uuid in left
    assert {*results(os_acc.apply(document(4, 2)))} == {'unchanged'}
    assert os_acc.unplug(use.instance(INSTANCE)) == 3
    assert there() == (4, 2)
    assert {each.uuid for each in mdev.devices()} == left
    os_acc.apply(document())
    use.close()
    assert snapshot() == before


def _one_made() -> objects.AcceleratorRequest:
    return objects.AcceleratorRequest(
        uuid=str(uuid.uuid4()), resource_class='CUSTOM_MDEV_MTTY_1'
    )

# SPDX-License-Identifier: Apache-2.0

"""Images in OPAE's format GBS."""

from __future__ import annotations

import io
import json
import struct

import dfl_model
import hypothesis
from hypothesis import strategies
import pytest

from os_acc import exception
from os_acc.bitstreams import gbs as bitstream_gbs

AES = 'aaaaaaaa-1111-4222-8333-444455556666'
GOOD = dfl_model.image(AES)


def metadata(**changes):
    image = {
        'magic-no': 488605312,
        'interface-uuid': dfl_model.INTERFACE,
        'accelerator-clusters': [{'accelerator-type-uuid': AES}],
    }
    for key, value in changes.items():
        image[key.replace('_', '-')] = value
    return {
        'version': 1,
        'afu-image': {k: v for k, v in image.items() if v is not None},
    }


def raw(text, payload=b'x'):
    return bitstream_gbs.MAGIC + struct.pack('<I', len(text)) + text + payload


def parse(data):
    return bitstream_gbs.parse(data[: bitstream_gbs.HEAD], len(data), 'a.gbs')


def test_what_an_image_says(tmp_path):
    path = tmp_path / 'a.gbs'
    path.write_bytes(GOOD)
    with open(path, 'rb') as file:
        file.seek(7)
        found = bitstream_gbs.read(file, 'a.gbs')
    assert found.interface_id == dfl_model.INTERFACE
    assert found.functions == (AES.replace('-', ''),)
    assert GOOD[found.offset :].endswith(b'payload')


@pytest.mark.parametrize('version', [1, 640, 650])
def test_versions_of_the_tools(version):
    found = parse(dfl_model.packed({**metadata(), 'version': version}, b'x'))
    assert found.interface_id == dfl_model.INTERFACE


def test_several_functions_and_spellings():
    clusters = [
        {'accelerator-type-uuid': AES.upper(), 'name': 'a'},
        {'accelerator-type-uuid': dfl_model.BLANK},
    ]
    found = parse(
        dfl_model.packed(metadata(accelerator_clusters=clusters), b'x')
    )
    found.check_has(None, 'a')
    found.check_has(AES.replace('-', ''), 'a')
    found.check_has(dfl_model.BLANK.upper(), 'a')
    found.check_fits(dfl_model.INTERFACE, 'a')
    for check in (
        lambda: found.check_has('b' * 32, 'a'),
        lambda: found.check_fits('b' * 32, 'a'),
        lambda: found.check_fits(None, 'a'),
    ):
        with pytest.raises(exception.BitstreamError):
            check()


def test_padded_metadata():
    text = json.dumps(metadata()).encode() + b'\0\0\0'
    assert parse(raw(text)).interface_id == dfl_model.INTERFACE


@pytest.mark.parametrize(
    ('data', 'text'),
    [
        (b'', 'it is not an image in'),
        (GOOD[:19], 'it is not an image in'),
        (b'xclbin2\0' * 9, 'it is not an image in'),
        (struct.pack('<I', 488605312) + bytes(40), 'old format'),
        (raw(b''), 'metadata have 0 bytes'),
        (raw(b' ' * 65537), 'metadata have 65537 bytes'),
        (raw(b'{}', b''), 'ends before the data'),
        (GOOD[:60], 'ends before the data'),
        (raw(b'nothing'), 'not valid JSON'),
        (raw(b'\xff{}'), 'not valid JSON'),
        (raw(b'[' * 60000), 'not valid JSON'),
        (raw(b'{"version": NaN}'), 'not valid JSON'),
        (raw(b'{"version": 1, "version": 1}'), 'not valid JSON'),
        (raw(b'{"version": ' + b'1' * 5000 + b'}'), 'not valid JSON'),
        (raw(b'[]'), 'no afu-image that is an object'),
        (dfl_model.packed({'version': 1}, b'x'), 'no afu-image'),
        (
            dfl_model.packed({**metadata(), 'version': True}, b'x'),
            'no version that is a whole number',
        ),
        (
            dfl_model.packed({**metadata(), 'version': 2}, b'x'),
            'version 2, expected 1 or 640 or 650',
        ),
        *(
            (dfl_model.packed(metadata(**changes), b'x'), text)
            for changes, text in (
                ({'magic_no': 5}, 'magic-no 5, expected 488605312'),
                ({'magic_no': None}, 'no magic-no that is a whole number'),
                (
                    {'interface_uuid': None},
                    'no interface-uuid that is a string',
                ),
                ({'interface_uuid': 'x' * 99}, 'expected a UUID'),
                ({'interface_uuid': AES[:-1]}, 'expected a UUID'),
                (
                    {'interface_uuid': AES.replace('-', '', 1)},
                    'expected a UUID',
                ),
                ({'accelerator_clusters': {}}, 'that is a list'),
                ({'accelerator_clusters': []}, 'no accelerator function'),
                ({'accelerator_clusters': [7]}, 'that is a string'),
                (
                    {'accelerator_clusters': [{}]},
                    'no accelerator-type-uuid that is a string',
                ),
            )
        ),
    ],
)
def test_refused(data, text):
    with pytest.raises(exception.BitstreamError) as caught:
        parse(data)
    assert text in str(caught.value)
    assert len(str(caught.value)) < 400


JSON = strategies.recursive(
    strategies.none()
    | strategies.booleans()
    | strategies.integers()
    | strategies.floats()
    | strategies.text()
    | strategies.sampled_from([AES, dfl_model.INTERFACE, 1, 488605312]),
    lambda each: (
        strategies.lists(each, max_size=4)
        | strategies.dictionaries(
            strategies.sampled_from(
                [
                    'version',
                    'afu-image',
                    'magic-no',
                    'interface-uuid',
                    'accelerator-clusters',
                    'accelerator-type-uuid',
                ]
            )
            | strategies.text(),
            each,
            max_size=6,
        )
    ),
    max_leaves=12,
)


def outcome(data):
    """Either a whole image, or the documented error."""
    try:
        found = parse(data)
    except exception.BitstreamError:
        return
    assert len(found.interface_id) == 32
    assert found.functions
    assert all(len(each) == 32 for each in found.functions)
    assert 0 < found.offset < len(data)


@hypothesis.given(JSON, strategies.binary(max_size=9))
def test_any_metadata(found, payload):
    outcome(dfl_model.packed(found, payload))


@hypothesis.given(
    strategies.integers(0, len(GOOD) - 1),
    strategies.binary(max_size=6),
    strategies.integers(0, len(GOOD)),
)
def test_any_damage(place, piece, length):
    damaged = io.BytesIO(GOOD)
    damaged.seek(place)
    damaged.write(piece)
    outcome(damaged.getvalue()[:length])

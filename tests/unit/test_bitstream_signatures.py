# SPDX-License-Identifier: Apache-2.0

"""Signatures of images, verified with real keys and certificates.

cursive, castellan, python-barbicanclient and openstacksdk are the real ones.
The image service and the key manager are on the loopback.
"""

from __future__ import annotations

import base64
import datetime
import json
import os
import sys
import threading
import uuid

from castellan import options as castellan_options
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric import rsa
import downloads
from downloads import fetch
from downloads import option
from downloads import refused
from oslo_config import cfg
import pytest

from os_acc import exception

CONTENT = os.urandom(3_000_000)
CA = str(uuid.UUID(int=1))
OTHER_CA = str(uuid.UUID(int=2))
SIGNER = str(uuid.UUID(int=3))
SELF_SIGNED = str(uuid.UUID(int=4))
EXPIRED = str(uuid.UUID(int=5))
STRANGER = str(uuid.UUID(int=6))
EC_SIGNER = str(uuid.UUID(int=7))


def certificate(name, key, issuer=None, issuer_key=None, days=10):
    """Make a certificate; without an issuer, that of an authority.

    :param days: how long it is valid from yesterday on
    """
    names = [
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, each)])
        for each in (name, issuer or name)
    ]
    is_authority = issuer is None
    begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    return (
        x509.CertificateBuilder()
        .subject_name(names[0])
        .issuer_name(names[1])
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + datetime.timedelta(days=days))
        .add_extension(
            x509.BasicConstraints(ca=is_authority, path_length=None), True
        )
        .add_extension(
            x509.KeyUsage(
                digital_signature=not is_authority,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                key_cert_sign=is_authority,
                crl_sign=is_authority,
                encipher_only=False,
                decipher_only=False,
            ),
            True,
        )
        .sign(issuer_key or key, hashes.SHA256())
    )


@pytest.fixture(scope='module')
def keys():
    """Key pairs by the id of their certificate, and the certificates."""
    pairs = {
        each: rsa.generate_private_key(65537, 2048)
        for each in (CA, OTHER_CA, SIGNER, SELF_SIGNED, EXPIRED, STRANGER)
    }
    pairs[EC_SIGNER] = ec.generate_private_key(ec.SECP384R1())
    made = {
        CA: certificate('ca', pairs[CA]),
        OTHER_CA: certificate('other', pairs[OTHER_CA]),
        SIGNER: certificate('signer', pairs[SIGNER], 'ca', pairs[CA]),
        SELF_SIGNED: certificate('self', pairs[SELF_SIGNED]),
        EXPIRED: certificate('old', pairs[EXPIRED], 'ca', pairs[CA], days=0.5),
        # It names the trusted authority, but another one has issued it.
        STRANGER: certificate('x', pairs[STRANGER], 'ca', pairs[OTHER_CA]),
        EC_SIGNER: certificate('ec', pairs[EC_SIGNER], 'ca', pairs[CA]),
    }
    return pairs, made


@pytest.fixture
def glance(clean, tmp_path, keys):
    """An image service, and a key manager that has the certificates."""
    conf = cfg.CONF
    castellan_options.set_defaults(conf)
    with downloads.glance(tmp_path) as server:
        base = f'{server.url}/key-manager'
        conf.set_override('barbican_endpoint', base, 'barbican')
        version = {
            'id': 'v1',
            'status': 'CURRENT',
            'min_version': '1.0',
            'max_version': '1.1',
            'links': [{'rel': 'self', 'href': f'{base}/v1/'}],
        }
        server.files['/key-manager'] = server.files['/key-manager/'] = (
            json.dumps({'versions': [version]}).encode()
        )
        for each, made in keys[1].items():
            path = f'/key-manager/v1/secrets/{each}'
            secret = {
                'name': each,
                'status': 'ACTIVE',
                'secret_type': 'certificate',
                'created': '2026-01-01T00:00:00',
                'secret_ref': f'{server.url}{path}',
                'content_types': {'default': 'application/octet-stream'},
            }
            server.files[path] = json.dumps(secret).encode()
            server.files[f'{path}/payload'] = made.public_bytes(
                serialization.Encoding.PEM
            )
        option('trusted_certificates', [CA])
        try:
            yield server
        finally:
            conf.clear_override('barbican_endpoint', 'barbican')


@pytest.fixture
def signed(keys):
    """Make the properties of an image: signed(content, certificate)."""

    def sign(content, signer=SIGNER):
        key = keys[0][signer]
        if signer == EC_SIGNER:
            kind = 'ECC_SECP384R1'
            made = key.sign(content, ec.ECDSA(hashes.SHA512()))
        else:
            kind = 'RSA-PSS'
            scheme = padding.PSS(
                padding.MGF1(hashes.SHA512()), padding.PSS.MAX_LENGTH
            )
            made = key.sign(content, scheme, hashes.SHA512())
        return {
            'img_signature': base64.b64encode(made).decode(),
            'img_signature_hash_method': 'SHA-512',
            'img_signature_key_type': kind,
            'img_signature_certificate_uuid': signer,
        }

    return sign


@pytest.mark.parametrize('mode', ['if_present', 'required'])
@pytest.mark.parametrize('signer', [SIGNER, EC_SIGNER])
def test_a_signed_image(glance, signed, mode, signer):
    option('verify_signatures', mode)
    image = glance.put_image(CONTENT, **signed(CONTENT, signer))
    for _ in range(2):
        assert fetch(image) == CONTENT
    assert len(glance.downloads(f'/image/v2/images/{image}/file')) == 1
    payload = f'/key-manager/v1/secrets/{signer}/payload'
    number = [path for path, _ in glance.asked].index(payload)
    # The key manager is asked with the credentials of the cloud.
    assert glance.headers[number]['X-Auth-Token'] == downloads.TOKEN


@pytest.mark.parametrize('mode', ['if_present', 'required'])
def test_the_signature_of_another_file(glance, signed, mode):
    """Its checksum is right, so only the signature shows it."""
    option('verify_signatures', mode)
    image = glance.put_image(CONTENT, **signed(CONTENT + b'x'))
    for _ in range(2):
        assert 'does not match its img_signature' in refused(image)


def test_a_file_that_was_cached_before_signatures_were_required(
    glance, signed
):
    image = glance.put_image(CONTENT, **signed(b'something else'))
    assert fetch(image) == CONTENT
    option('verify_signatures', 'required')
    assert 'does not match its img_signature' in refused(image)


def test_an_image_that_was_found_by_its_function(glance, signed):
    option('verify_signatures', 'required')
    properties = {'accel:function_id': 'aes', **signed(CONTENT)}
    image = glance.put_image(CONTENT, **properties)
    assert fetch(None, 'aes') == CONTENT
    glance.images[image]['img_signature'] = signed(b'')['img_signature']
    assert 'does not match its img_signature' in refused(None, 'aes')


def test_an_image_without_signature(glance):
    image = glance.put_image(CONTENT)
    for mode in ('off', 'if_present'):
        option('verify_signatures', mode)
        assert fetch(image) == CONTENT
    option('verify_signatures', 'required')
    reason = refused(image)
    assert 'it has no img_signature' in reason
    assert '[os_acc_bitstreams] verify_signatures' in reason


@pytest.mark.parametrize('mode', ['if_present', 'required'])
@pytest.mark.parametrize(
    'name',
    [
        'img_signature',
        'img_signature_hash_method',
        'img_signature_key_type',
        'img_signature_certificate_uuid',
    ],
)
def test_a_signature_that_is_incomplete(glance, signed, mode, name):
    option('verify_signatures', mode)
    properties = {**signed(CONTENT)}
    del properties[name]
    reason = refused(glance.put_image(CONTENT, **properties))
    assert f'does not have the properties {name}' in reason


@pytest.mark.parametrize(
    ('name', 'value', 'expected'),
    [
        ('img_signature', 'A', 'base64'),
        ('img_signature_hash_method', 'MD5', 'hash method: MD5'),
        ('img_signature_key_type', 'ROT13', 'key type: ROT13'),
        ('img_signature_key_type', 'ECC_SECP384R1', 'public key type'),
        ('img_signature_certificate_uuid', '../orders', 'is not a UUID'),
        (
            'img_signature_certificate_uuid',
            str(uuid.UUID(int=99)),
            'Certificate not found',
        ),
    ],
)
def test_a_malformed_signature(glance, signed, name, value, expected):
    option('verify_signatures', 'if_present')
    image = glance.put_image(CONTENT, **{**signed(CONTENT), name: value})
    assert expected in refused(image)
    assert glance.downloads(f'/image/v2/images/{image}/file') == []


@pytest.mark.parametrize(
    ('signer', 'expected'),
    [
        (SELF_SIGNED, 'trusted certificates'),
        (STRANGER, 'trusted certificates'),
        (EXPIRED, 'outside its valid date range'),
    ],
)
def test_a_certificate_that_is_not_trusted(glance, signed, signer, expected):
    option('verify_signatures', 'if_present')
    image = glance.put_image(CONTENT, **signed(CONTENT, signer))
    assert expected in refused(image)
    assert glance.downloads(f'/image/v2/images/{image}/file') == []


def test_no_certificate_is_trusted(glance, signed):
    option('verify_signatures', 'if_present')
    image = glance.put_image(CONTENT, **signed(CONTENT))
    option('trusted_certificates', [OTHER_CA])
    assert 'trusted certificates' in refused(image)
    option('trusted_certificates', [])
    assert 'trusted_certificates is empty' in refused(image)


def test_a_key_manager_that_fails(glance, signed):
    option('verify_signatures', 'required')
    image = glance.put_image(CONTENT, **signed(CONTENT))
    glance.status[f'/key-manager/v1/secrets/{SIGNER}'] = 500
    assert 'Unable to retrieve certificate' in refused(image)


def test_a_key_manager_that_does_not_answer(glance, signed):
    option('verify_signatures', 'required')
    option('stall_timeout', 0.5)
    image = glance.put_image(CONTENT, **signed(CONTENT))
    end = threading.Event()
    glance.hook = lambda path: '/secrets/' in path and end.wait(120)
    reason = refused(image, cause=exception.Timeout)
    end.set()
    assert f'certificates of image {image}' in reason


def test_without_cursive(glance, signed, monkeypatch):
    option('verify_signatures', 'if_present')
    signed_image = glance.put_image(CONTENT, **signed(CONTENT))
    bare = glance.put_image(CONTENT)
    monkeypatch.setitem(sys.modules, 'cursive', None)
    assert 'os-acc[signatures]' in refused(signed_image)
    assert fetch(bare) == CONTENT

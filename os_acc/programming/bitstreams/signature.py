# SPDX-License-Identifier: Apache-2.0

"""Signatures of Glance images, verified by cursive as Nova does.

The signature and the id of its certificate are properties of the image. The
certificate is in the key manager (such as Barbican), which castellan asks.
"""

from __future__ import annotations

from collections.abc import Mapping
import functools
from typing import Any

from oslo_config import cfg

from os_acc import exception
from os_acc.bitstreams import options
from os_acc.deadlines import waiting
from os_acc.texts import forms

# The arguments of cursive's signature_utils.get_verifier(), which are the
# names of the properties, too.
_CERTIFICATE = 'img_signature_certificate_uuid'
PROPERTIES = (
    'img_signature',
    'img_signature_hash_method',
    'img_signature_key_type',
    _CERTIFICATE,
)

_CHUNK = 1 << 20


class Signature:
    """The signature of an image, with the key that verifies it."""

    def __init__(self, verifier: Any, label: str) -> None:
        self._verifier = verifier
        self._label = label

    def check(self, path: str) -> None:
        """Verify the signature of a file. It can be called once."""
        from cryptography import exceptions

        with open(path, 'rb') as file:
            while chunk := file.read(_CHUNK):
                self._verifier.update(chunk)
        try:
            self._verifier.verify()
        except exceptions.InvalidSignature as err:
            raise _failed(
                self._label, 'its content does not match its img_signature'
            ) from err


def of_image(
    image: Mapping[str, Any], auth: Any, label: str
) -> Signature | None:
    """Read the signature of an image, and check its certificate.

    :param image: the image, as Glance's API v2 shows it
    :returns: None if verify_signatures does not require its verification
    """
    conf = cfg.CONF[options.GROUP]
    if conf.verify_signatures == options.OFF:
        return None
    properties = {name: str(image.get(name) or '') for name in PROPERTIES}
    missing = [name for name, value in properties.items() if not value]
    if len(missing) == len(PROPERTIES):
        if conf.verify_signatures != options.REQUIRED:
            return None
        raise _failed(
            label,
            'it has no img_signature, and [os_acc_bitstreams] '
            f'verify_signatures is {options.REQUIRED}',
        )
    if missing:
        raise _failed(
            label,
            'its signature is incomplete, because it does not have the '
            f'properties {", ".join(missing)}',
        )
    if forms.uuid(properties[_CERTIFICATE]) is None:
        raise _failed(label, f'its {_CERTIFICATE} is not a UUID')
    trusted = conf.trusted_certificates
    if not trusted:
        raise _failed(
            label,
            'its signature cannot be verified, because [os_acc_bitstreams] '
            'trusted_certificates is empty',
        )
    verifier = waiting.at_most(
        functools.partial(_verifier, properties, trusted, auth, label),
        conf.stall_timeout,
        f'the key manager to return the certificates of {label}',
    )
    return Signature(verifier, label)


def _verifier(
    properties: Mapping[str, str], trusted: list[str], auth: Any, label: str
) -> Any:
    try:
        from cursive import certificate_utils
        from cursive import signature_utils
        from oslo_context import context as oslo_context
    except ImportError as err:
        raise _failed(
            label,
            'its signature cannot be verified without cursive: install '
            'os-acc[signatures]',
        ) from err
    # This runs in a thread of its own, so the context does not become that
    # of the caller's thread.
    context: Any = oslo_context.RequestContext(overwrite=False)
    # castellan's BarbicanKeyManager calls it, if the context has it.
    context.get_auth_plugin = lambda: auth
    try:
        verifier = signature_utils.get_verifier(context=context, **properties)
        certificate_utils.verify_certificate(
            context, properties[_CERTIFICATE], trusted
        )
    except Exception as err:
        # cursive and the drivers of castellan do not say what they raise.
        raise _failed(
            label,
            f'its signature cannot be verified: {exception.describe(err)}',
        ) from err
    return verifier


def _failed(label: str, reason: str) -> exception.BitstreamError:
    return exception.BitstreamError(bitstream=label, reason=reason)

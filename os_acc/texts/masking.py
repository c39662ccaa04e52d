# SPDX-License-Identifier: Apache-2.0
"""Masks what looks like a secret, for what is kept or given to strangers.

No list of secrets is complete. So this masks too much rather than too little.
"""

from __future__ import annotations

import json
import re
from typing import Any

#: What stands for a secret value.
MASK = '***'
#: The mark of an omission that the author of a text has made.
LEFT_OUT = '...'

# How many characters of the text of an error are searched.
_SEARCHED = 20_000

# The names of values that are secrets.
_KEY = re.compile(
    r'pass(?!ive|ed|through)|pwd|secret|token|credential|signature(?!s)'
    r'|cookie|dhchap|psk|(^|[^a-z])auth$|key$|authorization',
    re.I,
)

# The names of options and settings in a text.
_NAMES = (
    r'(?:api|access|secret|private|encryption|session|account)[-_]?key'
    r'|(?:client|dhchap)[-_]?secret|(?:auth|session|access|bearer)[-_]?token'
    r'|passwd|pwd|psk'
)
# These are also words of a sentence, such as "Invalid signature key type". So
# the text after a space is a secret only if it has a digit or is long.
_WORDS = 'credentials?|signature'

# An option of a command line whose value is the next item of a list.
_OPTION = re.compile(
    rf'--?(?:[^\W_]+[-_])*(?:{_NAMES}|{_WORDS}|password|secret|token|key|pass'
    r'|pin|auth|cookie)',
    re.I,
)

# The names that are secrets also without quotes, as in a file of options.
# Others, such as "key", are words of a sentence.
_UNQUOTED = re.compile(
    r'(?:^|[._-])(?:pass(?:word|wd|phrase|code)|pwd|secret|token|psk)$', re.I
)
# The names of lists of variables of an environment.
_ENVIRONMENT = re.compile(r'(?:^|[._])env(?:ironment)?$', re.I)

# A name, and what is between it and its value. The quotes may be escaped. All
# lengths are limited, so that the time does not grow with their square.
_NAMED = re.compile(
    r'(?<![\w.-])(?P<quote>\\{0,16}["\']|)(?P<name>-{0,2}[A-Za-z][\w.-]{0,80})'
    r'(?P=quote)\s{0,80}(?P<between>=>|[:=,])\s{0,80}(?=\S)'
)
_QUOTE = re.compile(r'\\*["\']')
_BRACKET = re.compile(r'\\*["\']|[\[\]{}]')
# What is certainly no secret.
_NOTHING = re.compile(r'(?:null|None|true|True|false|False)\b')
_WORD_END = re.compile(r'[\s,;"\'}\]]|$')

# A URL. It begins with the last letter of the scheme, since a search for
# the whole scheme takes quadratic time in a long word.
_URL = re.compile(r'(\w://)([^\s"\'<>]*)')

# Texts that are secrets wherever they occur, with what replaces them.
_TEXTS = (
    # A user and password before a host, without the scheme of a URL.
    (
        re.compile(
            r'(?<![\w.-])([\w.-]{1,64}:)[^\s@:"\'/][^\s@:"\']{0,255}@(?=[\w\[])'
        ),
        rf'\1{MASK}@',
    ),
    # The keys of NVMe over Fabrics: DH-HMAC-CHAP and TLS.
    (re.compile(r'\b(DHHC-1|NVMeTLSkey-1):[^\s"\']+'), rf'\1:{MASK}'),
    # The name by which an instance connects to a target of NVMe over Fabrics.
    (
        re.compile(
            r'(nqn\.2014-08\.org\.nvmexpress:uuid:)[0-9a-f-]{36}', re.I
        ),
        rf'\1{MASK}',
    ),
    (
        re.compile(
            r'-----BEGIN ([A-Z ]*PRIVATE KEY)-----.*?(-----END \1-----|\Z)',
            re.S,
        ),
        MASK,
    ),
    # The headers of HTTP.
    (re.compile(r'\b(Bearer|Basic)\s+[\w.~+/=-]{6,}', re.I), rf'\1 {MASK}'),
    (
        re.compile(
            r'(\bAuthorization["\']?\s*[:=]\s*["\']?)[^"\'\r\n]+', re.I
        ),
        rf'\1{MASK}',
    ),
    (
        re.compile(r'(X-\w+-Token["\']?\s*[:=]\s*["\']?)\S+', re.I),
        rf'\1{MASK}',
    ),
    # A token of Keystone.
    (re.compile(r'\bgAAAAA[\w-]+=*'), MASK),
    # A token of JSON Web Token, and of GitHub.
    (re.compile(r'\beyJ[\w-]+\.[\w-]+(\.[\w-]*)?'), MASK),
    (re.compile(r'\bgh[pousr]_\w{20,}'), MASK),
    # The user and password of curl.
    (re.compile(r'(\s-u\s*|--user[ =])[^\s:]{1,255}:\S+'), rf'\1{MASK}'),
    # name=value and --name value.
    (
        re.compile(
            rf'((?:\b|_)(?:{_NAMES})["\']?(?:\s*[:=]\s*|\s+)["\']?)'
            r'[^\s"\',;]+',
            re.I,
        ),
        rf'\1{MASK}',
    ),
    (
        re.compile(
            rf'((?:\b|_)(?:{_WORDS})["\']?\s*[:=]\s*["\']?'
            rf'|--?(?:{_WORDS})\s+["\']?'
            rf'|(?:\b|_)(?:{_WORDS})["\']?\s+["\']?'
            r'(?=[^\s\d]{0,19}\d|[^\s"\',;]{20}))[^\s"\',;]+',
            re.I,
        ),
        rf'\1{MASK}',
    ),
    # A variable of an environment, such as DB_PASS=value.
    (
        re.compile(
            r'(\b\w*(?:AUTH|COOKIE|KEY|PASS|PASSPHRASE|PIN|PSK|SECRET|TOKEN)'
            r'["\']?=["\']?)[^\s"\',;]+'
        ),
        rf'\1{MASK}',
    ),
    # oslo.utils masks it only with quotes.
    (
        re.compile(
            r'((?:\b|_)(?:password|passphrase|token)\s*:\s*)[^\s"\',;]+', re.I
        ),
        rf'\1{MASK}',
    ),
    # With words that mean something else in a sentence.
    (
        re.compile(
            r'((?:\s|^)--?(?:key|pass|pin|auth|cookie)[= ]["\']?)'
            r'[^\s"\',;]+',
            re.I,
        ),
        rf'\1{MASK}',
    ),
)

# What oslo.config says of a line that it cannot read has the line in it.
_LINE = re.compile(r'(\bat .*?:\d+), .*', re.S)


def masked(value: Any) -> Any:
    """Mask what looks like a secret in a value for JSON.

    These are the values of keys such as password, secret or token, the user,
    password, query and fragment of a URL, and keys and tokens by their form.
    Texts that contain JSON are masked in the same way.
    """
    if isinstance(value, dict):
        return {key: _of_key(str(key), each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [
            MASK if _is_value(before, each) else masked(each)
            for before, each in zip([None, *value], value, strict=False)
        ]
    if isinstance(value, str):
        return _text(value)
    return value


def of_field(field: str, value: Any) -> Any:
    """Mask what looks like a secret in the value of a field.

    :param field: its name, such as ``env`` or ``hooks.env``
    :returns: the masked value. Of a longer one only the first 20,000
        characters are kept, as a text: see of_error()
    """
    if _ENVIRONMENT.search(field) and not isinstance(value, str):
        return _of_key(field, value)
    text = value if isinstance(value, str) else repr(value)
    return masked(value) if len(text) <= _SEARCHED else of_error(text)


def of_error(text: str) -> str:
    """Mask what looks like a secret in the text of an error.

    :returns: the masked text. Only its first 20,000 characters are kept,
        because the search for secrets takes time
    """
    return str(masked(text[:_SEARCHED]))


def _is_value(before: Any, item: Any) -> bool:
    """Whether an item of a list is the value of the secret option before."""
    return (
        isinstance(before, str)
        and isinstance(item, str)
        and not item.startswith('-')
        and _OPTION.fullmatch(before) is not None
    )


def is_secret_name(name: str) -> bool:
    """Whether the value of an option or key of such a name is a secret."""
    return _KEY.search(name) is not None


def without_value(err: BaseException, text: str) -> str:
    """Take values of options out of an error of oslo.config.

    A "$" in a value begins the name of an option, so an error that there is no
    such option may quote the end of a password.

    :param text: the text of the error
    :returns: the text, as it is if it is of another library
    """
    names = [each.__name__ for each in type(err).__mro__]
    if 'ParseError' in names or 'ConfigFileParseError' in names:
        return without_line(text)
    if 'TemplateSubstitutionError' in names or 'NoSuchOptError' in names:
        return (
            'there is no such option. It may be a "$" in the value of another '
            'option: write "$$" for a "$" that is a character. os-acc doctor '
            'names the option'
        )
    if 'ConfigSourceValueError' in names and (found := _VALUE.match(text)):
        path = _DETAIL.search(text)
        place = f' in {path[1]}' if path else ''
        reason = text.rpartition(' is not valid: ')[2]
        if is_secret_name(found[1]):
            reason = 'its value is invalid. It is secret, so it is not shown'
        return f'option {found[1]}{place}: {reason}'
    return text


_VALUE = re.compile(r'Value for option (\S+)')
_DETAIL = re.compile(r"detail='([^']+)'")


def without_line(text: str) -> str:
    """Cut the line of a file out of an error of oslo.config."""
    return _LINE.sub(r'\1 (the line is left out)', text)


def _of_key(key: str, value: Any) -> Any:
    if is_secret_name(key) and value and not isinstance(value, bool):
        return MASK
    if _ENVIRONMENT.search(key):
        # The name of a variable does not tell whether its value is a secret.
        if isinstance(value, dict):
            return dict.fromkeys(value, MASK)
        if isinstance(value, list | tuple):
            return [_variable(each) for each in value]
    return masked(value)


def _variable(item: Any) -> Any:
    name, equals, _ = str(item).partition('=')
    return f'{name}={MASK}' if equals else MASK


def _text(text: str) -> str:
    if text[:1] in ('{', '['):
        try:
            return json.dumps(masked(json.loads(text)))
        except (ValueError, RecursionError):
            pass
    text = _URL.sub(_without_secrets, _without_named(text))
    for pattern, replacement in _TEXTS:
        text = pattern.sub(replacement, text)
    # Its import takes 0.1 s, and most processes have no error to describe.
    from oslo_utils import strutils

    return strutils.mask_password(text, MASK)


def _without_secrets(url: re.Match[str]) -> str:
    """Mask the user and password, the query and the fragment of a URL."""
    scheme, rest = url.groups()
    # The password may contain "/" and "@", and more URLs may follow.
    user, at, rest = rest.rpartition('@')
    if at:
        scheme += f'{_masked_part(user)}@'
    if (end := re.search('[?#]', rest)) and end.end() < len(rest):
        rest = rest[: end.end()] + _masked_part(rest[end.end() :])
    return scheme + rest


def _masked_part(part: str) -> str:
    return part if part == LEFT_OUT else MASK


def _without_named(text: str) -> str:
    """Mask values by the names before them: "password": "X", password = X.

    The text need not be valid JSON, and it may end within a value.
    """
    parts, done = [], 0
    while found := _NAMED.search(text, done):
        start = found.end()
        end = _end_of_value(text, found) if _names_secret(found) else None
        if end is None:
            # The value may be a name itself.
            end = found.end('name')
            parts.append(text[done:end])
        else:
            quote = _QUOTE.match(text, start)
            parts.append(text[done : quote.end() if quote else start])
            parts.append(MASK)
        done = end
    return ''.join([*parts, text[done:]])


def _names_secret(found: re.Match[str]) -> bool:
    name, quoted = found['name'], bool(found['quote'])
    if found['between'] == ',':
        return quoted and _OPTION.fullmatch(name) is not None
    if name.startswith('-'):
        return _OPTION.fullmatch(name) is not None
    if _ENVIRONMENT.search(name):
        return quoted
    return (_KEY if quoted else _UNQUOTED).search(name) is not None


def _end_of_value(text: str, found: re.Match[str]) -> int | None:
    """Where a value ends; None if it is not the value of a secret."""
    start = found.end()
    if quote := _QUOTE.match(text, start):
        return _end_of_quoted(text, quote)
    if text[start] in '[{':
        return _end_of_brackets(text, start)
    if _NOTHING.match(text, start):
        return None
    # Only the last characters: the line may be long.
    first = max(0, found.start() - 80)
    _, newline, indent = text[first : found.start()].rpartition('\n')
    at_line = not indent.strip() and (newline or not first)
    if found['between'] == '=' and at_line:
        # A line of a file of options: its value has blanks and quotes.
        end = text.find('\n', start)
        return len(text) if end < 0 else end
    match = _WORD_END.search(text, start)
    return match.start() if match and match.start() > start else None


def _end_of_quoted(text: str, quote: re.Match[str]) -> int:
    """Where a text in quotes ends, without the last quote."""
    end = text.find(quote[0], quote.end())
    while end > 0 and text[end - 1] == '\\':
        end = text.find(quote[0], end + 1)
    return len(text) if end < 0 else end


def _end_of_brackets(text: str, start: int) -> int:
    """Where a list or an object ends, with its last bracket."""
    depth, place = 0, start
    while found := _BRACKET.search(text, place):
        if found[0] not in ('[', ']', '{', '}'):
            place = _end_of_quoted(text, found) + len(found[0])
            continue
        depth += 1 if found[0] in '[{' else -1
        place = found.end()
        if not depth:
            return place
    return len(text)

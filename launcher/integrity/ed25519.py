"""Ed25519 verification (RFC 8032, section 5.1.7), with whole numbers of Python.

Only public data passes through here, so nothing needs to take constant time. Stricter than the RFC asks: encodings of
points must be canonical, and neither the key nor R may be of small order, since a key of small order accepts
signatures of every message. The equation is the one without cofactor.
"""

from __future__ import annotations

import hashlib
from typing import Final

KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64

_P: Final = 2**255 - 19
_ORDER: Final = 2**252 + 27742317777372353535851937790883648493
_D: Final = -121665 * pow(121666, -1, _P) % _P
_SQRT_MINUS_1: Final = pow(2, (_P - 1) // 4, _P)

# Extended coordinates (X, Y, Z, T) with x = X/Z, y = Y/Z, x*y = T/Z on -x^2 + y^2 = 1 + d x^2 y^2.
_Point = tuple[int, int, int, int]
_IDENTITY: Final[_Point] = (0, 1, 1, 0)


def verify(key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether this is a signature of the message by the owner of the key.

    Args:
        key: 32 bytes.
        signature: 64 bytes, R and S.
    """
    if len(key) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    commitment, scalar = signature[:32], int.from_bytes(signature[32:], "little")
    if scalar >= _ORDER:  # otherwise every signature has a second form
        return False
    public, point = _decode(key), _decode(commitment)
    if public is None or point is None or _is_small(public) or _is_small(point):
        return False
    digest = hashlib.sha512(commitment + key + message).digest()
    challenge = int.from_bytes(digest, "little") % _ORDER
    return _encode(_combine(scalar, challenge, _negate(public))) == commitment


def _decode(data: bytes) -> _Point | None:
    """The point with this canonical encoding: y with the lowest bit of x on top."""
    number = int.from_bytes(data, "little")
    sign, y = number >> 255, number & (2**255 - 1)
    if y >= _P:
        return None
    square = y * y % _P
    u, v = (square - 1) % _P, (_D * square + 1) % _P
    x = u * pow(v, 3, _P) * pow(u * pow(v, 7, _P), (_P - 5) // 8, _P) % _P
    if v * x * x % _P != u:
        x = x * _SQRT_MINUS_1 % _P
        if v * x * x % _P != u:
            return None  # no point has this y
    if x == 0 and sign == 1:
        return None
    if x & 1 != sign:
        x = _P - x
    return x, y, 1, x * y % _P


def _encode(point: _Point) -> bytes:
    x, y, z, _ = point
    inverse = pow(z, -1, _P)
    return (y * inverse % _P | (x * inverse % _P & 1) << 255).to_bytes(32, "little")


def _add(left: _Point, right: _Point) -> _Point:
    x1, y1, z1, t1 = left
    x2, y2, z2, t2 = right
    a = (y1 - x1) * (y2 - x2) % _P
    b = (y1 + x1) * (y2 + x2) % _P
    c = 2 * _D * t1 * t2 % _P
    d = 2 * z1 * z2 % _P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _double(point: _Point) -> _Point:
    x, y, z, _ = point
    a, b, c = x * x % _P, y * y % _P, 2 * z * z % _P
    h = a + b
    e = h - (x + y) * (x + y)
    g = a - b
    f = c + g
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _negate(point: _Point) -> _Point:
    x, y, z, t = point
    return -x % _P, y, z, -t % _P


def _is_small(point: _Point) -> bool:
    """Whether eight times the point is the identity."""
    x, y, z, _ = _double(_double(_double(point)))
    return x % _P == 0 and (y - z) % _P == 0


def _combine(scalar: int, challenge: int, point: _Point) -> _Point:
    """scalar * B + challenge * point, both at once from the highest bit down."""
    base = _base()
    table = (None, base, point, _add(base, point))
    result = _IDENTITY
    for bit in range(max(scalar.bit_length(), challenge.bit_length()) - 1, -1, -1):
        result = _double(result)
        term = table[(scalar >> bit & 1) | (challenge >> bit & 1) << 1]
        if term is not None:
            result = _add(result, term)
    return result


def _base() -> _Point:
    """The point with y = 4/5 and even x."""
    point = _decode((4 * pow(5, -1, _P) % _P).to_bytes(32, "little"))
    if point is None:
        raise ArithmeticError("the base point does not lie on the curve")
    return point

"""A signature that is accepted though it was not made for these bytes by this key, or refused though it was."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.errors import InternalError, TrustError
from launcher.integrity import ed25519
from launcher.integrity.publisher import read_publisher
from launcher.integrity.signature import KeyUse, parse_public_key, parse_signature, verify_signature
from tests.support.releases import Signer

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493

# RFC 8032, section 7.1: TEST 1, 2, 3 and SHA(abc): secret key, message, signature.
VECTORS = [
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24"
        "655141438e7a100b",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aee"
        "b00d291612bb0c00",
    ),
    (
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28d"
        "c027beceea1ec40a",
    ),
    (
        "833fe62409237b9d62ec77587520911e9a759cec1d19755b7da901b96dca3d42",
        "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e"
        "2a9ac94fa54ca49f",
        "dc2a4459e7369633a52b1bf277839a00201009a3efbf3ecb69bea2186c26b58909351fc9ac90b3ecfdfbc7c66431e0303dca179c138ac17a"
        "d9bef1177331a704",
    ),
]


def oracle(key: bytes, message: bytes, signature: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def small(number: int) -> bytes:
    return number.to_bytes(32, "little")


@pytest.mark.parametrize(("secret", "message", "signature"), VECTORS)
def test_vectors_of_the_rfc(secret: str, message: str, signature: str) -> None:
    key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(secret)).public_key().public_bytes_raw()
    assert ed25519.verify(key, bytes.fromhex(message), bytes.fromhex(signature))
    assert not ed25519.verify(key, bytes.fromhex(message) + b"x", bytes.fromhex(signature))


def test_every_flipped_bit_of_a_signature_and_key_is_refused() -> None:
    secret = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    key, message = secret.public_key().public_bytes_raw(), b"message"
    signature = secret.sign(message)
    assert ed25519.verify(key, message, signature)
    for bit in range(0, 512, 3):
        broken = bytearray(signature)
        broken[bit // 8] ^= 1 << bit % 8
        assert not ed25519.verify(key, message, bytes(broken)), bit
    for bit in range(0, 256, 3):
        broken = bytearray(key)
        broken[bit // 8] ^= 1 << bit % 8
        assert not ed25519.verify(bytes(broken), message, signature), bit


@pytest.mark.parametrize("length", [0, 1, 31, 33, 63, 65])
def test_wrong_lengths_are_refused(length: int) -> None:
    secret = Ed25519PrivateKey.from_private_bytes(bytes(32))
    key, signature = secret.public_key().public_bytes_raw(), secret.sign(b"")
    assert not ed25519.verify(bytes(length), b"", signature)
    assert not ed25519.verify(key, b"", (signature * 2)[:length])


def test_second_form_of_a_signature_is_refused() -> None:
    secret = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    key, signature = secret.public_key().public_bytes_raw(), secret.sign(b"m")
    scalar = int.from_bytes(signature[32:], "little")
    for factor in range(1, 16):
        if scalar + factor * ORDER < 2**256:
            assert not ed25519.verify(key, b"m", signature[:32] + small(scalar + factor * ORDER))
    assert not ed25519.verify(key, b"m", signature[:32] + small(ORDER))


# Every encoding of a point of order 1, 2, 4 or 8, canonical or not; y of the points of order 8 from the curve equation.
def small_order_encodings() -> list[bytes]:
    d = -121665 * pow(121666, -1, P) % P
    root = pow(2, (P - 1) // 4, P)
    # x = +-i*y at order 8: doubling gives y = 0; with x^2 = -y^2 the curve says 2 y^2 = 1 - d y^4.
    discriminant = pow(4 + 4 * d, (P + 3) // 8, P)
    if pow(discriminant, 2, P) != (4 + 4 * d) % P:
        discriminant = discriminant * root % P
    found = {0, 1, P - 1}
    for sign in (1, -1):
        square = (-2 + sign * discriminant) * pow(2 * d, -1, P) % P
        y = pow(square, (P + 3) // 8, P)
        if pow(y, 2, P) != square:
            y = y * root % P
        if pow(y, 2, P) == square:
            found |= {y, P - y}
    assert len(found) == 5
    raw = found | {y + P for y in found if y + P < 2**255}
    return [small(y | sign << 255) for y in sorted(raw) for sign in (0, 1)]


@pytest.mark.parametrize("key", small_order_encodings(), ids=lambda key: key.hex()[:8] + key.hex()[-2:])
def test_key_of_small_order_signs_nothing(key: bytes) -> None:
    # With A of order n, R = -k*A and S = 0 hold for one message in n: tried with the R that are of small order.
    for point in small_order_encodings():
        for number in range(4):
            assert not ed25519.verify(key, b"%d" % number, point + bytes(32))


BASE = bytes.fromhex("58" + "66" * 31)


@pytest.mark.parametrize("point", [(small(1), bytes(32)), (BASE, small(1))], ids=["small R", "usual R"])
def test_key_of_small_order_is_an_attack_that_works_elsewhere(point: tuple[bytes, bytes]) -> None:
    """The other implementation takes these for signatures of any message by the key that is the identity."""
    commitment, scalar = point
    assert oracle(small(1), b"any message", commitment + scalar)
    assert not ed25519.verify(small(1), b"any message", commitment + scalar)


def test_commitment_of_small_order_is_refused_though_the_equation_holds() -> None:
    secret = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    key, commitment = secret.public_key().public_bytes_raw(), small(1)
    exponent = int.from_bytes(hashlib.sha512(bytes(range(32))).digest()[:32], "little")
    exponent = exponent & ((1 << 254) - 8) | 1 << 254
    challenge = int.from_bytes(hashlib.sha512(commitment + key + b"m").digest(), "little") % ORDER
    signature = commitment + small(challenge * exponent % ORDER)
    assert oracle(key, b"m", signature)
    assert not ed25519.verify(key, b"m", signature)


def test_points_have_one_encoding() -> None:
    for y in range(19):
        if ed25519._decode(small(y)) is not None:
            assert ed25519._decode(small(y + P)) is None
    for y in (1, P - 1):  # here x is 0, which has no sign
        assert ed25519._decode(small(y)) is not None
        assert ed25519._decode(small(y | 1 << 255)) is None


@pytest.mark.parametrize("value", [P, P + 1, P + 3, P + 9, 2**255 - 1])
def test_encodings_that_are_not_canonical_are_refused(value: int) -> None:
    secret = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    signature = secret.sign(b"m")
    assert not ed25519.verify(small(value), b"m", signature)
    assert not ed25519.verify(secret.public_key().public_bytes_raw(), b"m", small(value) + signature[32:])


@given(st.binary(max_size=200), st.binary(min_size=32, max_size=32), st.integers(0, 2**16))
@settings(max_examples=40, deadline=None)
def test_same_answer_as_another_implementation(message: bytes, seed: bytes, choice: int) -> None:
    secret = Ed25519PrivateKey.from_private_bytes(seed)
    key, signature = secret.public_key().public_bytes_raw(), secret.sign(message)
    mutable = bytearray(key + signature)
    if choice % 4:
        mutable[choice % len(mutable)] ^= 1 << choice % 7
    key, signature = bytes(mutable[:32]), bytes(mutable[32:])
    assert ed25519.verify(key, message, signature) is oracle(key, message, signature)


def test_random_points_are_refused_as_elsewhere() -> None:
    source = random.Random(7)
    for _ in range(40):
        key, signature = source.randbytes(32), source.randbytes(63) + b"\0"
        assert ed25519.verify(key, b"m", signature) is oracle(key, b"m", signature) is False


SIGNER = Signer.from_seed(1)
OTHER = Signer.from_seed(2)
DATA = b"the list of checksums\n"


def check(packet: bytes, data: bytes = DATA, *signers: Signer) -> str:
    keys = [signer.public() for signer in signers or (SIGNER,)]
    return verify_signature(data, parse_signature(packet, where="x.minisig"), keys, where="x.minisig").comment


def test_signature_holds_and_shows_its_comment() -> None:
    assert check(SIGNER.sign(DATA, b"release 1.0.0")) == "release 1.0.0"
    assert check(SIGNER.sign(b""), b"") != ""


def test_file_with_crlf_holds() -> None:
    assert check(SIGNER.sign(DATA, b"c").replace(b"\n", b"\r\n")) == "c"


def test_comment_cannot_move_the_cursor() -> None:
    assert check(SIGNER.sign(DATA, b"a\x1b[2Jb\xff")) == "a\\x1b[2Jb\\ufffd".replace("\\ufffd", "\ufffd")


def test_every_changed_byte_is_refused_or_harmless() -> None:
    """All bytes of a .minisig in turn: only the untrusted comment may change, and it says nothing."""
    packet = SIGNER.sign(DATA)
    untrusted = packet.index(b"\n")
    for place in range(len(packet)):
        broken = packet[:place] + bytes([packet[place] ^ 1]) + packet[place + 1 :]
        prefix = len(b"untrusted comment: ")
        if prefix <= place < untrusted:
            assert check(broken)
            continue
        with pytest.raises(TrustError):
            check(broken)


def test_every_cut_is_refused() -> None:
    packet = SIGNER.sign(DATA)
    for length in range(len(packet) - 1):  # without the last LF it is still whole
        with pytest.raises(TrustError):
            check(packet[:length])


@pytest.mark.parametrize("data", [DATA + b"\n", DATA[:-1], b"", DATA.upper()])
def test_other_content_is_refused(data: bytes) -> None:
    with pytest.raises(TrustError) as caught:
        check(SIGNER.sign(DATA), data)
    assert (caught.value.slug, caught.value.exit_code) == ("signature-invalid", 8)


def test_unknown_key_is_named() -> None:
    with pytest.raises(TrustError) as caught:
        check(OTHER.sign(DATA))
    assert caught.value.slug == "signature-key-unknown"
    assert OTHER.public().name in caught.value.message
    assert SIGNER.public().name in caught.value.message


def test_key_that_borrows_an_id_is_refused() -> None:
    with pytest.raises(TrustError) as caught:
        check(Signer(OTHER.secret, SIGNER.identifier).sign(DATA))
    assert caught.value.slug == "signature-invalid"


def test_recovery_key_takes_over() -> None:
    keys = [SIGNER.public(), OTHER.public(KeyUse.RECOVERY)]
    found = verify_signature(DATA, parse_signature(OTHER.sign(DATA), where="x"), keys, where="x")
    assert found.key.use is KeyUse.RECOVERY


def test_legacy_signature_is_refused_though_it_is_right() -> None:
    with pytest.raises(TrustError) as caught:
        check(SIGNER.sign(DATA, legacy=True))
    assert caught.value.slug == "signature-legacy"


def test_legacy_signature_renamed_to_prehashed_is_refused() -> None:
    lines = SIGNER.sign(DATA, legacy=True).split(b"\n")
    lines[1] = base64.b64encode(b"ED" + base64.b64decode(lines[1])[2:])
    with pytest.raises(TrustError, match="does not match"):
        check(b"\n".join(lines))


def test_comment_of_another_signature_is_refused() -> None:
    first, second = SIGNER.sign(DATA, b"1.0.0").split(b"\n"), SIGNER.sign(DATA + b"x", b"2.0.0").split(b"\n")
    with pytest.raises(TrustError, match="trusted comment"):
        check(b"\n".join(first[:2] + second[2:]))


@pytest.mark.parametrize("line", [1, 3])
def test_second_spelling_of_the_base64_is_refused(line: int) -> None:
    lines = SIGNER.sign(DATA).split(b"\n")
    text = lines[line].rstrip(b"=")
    padding = lines[line][len(text) :]
    spellings = [
        text[:-1] + bytes([last]) + padding for last in b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz01"
    ]
    same = [
        other
        for other in spellings
        if other != lines[line] and base64.b64decode(other) == base64.b64decode(lines[line])
    ]
    assert same
    for other in same:
        with pytest.raises(TrustError):
            check(b"\n".join((*lines[:line], other, *lines[line + 1 :])))


@pytest.mark.parametrize("extra", [b"\n", b"more\n", b"\n\n\n"])
def test_lines_after_the_signature_are_refused(extra: bytes) -> None:
    with pytest.raises(TrustError, match="four lines"):
        check(SIGNER.sign(DATA) + extra)


def test_too_large_file_is_refused() -> None:
    with pytest.raises(TrustError):
        check(SIGNER.sign(DATA, b"x" * 20000))


@given(st.binary(max_size=400))
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_a_trust_error(data: bytes) -> None:
    with pytest.raises(TrustError):
        check(data)


@pytest.mark.parametrize(
    "text", ["", "RWQ", "!" * 56, "A" * 56, SIGNER.public_text()[:-1], SIGNER.public_text() + "\n"]
)
def test_malformed_public_key(text: str) -> None:
    with pytest.raises(TrustError) as caught:
        parse_public_key(text, KeyUse.RELEASE)
    assert caught.value.slug == "public-key-invalid"


def test_minisign_itself_agrees(tmp_path: Path) -> None:
    """Both ways where minisign is installed: it accepts what the tests sign, we accept what it signs."""
    program = shutil.which("minisign")
    if program is None:
        pytest.skip("minisign is not installed")

    def run(*words: str, given: str = "") -> None:
        subprocess.run([program, *words], cwd=tmp_path, input=given, text=True, check=True, capture_output=True)

    (tmp_path / "list").write_bytes(DATA)
    (tmp_path / "list.minisig").write_bytes(SIGNER.sign(DATA))
    run("-Vm", "list", "-P", SIGNER.public_text())
    run("-G", "-W", "-p", "k.pub", "-s", "k.key")
    run("-Sm", "list", "-s", "k.key", "-t", "by minisign")
    key = parse_public_key((tmp_path / "k.pub").read_text().splitlines()[1], KeyUse.RELEASE)
    packet = parse_signature((tmp_path / "list.minisig").read_bytes(), where="x")
    assert verify_signature(DATA, packet, [key], where="x").comment == "by minisign"


def publisher_file(tmp_path: Path, **changes: object) -> Path:
    document = {"schema": "mindnano.publisher", "version": 1, "repository": None, "keys": [], **changes}
    path = tmp_path / "publisher.json"
    path.write_text(json.dumps(document))
    return path


def test_committed_publisher_is_nobody() -> None:
    found = read_publisher()
    assert found.repository is None
    assert found.keys == ()


def test_publisher_with_two_keys(tmp_path: Path) -> None:
    keys = [
        {"use": "release", "key": SIGNER.public_text()},
        {"use": "recovery", "key": OTHER.public_text()},
    ]
    found = read_publisher(publisher_file(tmp_path, repository="org/name", keys=keys))
    assert found.repository == "org/name"
    assert [key.use for key in found.keys] == [KeyUse.RELEASE, KeyUse.RECOVERY]


@pytest.mark.parametrize(
    "changes",
    [
        {"repository": "no slash"},
        {"repository": "../x"},
        {"keys": [{"use": "other", "key": SIGNER.public_text()}]},
        {"keys": [{"use": "release", "key": "RW"}]},
        {"keys": [{"use": "release", "key": SIGNER.public_text()}] * 2},
        {"keys": [{"use": "release"}]},
        {"keys": None},
        {"version": 2},
        {"unknown": 1},
    ],
)
def test_malformed_publisher_is_an_internal_error(tmp_path: Path, changes: dict[str, object]) -> None:
    with pytest.raises(InternalError) as caught:
        read_publisher(publisher_file(tmp_path, **changes))
    assert caught.value.slug == "publisher-invalid"


def test_missing_publisher_is_an_internal_error(tmp_path: Path) -> None:
    with pytest.raises(InternalError):
        read_publisher(tmp_path / "none.json")

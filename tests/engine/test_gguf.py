"""Headers of model files: read as they are, and files that are damaged or made to harm, refused."""

from __future__ import annotations

import ctypes
import random
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import gguf as reference
import numpy as np
import pytest

from server.engine import Engine, EngineConfig, EngineError, Vocab
from server.engine.llama import C
from server.engine.memory.gguf import BLOCKS, Array, GgufError, read
from server.engine.memory.hparams import HParams
from server.engine.memory.plan import Device, Machine, plan
from server.engine.process import WorkerProcess
from tests.engine.sparse import header, pair, tensor, text

MACHINE = Machine((Device("GPU", 2**30),), 2**34, 2**33)


@pytest.fixture
def refusal(tmp_path: Path) -> Callable[[bytes], str]:
    """Why a file of this content is refused."""

    def refused(content: bytes) -> str:
        file = tmp_path / "hostile.gguf"
        file.write_bytes(content)
        with pytest.raises(GgufError) as caught:
            read(file)
        assert str(tmp_path) not in caught.value.reason
        return caught.value.reason

    return refused


@pytest.mark.slow
def test_a_real_header_is_what_another_reader_makes_of_it(smollm2: Path) -> None:
    ours, theirs = read(smollm2), reference.GGUFReader(smollm2)
    assert {t.name: (t.shape, t.type, t.bytes) for t in ours.tensors} == {
        t.name: (tuple(map(int, t.shape)), int(t.tensor_type), t.n_bytes) for t in theirs.tensors
    }
    for key, field in theirs.fields.items():
        if key.startswith("GGUF."):
            continue
        value = ours.metadata[key]
        if isinstance(value, Array):
            assert value.count == len(field.data)
        else:
            assert value == field.contents()
    assert len(ours.metadata) == len(theirs.fields) - 3
    assert (ours.architecture, ours.size) == ("llama", smollm2.stat().st_size)


def test_the_vocabularies_that_llama_cpp_ships_are_read(sdist: Path) -> None:
    files = sorted((sdist / "vendor/llama.cpp/models").glob("ggml-vocab-*.gguf"))
    assert len(files) > 10
    for file in files:
        found = read(file)
        tokens = found.metadata["tokenizer.ggml.tokens"]
        assert found.architecture and isinstance(tokens, Array) and tokens.count > 1000 and tokens.values is None


def test_the_types_are_llama_cpps() -> None:
    lib = ctypes.CDLL(str(Path(C._lib._name).with_name("libggml-base.so")))
    lib.ggml_type_size.restype = ctypes.c_size_t
    lib.ggml_blck_size.restype = ctypes.c_int64
    for kind, block in BLOCKS.items():
        assert (lib.ggml_blck_size(kind), lib.ggml_type_size(kind)) == block
    for kind, block in reference.GGML_QUANT_SIZES.items():
        assert kind == reference.GGMLQuantizationType.Q8_1 or BLOCKS[kind] == block


def test_a_split_model_is_the_sum_of_its_parts(tmp_path: Path) -> None:
    def part(number: int, count: int = 2, name: str | None = None) -> bytes:
        pairs = [pair("split.count", 2, struct.pack("<H", count)), pair("split.no", 2, struct.pack("<H", number))]
        content = header(1, 2) + b"".join(pairs) + tensor(name or f"t{number}")
        return content + bytes(-len(content) % 32 + 128)

    first, second = tmp_path / "m-00001-of-00002.gguf", tmp_path / "m-00002-of-00002.gguf"
    first.write_bytes(part(0))
    with pytest.raises(GgufError, match="a part of it, cannot be read"):
        read(first)
    second.write_bytes(part(1))
    found = read(first)
    assert [tensor.name for tensor in found.tensors] == ["t0", "t1"]
    assert found.size == len(part(0)) + len(part(1))
    second.write_bytes(part(1, name="t0"))
    with pytest.raises(GgufError, match="same name"):
        read(first)
    first.write_bytes(part(0, count=60_000))
    with pytest.raises(GgufError, match="no first part"):
        read(first)


def test_what_is_claimed_is_held_against_the_file(refusal: Callable[[bytes], str]) -> None:
    huge, one = 2**63, header(1, 0)
    for content, words in {
        b"": "ends early",
        b"GGUF": "ends early",
        b"GGML" + header()[4:]: "no GGUF",
        header(version=1): "version",
        header(version=3 << 24): "version",
        header(huge, 0): "more tensors",
        header(0, huge): "more metadata pairs",
        header(0, 1): "more metadata pairs",
        header(5, 0) + tensor("t"): "more tensors",
        header(0, 1) + struct.pack("<Q", huge) + bytes(20): "too long",
        header(0, 1) + struct.pack("<Q", 60_000) + bytes(20): "ends early",
        header(0, 1) + pair("", 4, bytes(4)): "empty metadata key",
        header(0, 2) + pair("k", 4, bytes(4)) * 2: "one twice",
        header(0, 1) + pair("k", 99, bytes(8)): "unknown type",
        header(0, 1) + pair("k", 9, struct.pack("<IQ", 9, 1) + bytes(20)): "array of an unknown type",
        header(0, 1) + pair("k", 9, struct.pack("<IQ", 4, huge)): "more numbers",
        header(0, 1) + pair("k", 9, struct.pack("<IQ", 0, 2**40)): "more numbers",
        header(0, 1) + pair("k", 9, struct.pack("<IQ", 8, 2**40)): "more texts",
        header(0, 1) + pair("k", 9, struct.pack("<IQQ", 8, 1, huge)): "ends early",
        header(0, 1) + pair("k", 9, struct.pack("<IQQ", 8, 2, 2**64 - 8)) + bytes(8): "ends early",
        header(0, 1) + pair("k", 8, struct.pack("<Q", 2**40)): "too long",
        header(0, 1) + pair("general.alignment", 4, struct.pack("<I", 0)): "alignment",
        header(0, 1) + pair("general.alignment", 4, struct.pack("<I", 24)): "alignment",
        header(0, 1) + pair("general.alignment", 4, struct.pack("<I", 2**31)): "alignment",
        header(0, 1) + pair("general.alignment", 8, text("x")): "alignment",
        one + tensor("t" * 64): "too long",
        header(2, 0) + tensor("t") * 2 + bytes(512): "same name",
        one + tensor("t", (1,) * 5): "too many dimensions",
        one + tensor("t", kind=4): "unknown type",
        one + tensor("t", (33,), kind=2): "impossible shape",
        one + tensor("t", (2**33, 2**33)): "impossible shape",
        one + tensor("t", (2**64 - 1,)): "impossible shape",
        one + tensor("t", offset=32): "does not lie",
        one + tensor("t", (2**40,)): "ends before its last tensor",
        one + tensor("t"): "ends before its last tensor",
    }.items():
        assert words in refusal(content), content[:60]


def tiny(path: Path, changes: Mapping[str, int | str | list[object]] | None = None) -> Path:
    """A model of 268 tokens that llama.cpp loads, with some of its metadata changed."""
    writer = reference.GGUFWriter(path, "llama")
    width = 32
    writer.add_context_length(64)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(width)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("llama")
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abcdefgh"]
    kinds = [reference.TokenType.UNKNOWN, *[reference.TokenType.CONTROL] * 2]
    kinds += [reference.TokenType.BYTE] * 256 + [reference.TokenType.NORMAL] * 9
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for key, value in (changes or {}).items():
        writer.kv_data[0].pop(key, None)
        add = {int: writer.add_uint32, str: writer.add_string, list: writer.add_array}[type(value)]
        add(key, value)
    random_ = np.random.default_rng(1)
    for name in ("token_embd", "output"):
        writer.add_tensor(f"{name}.weight", random_.standard_normal((len(tokens), width), np.float32))
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{name}.weight", random_.standard_normal((width, width), np.float32))
    for name in ("attn_norm", "ffn_norm"):
        writer.add_tensor(f"blk.0.{name}.weight", np.ones(width, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_every_truncation_is_refused(tmp_path: Path, refusal: Callable[[bytes], str]) -> None:
    content = tiny(tmp_path / "tiny.gguf").read_bytes()
    whole = read(tmp_path / "tiny.gguf")
    data = sum(-(-tensor.bytes // 32) * 32 for tensor in whole.tensors)
    for length in [*range(0, len(content) - data, 31), *range(len(content) - data, len(content) - 31, 4999)]:
        assert refusal(content[:length])


def test_no_damage_is_more_than_a_refusal(tmp_path: Path) -> None:
    """Bits flipped and counts blown up anywhere in the header: read and planned for, or refused, in little time and
    memory."""
    original = tiny(tmp_path / "tiny.gguf").read_bytes()
    dice = random.Random(7)
    damaged = tmp_path / "damaged.gguf"
    refused = 0
    whole = read(tmp_path / "tiny.gguf")
    end = len(original) - sum(tensor.bytes for tensor in whole.tensors)
    for _ in range(1500):
        content = bytearray(original)
        at = dice.randrange(end - 8)
        if dice.random() < 0.5:
            content[at] ^= 1 << dice.randrange(8)
        else:
            content[at : at + 8] = struct.pack("<Q", dice.choice([2**64 - 1, 2**63, 2**40, 2**32, 2**31, 0]))
        damaged.write_bytes(content)
        try:
            shape = HParams.of(read(damaged))
            made = plan(shape, MACHINE, EngineConfig(""))
            assert 0 < made.kv_cells < 2**70 and made.host.used >= 0
        except GgufError as error:
            assert error.reason.isascii()
            refused += 1
    assert 500 < refused < 1500


def test_a_vocabulary_is_read_from_no_refused_file(tmp_path: Path) -> None:
    file = tiny(tmp_path / "tiny.gguf")
    assert Vocab.load(str(file)).size == 268
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(EngineError, match="more numbers"):
        Vocab.load(str(file))


HOSTILE: dict[str, tuple[str, int | str | list[object]]] = {
    "layers": ("llama.block_count", 2**31),
    "missing layers": ("llama.block_count", 3),
    "no heads": ("llama.attention.head_count", 0),
    "heads": ("llama.attention.head_count", 2**31 - 1),
    "width": ("llama.embedding_length", 2**31),
    "experts": ("llama.expert_count", 2**20),
    "rope": ("llama.rope.dimension_count", 2**31),
    "scores": ("tokenizer.ggml.scores", [1.0]),
    "types": ("tokenizer.ggml.token_type", [1]),
    "tokens": ("tokenizer.ggml.tokens", [1, 2, 3]),
    "one token for all": ("tokenizer.ggml.tokens", ["a"] * 268),
    "tokenizer": ("tokenizer.ggml.model", "nonsense"),
    "architecture": ("general.architecture", "nonsense"),
}
"""Files of the right form whose contents llama.cpp cannot use: over three of them it ends its process."""


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
async def test_contents_that_llama_cpp_cannot_use_are_an_error_of_the_engine(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WorkerProcess, "repack", False)  # a worker that dies is not tried again without
    file = tiny(tmp_path / "hostile.gguf", dict([HOSTILE[name]]))
    read(file)
    with pytest.raises(EngineError, match=r"cannot be loaded|died while it loaded|the model file's") as caught:
        await Engine.start(EngineConfig(str(file), slots=1))
    assert str(tmp_path) not in caught.value.reason


async def test_the_undamaged_model_is_served(tmp_path: Path) -> None:
    engine = await Engine.start(EngineConfig(str(tiny(tmp_path / "tiny.gguf")), slots=1))
    assert engine.info.context_length == 64
    await engine.close()

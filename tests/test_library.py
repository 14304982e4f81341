"""The commands about models: the examples in docs/guide.md as they stand, against a server that plays the hub."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.cli.main import main
from server.engine.memory import device
from server.engine.memory.plan import Device, Machine
from tests.engine import sparse
from tests.hub_server import Hub, playing
from tests.readme import Block, blocks, runs

GIB = 2**30


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """All that a command that succeeds prints."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    out, err = capsys.readouterr()
    assert not ended.value.code, err
    return err + out


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, smollm2: Path) -> Iterator[Hub]:
    """It has the model that the guide's example names; the machine is an imagined one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(device, "machine", lambda: Machine((), 32 * GIB, 24 * GIB))
    with playing(tmp_path, monkeypatch) as hub:
        (hub.repo, file) = re.findall(r'huggingface = "(.+):(.+)"', blocks("docs/guide.md")["Models", 1].text)[0]
        hub.files = {file: smollm2.read_bytes()}
        yield hub


@pytest.mark.slow
@runs("Models", 1, 2, file="docs/guide.md")
def test_the_guides_examples(
    examples: tuple[Block, ...], hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configuration, transcript = examples
    models = tmp_path / "models.toml"
    models.write_text(configuration.text, encoding="utf-8")
    exchanges = transcript.exchanges()
    assert [command.split()[:2] for command, _ in exchanges] == [["nap-llm", x] for x in ("pull", "list", "show", "rm")]
    for command, printed in exchanges:
        said = run(capsys, *command.split()[1:], "--models", str(models))
        expected = printed.replace("/home/you/.cache/huggingface", str(tmp_path))
        pattern = ".*".join(re.escape(part) for part in expected.split("…"))
        assert re.fullmatch(pattern, said, re.DOTALL), said


def test_plans_are_printed_for_every_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sparse.llama(tmp_path / "dense.gguf")
    sparse.qwen3moe(tmp_path / "mixture.gguf")
    sparse.projector(tmp_path / "projector.gguf")
    sparse.llama(tmp_path / "small.gguf", layers=2, width=256, inner=256)
    models = tmp_path / "models.toml"
    models.write_text(
        '[models.dense]\nmodel = "dense"\nsource.path = "dense.gguf"\nmmproj.path = "projector.gguf"\n'
        'draft.path = "small.gguf"\n'
        '[models.mixture]\nmodel = "mixture"\nsource.path = "mixture.gguf"\n'
        '[models.missing]\nmodel = "missing"\nsource.path = "missing.gguf"\n'
    )
    gpu = Machine((Device("Imagined GPU", 12 * GIB),), 32 * GIB, 24 * GIB)
    monkeypatch.setattr(device, "machine", lambda: gpu)
    said = run(capsys, "models", "--plan", "--models", str(models))
    assert "33 layers on the GPU; 8 slots of" in said
    assert re.search(r"49 layers on the GPU, experts of \d+ layers on the CPU", said)
    share = r"Imagined GPU: weights [\d,.]+ MiB, KV cache [\d,.]+, compute [\d,.]+{}; [\d,.]+ of 12,288 free"
    assert len(re.findall(share.format(""), said)) == 1
    assert len(re.findall(share.format(r", drafts [\d,.]+"), said)) == 1
    assert len(re.findall(r"RAM: weights .*, images 256\.0, drafts [\d,.]+; ", said)) == 1
    assert "the experts of the first" in said and "there is no memory for more" in said
    assert "not here yet" in said
    assert "  plan  " not in run(capsys, "models", "--models", str(models))


def test_show_takes_a_file_and_says_what_is_wrong_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = sparse.llama(tmp_path / "dense.gguf", layers=2, width=256, inner=256, vocabulary=1000)
    said = run(capsys, "show", str(path))
    assert "llama, vocabulary ?" in said and "  format    none: " in said and "llama.block_count  2" in said
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(SystemExit) as ended:
        main(["show", str(path)])
    assert ended.value.code == 1
    assert "the model file claims more" in capsys.readouterr().err

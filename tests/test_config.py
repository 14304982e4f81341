"""What `models.toml` may say, and how what it may not is refused."""

from __future__ import annotations

import re
import tomllib
from dataclasses import MISSING, fields
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from server.config import (
    CapabilityLimits,
    Config,
    ConfigError,
    Limits,
    ModelConfig,
    ModelLimitsConfig,
    ModelSource,
    Route,
    ServerConfig,
    WheelFile,
    load_config,
)
from server.engine.sampling.params import Sampling
from tests.conftest import ROOT

MINIMAL = """
[models.one]
model = "exact-1"
source.path = "one.gguf"
"""

SHA256 = "0" * 64


def load(directory: Path, text: str) -> Config:
    file = directory / "models.toml"
    file.write_text(text, encoding="utf-8")
    return load_config(file)


def test_the_shipped_configuration_offers_smollm2(config: Config) -> None:
    (connection,) = config.connections
    assert connection.key == "smollm2"
    assert connection.model == "SmolLM2-135M-Instruct"
    assert connection.source.pypi is not None
    assert connection.source.pypi.version == "0.1.2"
    assert connection.source.pypi.sha256.startswith("b179c952")


def test_the_defaults(tmp_path: Path) -> None:
    config = load(tmp_path, MINIMAL)
    assert config.server.enabled
    assert config.server.deadline == 300
    assert config.server.allowed_hosts == ("localhost", "127.0.0.1", "::1")
    assert config.server.allowed_origins == ()
    assert config.server.owner_from == ()
    (connection,) = config.connections
    assert connection.name == "exact-1"
    assert connection.source == ModelSource(path=tmp_path.resolve() / "one.gguf")
    assert connection.mmproj is None and connection.draft is None
    assert connection.sampling == Sampling()
    assert connection.capabilities == CapabilityLimits()
    assert connection.template is None
    assert (connection.thinking, connection.reasoning_effort) == (None, None)
    assert (connection.reasoning_continuation, connection.system_messages) == ("auto", "separate")
    assert connection.temperature is None
    assert connection.supports == ModelLimitsConfig(None, None, True, 2.0, True, 0)
    assert config.routes == {}
    assert connection.unload_after == 1800


def test_everything_can_be_said(tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text("{{ messages }}", encoding="utf-8")
    (tmp_path / "kept").mkdir()
    config = load(
        tmp_path,
        f"""
        [server]
        enabled = false
        deadline = 1.5
        allowed_hosts = ["box.local", "192.168.0.2", "fe80::1"]
        allowed_origins = ["https://shell.example", "http://localhost:8080"]
        owner_from = ["172.17.0.0/16", "10.0.0.1"]
        cache_scope = "shared"
        artifacts = "kept"
        limits = {{ body_bytes = 1000, concurrent = 2, requests_per_minute = 0, queue = 0, max_tokens = 5 }}

        [models.b]
        name = "B"
        model = "b"
        context_length = 512
        slots = 2
        threads = 1
        gpu_layers = 0
        prefill_slowdown = 4
        unload_after = 0.5
        template = "chat.jinja"
        thinking = false
        reasoning_effort = "low"
        reasoning_continuation = "required"
        system_messages = "merge"
        temperature = 0.6
        source.pypi = {{ distribution = "a-b", version = "1.0", member = "a/b.gguf", sha256 = "{SHA256}" }}
        sampling = {{ temperature = 0, top_k = 1, top_p = 0.5, min_p = 0, repeat_penalty = 1.1, seed = 7 }}
        capabilities = {{ images = false, json = true, tools = true, tool_choice_modes = ["none", "auto"] }}

        [models.b.supports]
        reasoning_efforts = ["high", "low"]
        thinking = false
        temperature = false
        temperature_max = 1
        temperature_with_reasoning = false
        max_output_tokens = 4096

        [routes]
        chat = "a"
        "chat/quick" = "b"
        "/quick" = "b"

        [models.b.mmproj]
        path = "eyes.gguf"

        [models.b.draft]
        path = "small.gguf"

        [models.a]
        model = "a"
        source.path = "/somewhere/a.gguf"
        mmproj.pypi = {{ distribution = "a-b", version = "1.0", member = "a/eyes.gguf", sha256 = "{SHA256}" }}
        """,
    )
    server = config.server
    assert not server.enabled
    assert server.deadline == 1.5
    assert server.cache_scope == "shared"
    assert server.artifacts == tmp_path / "kept"
    assert server.owner_from == (ip_network("172.17.0.0/16"), ip_network("10.0.0.1/32"))
    assert (server.limits.body_bytes, server.limits.queue, server.limits.max_tokens) == (1000, 0, 5)
    first, second = config.connections
    assert (first.key, second.key) == ("b", "a"), "the file's order is the owner's preference"
    assert first.source == ModelSource(pypi=WheelFile("a-b", "1.0", "a/b.gguf", SHA256))
    assert first.sampling == Sampling(temperature=0, top_k=1, top_p=0.5, min_p=0, repeat_penalty=1.1, seed=7)
    assert first.capabilities == CapabilityLimits(False, True, True, ("auto", "none"))
    assert first.unload_after == 0.5
    assert first.spec(Path("/f.gguf"), queue=0).prefill_slowdown == 4
    assert first.template == "{{ messages }}"
    assert (first.thinking, first.reasoning_effort, first.reasoning_continuation) == (False, "low", "required")
    assert first.system_messages == "merge"
    assert first.temperature == 0.6
    assert first.supports == ModelLimitsConfig(("low", "high"), False, False, 1.0, False, 4096)
    assert config.routes == {Route("chat", None): "a", Route("chat", "quick"): "b", Route(None, "quick"): "b"}
    assert second.source == ModelSource(path=Path("/somewhere/a.gguf"))
    assert first.mmproj == ModelSource(path=tmp_path.resolve() / "eyes.gguf")
    assert second.mmproj == ModelSource(pypi=WheelFile("a-b", "1.0", "a/eyes.gguf", SHA256))
    assert first.spec(Path("/f.gguf"), queue=0).mmproj_path is None
    assert first.spec(Path("/f.gguf"), queue=0, projector=Path("/e.gguf")).mmproj_path == "/e.gguf"
    assert first.draft == ModelSource(path=tmp_path.resolve() / "small.gguf")
    assert first.spec(Path("/f.gguf"), queue=0).draft_model_path is None
    assert first.spec(Path("/f.gguf"), queue=0, draft=Path("/d.gguf")).draft_model_path == "/d.gguf"
    spec = first.spec(Path("/f.gguf"), queue=server.limits.queue)
    assert (spec.path, spec.context_length, spec.slots, spec.threads, spec.gpu_layers, spec.max_queued) == (
        "/f.gguf",
        512,
        2,
        1,
        0,
        0,
    )


REFUSED = [
    # file, table, key
    ('[server]\ncache_scope = "all"\n' + MINIMAL, "server", "cache_scope"),
    ('[server]\nartifacts = "missing"\n' + MINIMAL, "server", "artifacts"),
    ("", "models", ""),
    ("[other]\n" + MINIMAL, "", "other"),
    ("server = 1\n" + MINIMAL, "", "server"),
    ("[server]\ndeadlin = 3\n" + MINIMAL, "server", "deadlin"),
    ("[server]\ndeadline = 0\n" + MINIMAL, "server", "deadline"),
    ("[server]\ndeadline = nan\n" + MINIMAL, "server", "deadline"),
    ("[server]\ndeadline = true\n" + MINIMAL, "server", "deadline"),
    ('[server]\nenabled = "yes"\n' + MINIMAL, "server", "enabled"),
    ('[server]\nallowed_hosts = "localhost"\n' + MINIMAL, "server", "allowed_hosts"),
    ('[server]\nallowed_hosts = ["localhost:80"]\n' + MINIMAL, "server", "allowed_hosts"),
    ('[server]\nallowed_origins = ["*"]\n' + MINIMAL, "server", "allowed_origins"),
    ('[server]\nallowed_origins = ["https://a.example/"]\n' + MINIMAL, "server", "allowed_origins"),
    ('[server]\nallowed_origins = ["https://a.example:x"]\n' + MINIMAL, "server", "allowed_origins"),
    ('[server]\nowner_from = ["10.0.0.1/8"]\n' + MINIMAL, "server", "owner_from"),
    ("[server.limits]\nbodies = 1\n" + MINIMAL, "server.limits", "bodies"),
    ("[server.limits]\nconcurrent = 0\n" + MINIMAL, "server.limits", "concurrent"),
    ("[server.limits]\nimages = -1\n" + MINIMAL, "server.limits", "images"),
    (MINIMAL + "mmproj = {}\n", "models.one.mmproj", ""),
    (MINIMAL + "draft = {}\n", "models.one.draft", ""),
    (MINIMAL + 'draft.path = "small.gguf"\nspeculation = false\n', "models.one", "draft"),
    (MINIMAL + 'mmproj = "eyes.gguf"\n', "models.one", "mmproj"),
    ("[server.limits]\nimage_bytes = 0\n" + MINIMAL, "server.limits", "image_bytes"),
    ("[server.limits]\nbody_bytes = 1.5\n" + MINIMAL, "server.limits", "body_bytes"),
    ('[models."a b"]\nmodel = "x"\nsource.path = "x"\n', "models.a b", ""),
    ('[models.a]\nsource.path = "x"\n', "models.a", "model"),
    ('[models.a]\nmodel = ""\nsource.path = "x"\n', "models.a", "model"),
    ('[models.a]\nmodel = "x"\n', "models.a", "source"),
    ('[models.a]\nmodel = "x"\nsource = "x"\n', "models.a", "source"),
    ('[models.a]\nmodel = "x"\nsource = {}\n', "models.a.source", ""),
    ('[models.a]\nmodel = "x"\nsource = {path = "x", pypi = {}}\n', "models.a.source", ""),
    ('[models.a]\nmodel = "x"\nsource.path = "x"\nsource.url = "y"\n', "models.a.source", "url"),
    ('[models.a]\nmodel = "x"\nsource.pypi.distribution = "d"\n', "models.a.source.pypi", "version"),
    (
        '[models.a]\nmodel = "x"\nsource.pypi = {distribution = "--pre", version = "1", member = "m", sha256 = "0"}\n',
        "models.a.source.pypi",
        "distribution",
    ),
    (
        '[models.a]\nmodel = "x"\nsource.pypi = {distribution = "d", version = "1", member = "m", sha256 = "0"}\n',
        "models.a.source.pypi",
        "sha256",
    ),
    (MINIMAL + "slots = -1\n", "models.one", "slots"),
    (MINIMAL + 'kv_type = "q3"\n', "models.one", "kv_type"),
    (MINIMAL + "cpu_experts = -2\n", "models.one", "cpu_experts"),
    (MINIMAL + 'rpc = ["10.0.0.2"]\n', "models.one", "rpc"),
    (MINIMAL + 'rpc = ["10.0.0.2:0"]\n', "models.one", "rpc"),
    (MINIMAL + 'rpc = ["http://10.0.0.2:50052"]\n', "models.one", "rpc"),
    (MINIMAL + "slots = true\n", "models.one", "slots"),
    (MINIMAL + "unload_after = -1\n", "models.one", "unload_after"),
    (MINIMAL + "unload_after = nan\n", "models.one", "unload_after"),
    (MINIMAL + 'unload_after = "1h"\n', "models.one", "unload_after"),
    (MINIMAL + "context = 5\n", "models.one", "context"),
    (MINIMAL + 'template = "missing.jinja"\n', "models.one", "template"),
    (MINIMAL + "template = 3\n", "models.one", "template"),
    (MINIMAL + 'thinking = "off"\n', "models.one", "thinking"),
    (MINIMAL + 'reasoning_effort = "most"\n', "models.one", "reasoning_effort"),
    (MINIMAL + 'reasoning_continuation = "yes"\n', "models.one", "reasoning_continuation"),
    (MINIMAL + 'system_messages = "drop"\n', "models.one", "system_messages"),
    (MINIMAL + "temperature = 3\n", "models.one", "temperature"),
    (MINIMAL + 'supports = {reasoning_efforts = ["most"]}\n', "models.one.supports", "reasoning_efforts"),
    (MINIMAL + "supports = {temperature_max = 3}\n", "models.one.supports", "temperature_max"),
    (MINIMAL + "supports = {thinking = 1}\n", "models.one.supports", "thinking"),
    (MINIMAL + "supports = {max_output_tokens = -1}\n", "models.one.supports", "max_output_tokens"),
    (MINIMAL + "supports = {tools = true}\n", "models.one.supports", "tools"),
    (MINIMAL + '[routes]\nchat = "two"\n', "routes", "chat"),
    (MINIMAL + '[routes]\n"/" = "one"\n', "routes", "/"),
    (MINIMAL + '[routes]\nchat = "one"\n"chat/" = "one"\n', "routes", "chat/"),
    (MINIMAL + "[routes]\nchat = 1\n", "routes", "chat"),
    (MINIMAL + "sampling = {temperature = 2.5}\n", "models.one.sampling", "temperature"),
    (MINIMAL + "sampling = {heat = 1}\n", "models.one.sampling", "heat"),
    (MINIMAL + f"sampling = {{seed = {2**64}}}\n", "models.one.sampling", "seed"),
    (MINIMAL + "capabilities = {tools = 1}\n", "models.one.capabilities", "tools"),
    (MINIMAL + 'capabilities.tool_choice_modes = ["auto", "named"]\n', "models.one.capabilities", "tool_choice_modes"),
    (MINIMAL + 'capabilities.tool_choice_modes = ["auto"]\n', "models.one.capabilities", "tool_choice_modes"),
    (
        MINIMAL + 'capabilities.tool_choice_modes = ["auto", "none", "auto"]\n',
        "models.one.capabilities",
        "tool_choice_modes",
    ),
]


@pytest.mark.parametrize(("text", "table", "key"), REFUSED)
def test_a_mistake_is_refused_naming_file_table_and_key(tmp_path: Path, text: str, table: str, key: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(tmp_path, text)
    assert (raised.value.table, raised.value.key) == (table, key)
    assert "models.toml" in str(raised.value)
    assert key in str(raised.value)


TABLES: dict[str, Any] = {
    "server": ServerConfig,
    "server.limits": Limits,
    "models.smollm2": ModelConfig,
    "models.smollm2.supports": ModelLimitsConfig,
}
BOUNDED = [(table, each) for table, kind in TABLES.items() for each in fields(kind) if "low" in each.metadata]


@pytest.mark.parametrize(("table", "each"), BOUNDED, ids=lambda part: getattr(part, "name", part))
def test_a_field_takes_its_bounds_and_nothing_beyond(tmp_path: Path, table: str, each: Any) -> None:
    text = '[models.smollm2]\nmodel = "m"\nsource.path = "m.gguf"\n'
    key = f"{table.removeprefix('models.smollm2').lstrip('.')}.{each.name}".lstrip(".")

    def said(value: float) -> str:
        line = f"{key} = {value!r}\n"
        return text + line if table.startswith("models") else line + text

    for bound in (each.metadata["low"], each.metadata["high"]):
        load(tmp_path, said(bound))
    for beyond in (each.metadata["low"] - 1, each.metadata["high"] + 1):
        with pytest.raises(ConfigError, match=each.name):
            load(tmp_path, said(beyond))


def test_the_shipped_configuration_shows_every_key_with_its_default() -> None:
    shown: dict[str, dict[str, list[Any]]] = {name: {} for name in TABLES}
    table = ""
    for line in (ROOT / "models.toml").read_text(encoding="utf-8").splitlines():
        if header := re.match(r"\[([\w.]+)\]", line):
            table = header[1]
        elif table in TABLES and re.match(r"(# )?\w+ = ", line):
            ((key, value),) = tomllib.loads(line.removeprefix("# ")).items()
            shown[table].setdefault(key, []).append(value)
    for name, kind in TABLES.items():
        for each in fields(kind):
            default = list(each.default) if isinstance(each.default, tuple) else each.default
            if default is not MISSING and default is not None:
                assert default in shown[name][each.name], f"[{name}] {each.name}"


@pytest.mark.parametrize("content", [b"[models", b"\xff"])
def test_what_is_no_toml_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "models.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match="is not TOML"):
        load_config(file)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_config(tmp_path / "models.toml")


def test_a_template_may_stand_in_the_file_itself(tmp_path: Path) -> None:
    config = load(tmp_path, MINIMAL + "template = '''{% for m in messages %}{{ m.content }}{% endfor %}'''\n")
    assert config.connections[0].template == "{% for m in messages %}{{ m.content }}{% endfor %}"

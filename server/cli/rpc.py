"""`nap-llm rpc-server`: llama.cpp's RPC server, and the backend with which a model is spread over machines.

The wheel of llama.cpp is built without them. They are one library and one program: they are built in seconds from the
same source distribution, against the libraries of the installed wheel.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import tarfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from server.cli.arguments import DEFAULT_HOST, Commands, add_command, port
from server.weights import WeightsError, cache_directory, download, locked_directory

LIBRARY, SERVER = "libggml-rpc.so", "rpc-server"
_DISTRIBUTION = "llama-cpp-python"


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands,
        "rpc-server",
        run,
        "lend this machine to models of another, which names it by `rpc`",
        "It becomes llama.cpp's RPC server, which knows no passwords and no encryption: only ever in a network that you"
        " trust.",
        examples="nap-llm rpc-server --host 10.0.0.2   # its own address there",
        # Its name in 0.1.
        aliases=("lend",),
    )
    parser.add_argument("--host", default=DEFAULT_HOST, help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=port, default=50052, help="port to listen on (default: %(default)s)")


def run(options: argparse.Namespace) -> int:
    """Becomes llama.cpp's RPC server: this process does not return."""
    directory = built()
    server = str(directory / SERVER)
    environment = {**os.environ, "GGML_BACKEND_PATH": str(directory / LIBRARY)}
    os.execve(server, [server, "--host", options.host, "--port", str(options.port)], environment)


def built() -> Path:
    """The directory with the library and the server, built where they are not there yet. Raises WeightsError."""
    libraries = _libraries()
    stamp = hashlib.sha256(f"{libraries} {(libraries / 'libggml-base.so').stat().st_mtime_ns}".encode()).hexdigest()[
        :16
    ]
    target = cache_directory() / "rpc" / f"{version(_DISTRIBUTION)}-{stamp}"
    if not target.is_dir():
        with locked_directory(target.parent) as work:
            if not target.is_dir():
                requirement = f"{_DISTRIBUTION}=={version(_DISTRIBUTION)}"
                archive = download(requirement, "--no-binary", _DISTRIBUTION, into=work)
                with tarfile.open(archive) as opened:
                    opened.extractall(work / "source", filter="data")
                (source,) = (work / "source").glob("*/vendor/llama.cpp")
                build(source, work / "built")
                (work / "built").rename(target)
    return target


def build(source: Path, target: Path) -> None:
    """Compile the library and the server from llama.cpp's sources into `target`. Raises WeightsError."""
    target.mkdir(parents=True)
    ggml, libraries = source / "ggml", _libraries()
    common = ["-std=c++17", "-O2", "-DGGML_BACKEND_DL", "-DGGML_BACKEND_SHARED", "-DGGML_SHARED"]
    common += [f"-I{ggml / 'include'}", f"-L{libraries}", f"-Wl,-rpath,{libraries}"]
    backend = [str(ggml / "src/ggml-rpc" / name) for name in ("ggml-rpc.cpp", "transport.cpp")]
    private = ["-shared", "-fPIC", "-DGGML_BACKEND_BUILD", f"-I{ggml / 'src'}"]
    _compile(*common, *private, *backend, "-lggml-base", "-o", str(target / LIBRARY))
    server = source / "tools/rpc/rpc-server.cpp"
    _compile(*common, str(server), "-lggml", "-lggml-base", "-pthread", "-o", str(target / SERVER))


def _compile(*arguments: str) -> None:
    compiler = os.environ.get("CXX") or shutil.which("c++")
    if not compiler:
        raise WeightsError("a C++ compiler is needed to build llama.cpp's RPC backend")
    done = subprocess.run([compiler, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise WeightsError(f"llama.cpp's RPC backend cannot be built: {done.stderr.strip()[:500]}")


def _libraries() -> Path:
    spec = find_spec("llama_cpp")
    if spec is None or not spec.submodule_search_locations:
        raise WeightsError("llama-cpp-python is not installed")
    return Path(spec.submodule_search_locations[0]) / "lib"

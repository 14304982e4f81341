#!/usr/bin/env bash
# The whole harness on a machine with an NVIDIA GPU, one command:
#
#   benchmarks/gpu.sh [MODEL.gguf [LLAMA_SERVER]]
#
# Builds llama.cpp with CUDA (scripts/setup), takes the model (default: the one that models.toml fetches), and measures
# alone or beside a llama-server, best of the commit that constraints.txt pins. Figures, plots and a table go to a
# directory. Set by environment: OUT (gpu-results), ROUNDS (5), CONTEXT (4096 tokens a sequence), TRIALS (200 cancels),
# RATES (requests a second of the open loop: "1 4 16"), TTFT_TARGET and GAP_TARGET (500 and 50 ms). ALLOW_CPU=1 runs it
# without a GPU, to try the script.
set -eu
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=/dev/null
. "$here/../scripts/setup"
# What scripts/setup sets.
root=${root:?} venv=${venv:?}

if [ $# -gt 2 ]; then die "gpu.sh takes a model and a llama-server, nothing else"; fi
if [ -n "${1:-}" ] && [ ! -r "$1" ]; then die "there is no model at $1"; fi
if [ -n "${2:-}" ] && [ ! -x "$2" ]; then die "$2 is no program"; fi
if [ -z "${ALLOW_CPU:-}" ] && ! nvidia-smi -L 2>/dev/null | grep -q '^GPU '; then
    die "no NVIDIA GPU answers (nvidia-smi -L)"
fi
setup dev
python=$venv/bin/python
offloads='import sys; from server.engine import llama; sys.exit(not llama.offloads())'
if [ -z "${ALLOW_CPU:-}" ] && ! (cd "$root" && "$python" -c "$offloads"); then
    die "llama.cpp was built without CUDA: is there an nvcc, and is CMAKE_ARGS yours?"
fi

out=${OUT:-gpu-results} rounds=${ROUNDS:-5} context=${CONTEXT:-4096} trials=${TRIALS:-200}
mkdir -p "$out"
out=$(cd "$out" && pwd)
fetch='from pathlib import Path; from server.config import load_config; from server.weights import fetch
print(fetch(load_config(Path("models.toml")).connections[0].source).resolve())'
model=${1:-$(cd "$root" && "$python" -c "$fetch")}
model=$(cd "$(dirname "$model")" && pwd)/$(basename "$model")

state=$(mktemp -d)
trap 'rm -rf "$state"' EXIT
cat >"$state/models.toml" <<END
[server.limits]
requests_per_minute = 0
requests_per_minute_per_token = 0
concurrent_per_token = 64
concurrent_per_endpoint = 64

[models.bench]
name = "bench"
model = "bench"
context_length = $context
source.path = '$model'
END
token=$("$venv/bin/nap-llm" token create bench --consent always --state "$state")

port() { "$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
ours=$(port)
start=$(printf '%q ' "$root/scripts/serve" --models "$state/models.toml" --state "$state" --port "$ours")
targets=(--target "ours=nap:http://127.0.0.1:$ours" --start "ours=$start")
if [ -n "${2:-}" ]; then
    theirs=$(port)
    peer=$(printf '%q ' "$2" -m "$model" -np 8 -c $((8 * context)) -ngl 999 --host 127.0.0.1 --port "$theirs")
    targets+=(--target "llama-server=openai:http://127.0.0.1:$theirs" --start "llama-server=$peer")
fi

failed=''
run() {  # name, script, arguments…
    local name=$1 script=$2
    shift 2
    say "--- $name"
    "$python" "$here/$script" --out "$out/$name.json" "$@" || failed="$failed $name"
}
paired() {  # name, script, arguments…
    run "$@" "${targets[@]}" --token "$token" --rounds "$rounds" --log "$out/servers.log"
}
throughput() {  # name, arguments…
    local name=$1
    shift
    paired "$name" throughput.py --plot "$out/$name.svg" "$@"
}

throughput chat --workload chat --concurrency 1 4 8
throughput json --workload json --concurrency 1 8
throughput forced --workload forced --concurrency 1 --requests 8
throughput long --workload long --concurrency 1 4
throughput shared --workload shared --concurrency 1 8
throughput warm --workload warm --concurrency 1
read -ra rates <<<"${RATES:-1 4 16}"
throughput open --workload chat --rate "${rates[@]}" --ttft-target "${TTFT_TARGET:-500}" --gap-target "${GAP_TARGET:-50}"
paired mixed mixed.py
# The owner's token lies in the state directory since the server was first started.
run cancel cancel.py --target "nap:http://127.0.0.1:$ours" --start "$start" --token "$token" \
    --owner-token "$(cat "$state/owner-token")" --trials "$trials" --log "$out/servers.log"
run overhead overhead.py "$model"

tables=()
for name in chat json forced long shared warm open; do
    if [ -r "$out/$name.json" ]; then tables+=("$out/$name.json"); fi
done
"$python" "$here/report.py" "${tables[@]}" >"$out/table.md" || failed="$failed table"
cat "$out/table.md"
if [ -n "$failed" ]; then die "failed:$failed"; fi
say "figures, plots and the table are in $out"

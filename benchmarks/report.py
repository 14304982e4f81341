"""Tables and plots of what the other scripts have measured, so that no figure is ever typed.

    python benchmarks/report.py chat.json forced.json shared.json --readme docs/benchmarks.md
    python benchmarks/report.py --mixed mixed.json --images images.json --cancel cancel.json --readme docs/benchmarks.md
    python benchmarks/report.py chat.json --plot chat.svg

The tables stand between `<!-- throughput:begin -->` and `<!-- throughput:end -->` (`mixed`, `images`, `cancel`) in the
file that `--readme` names, or are printed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7")
"""Told apart with any colour vision (Okabe and Ito, Color Universal Design, 2008)."""
HATCHES = ("", "//", "..", "xx")
MARKERS = ("o", "s", "^", "D")

RATIO_NAMES = {"tokens_per_second": "tokens/s", "ttft": "TTFT", "request": "total time", "per_byte": "time per byte"}


class ReportError(Exception):
    """A file is not what it should be; the text says which and why."""


def loads(found: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """What the load of a throughput report is measured in, and its entries by load."""
    for kind in ("concurrency", "rate"):
        if kind in found:
            return kind, found[kind]
    raise ReportError("these are no figures of throughput.py")


def ranged(figures: Mapping[str, float], digits: int) -> str:
    """`median (min to max)`."""
    if not figures:
        return "–"
    return f"{figures['median']:.{digits}f} ({figures['min']:.{digits}f} to {figures['max']:.{digits}f})"


def table(reports: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table of throughput reports, and one of their ratios where targets were paired."""
    heads = [
        "workload",
        "load",
        "server",
        "tokens/s",
        "TTFT p50 / p95",
        "inter-token p50 / p95",
        "total p50",
        "µs/byte",
    ]
    rows, ratios = [], []
    goodput = any(_targeted(each) for each in reports)
    for found in reports:
        kind, entries = loads(found)
        for load, entry in entries.items():
            place = [found["workload"], f"{load} at once" if kind == "concurrency" else f"{load}/s"]
            for name, figures in entry["targets"].items():
                row = [
                    *place,
                    name,
                    ranged(figures["tokens_per_second"], 1),
                    _pair(figures["ttft_ms"], 0),
                    _pair(figures["inter_token_ms"], 1),
                    f"{figures['request_ms'].get('p50', 0):.0f}",
                    f"{figures['per_byte_ms'].get('p50', 0) * 1000:.0f}",
                ]
                if goodput:
                    share, speed = figures["goodput"]["share"], figures["goodput"]["tokens_per_second"]
                    row.append(f"{share:.0%}, {speed:.1f} tokens/s" if _targeted(found) else "–")
                rows.append(row)
            if "ratios" in entry:
                ratios.append([*place, *(ranged(entry["ratios"].get(name, {}), 2) for name in RATIO_NAMES)])
    heads += ["good"] if goodput else []
    text = f"{_where(reports)} Median (min to max) of rounds; times in milliseconds.\n\n{_grid(heads, rows)}"
    if goodput:
        text += f"\nGood: {_targets(reports)}.\n"
    if ratios:
        first, second = next(list(e["targets"]) for each in reports for e in loads(each)[1].values() if "ratios" in e)
        text += f"\nRatios {first}/{second} of paired rounds:\n\n"
        text += _grid(["workload", "load", *RATIO_NAMES.values()], ratios)
    return text


def mixed_table(found: Mapping[str, Any]) -> str:
    """What mixed.py measured: running answers and a long prompt, each beside the other and alone."""
    tokens = round(next(iter(found["targets"].values()))["prompt_tokens"]["median"])
    return _beside(found, f"a fresh prompt of {tokens:,} tokens", "the prompt")


def images_table(found: Mapping[str, Any]) -> str:
    """What images.py measured: the same of a question about an image, and when one that was given up is settled."""
    text = _beside(found, "a question about a fresh image", "the image")
    for name, given_up in found["cancels"].items():
        settled, server = (
            f"{given_up[key]['p50']:.1f} (maximum {given_up[key]['max']:.1f})"
            for key in ("settled_ms", "server_settled_ms")
        )
        text += f"\n{name}: {given_up['cancelled']} images given up on their way were settled in {settled} ms, "
        text += f"by the server's clock {server}.\n"
    return text


def _beside(found: Mapping[str, Any], disturbance: str, short: str) -> str:
    heads = ["server", "p95 inter-token alone", f"beside {short}", "ratio", "TTFT alone", "beside answers", "ratio"]
    rows = [
        [
            name,
            f"{figures['idle_inter_token_ms']['p95']:.1f}",
            f"{figures['mixed_inter_token_ms']['p95']:.1f}",
            ranged(figures["inter_token_p95_ratio"], 2),
            f"{figures['idle_ttft_ms']['median']:.0f}",
            f"{figures['mixed_ttft_ms']['median']:.0f}",
            ranged(figures["ttft_ratio"], 2),
        ]
        for name, figures in found["targets"].items()
    ]
    text = f"{found['streams']} running answers and {disturbance}, {found['rounds']} rounds; times in milliseconds."
    return f"{text}\n\n{_grid(heads, rows)}"


def cancel_table(found: Mapping[str, Any]) -> str:
    """What cancel.py measured: when a generation that was given up is settled, and what comes next."""
    names = {"settled_ms": "settled", "server_settled_ms": "settled, the server's clock", "next_ttft_ms": "next TTFT"}
    rows = [
        [f"{way}: {names[key]}", *(f"{found[way][key][each]:.1f}" for each in ("p50", "p95", "p99", "max"))]
        for way in ("cancel", "disconnect")
        if way in found
        for key in names
        if key in found[way]
    ]
    text = (
        f"{found['trials']} generations given up each way, at random moments of a prefill of {found['prefill_ms']:.0f}"
    )
    text += " ms or of the decode behind it; times in milliseconds."
    if "leaks" in found:
        text += f" {'Nothing' if found['leaks']['none'] else 'Something'} stayed behind."
    return f"{text}\n\n{_grid(['part', 'p50', 'p95', 'p99', 'maximum'], rows)}"


def _targeted(found: Mapping[str, Any]) -> bool:
    return bool(found["ttft_target_ms"] or found["gap_target_ms"])


def _targets(reports: Sequence[Mapping[str, Any]]) -> str:
    found = []
    for each in reports:
        parts = [f"TTFT ≤ {each['ttft_target_ms']:g} ms"] if each["ttft_target_ms"] else []
        parts += [f"p95 inter-token ≤ {each['gap_target_ms']:g} ms"] if each["gap_target_ms"] else []
        if parts:
            found.append(f"{' and '.join(parts)} ({each['workload']})")
    return "; ".join(dict.fromkeys(found))


def _where(reports: Sequence[Mapping[str, Any]]) -> str:
    """The machines, named once each."""
    names = []
    for each in reports:
        facts = each["machine"]
        names.append(", ".join([*facts["gpus"], f"{facts['cpus']} CPUs ({facts['cpu']})"]))
    return f"On {'; '.join(dict.fromkeys(names))}."


def _pair(figures: Mapping[str, float], digits: int) -> str:
    return f"{figures['p50']:.{digits}f} / {figures['p95']:.{digits}f}" if figures else "–"


def _grid(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    # The first columns are names, the others figures.
    rule = ["---" if head in ("workload", "load", "server", "part") else "---:" for head in heads]
    return "".join(f"| {' | '.join(row)} |\n" for row in (heads, rule, *rows))


def insert(file: Path, name: str, text: str) -> None:
    """Put the text between the markers of this name. Raises ReportError where the file does not have them once each."""
    begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
    content = file.read_text(encoding="utf-8")
    if content.count(begin) != 1 or content.count(end) != 1 or content.index(begin) > content.index(end):
        raise ReportError(f"{file.name} needs the lines {begin.strip()} and {end}, once each and in this order")
    before, rest = content.split(begin)
    file.write_text(before + begin + text + end + rest.split(end)[1], encoding="utf-8")


def plot(found: Mapping[str, Any], file: Path) -> None:
    """Tokens a second and latencies over the load, a colour and a shape for each target; PNG, SVG or PDF by name."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    kind, entries = loads(found)
    names = list(next(iter(entries.values()))["targets"])
    figure, (speed, ttft, gaps) = pyplot.subplots(1, 3, figsize=(13, 4.2), layout="constrained")
    width = 0.8 / len(names)
    for number, name in enumerate(names):
        figures = [entry["targets"][name] for entry in entries.values()]
        places = [place + (number - (len(names) - 1) / 2) * width for place in range(len(entries))]
        colour, label = COLOURS[number % len(COLOURS)], name
        speeds = [each["tokens_per_second"] for each in figures]
        below = [each["median"] - each["min"] for each in speeds]
        above = [each["max"] - each["median"] for each in speeds]
        speed.bar(
            places,
            [each["median"] for each in speeds],
            width * 0.92,
            yerr=[below, above],
            capsize=3,
            color=colour,
            edgecolor="black",
            linewidth=0.6,
            hatch=HATCHES[number % len(HATCHES)],
            label=label,
        )
        for axes, key in ((ttft, "ttft_ms"), (gaps, "inter_token_ms")):
            # A target that never answered has no latencies.
            shown = [(place, each[key]) for place, each in zip(places, figures, strict=True) if each[key]]
            if not shown:
                continue
            at, values = [place for place, _ in shown], [each for _, each in shown]
            axes.vlines(at, [v["p50"] for v in values], [v["p99"] for v in values], color=colour, linewidth=1.5)
            style = {"color": colour, "linestyle": "none", "markeredgecolor": "black", "markeredgewidth": 0.6}
            axes.plot(at, [v["p50"] for v in values], marker=MARKERS[number % len(MARKERS)], label=label, **style)
            axes.plot(at, [v["p95"] for v in values], marker="_", markersize=12, color=colour, linestyle="none")
            axes.plot(at, [v["p99"] for v in values], marker="_", markersize=7, color=colour, linestyle="none")
    what = "requests at once" if kind == "concurrency" else "requests a second"
    for axes, title, unit in (
        (speed, "Output tokens a second: median, min to max", "tokens/s"),
        (ttft, "Time to first token: p50, bars at p95 and p99", "ms"),
        (gaps, "Inter-token latency: p50, bars at p95 and p99", "ms"),
    ):
        axes.set_title(title, fontsize=10)
        axes.set_xlabel(what)
        axes.set_ylabel(unit)
        axes.set_xticks(range(len(entries)), list(entries))
        axes.set_xlim(-0.6, len(entries) - 0.4)
        axes.set_ylim(bottom=0)
        axes.grid(axis="y", alpha=0.3)
        axes.set_axisbelow(True)
    speed.legend()
    figure.suptitle(f"Workload {found['workload']}, {found['rounds']} rounds. {_where([found])}", fontsize=11)
    figure.savefig(file, dpi=150)
    pyplot.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="*", help="files that throughput.py wrote with --out")
    parser.add_argument("--mixed", type=Path, help="a file that mixed.py wrote")
    parser.add_argument("--images", type=Path, help="a file that images.py wrote")
    parser.add_argument("--cancel", type=Path, help="a file that cancel.py wrote")
    parser.add_argument("--readme", type=Path, help="write the tables between this file's markers")
    parser.add_argument("--plot", type=Path, help="draw the figures of a single file (PNG or SVG)")
    options = parser.parse_args()
    if options.plot and len(options.results) != 1:
        parser.error("a plot shows one file")
    reports = [_read(file) for file in options.results]
    try:
        tables = {"throughput": table(reports)} if reports else {}
        if options.mixed:
            tables["mixed"] = mixed_table(_read(options.mixed))
        if options.images:
            tables["images"] = images_table(_read(options.images))
        if options.cancel:
            tables["cancel"] = cancel_table(_read(options.cancel))
        if not tables:
            parser.error("no file of figures is given")
        if options.readme:
            for name, text in tables.items():
                insert(options.readme, name, text)
        if options.plot:
            plot(reports[0], options.plot)
    except ReportError as error:
        print(f"report: {error}", file=sys.stderr)
        return 1
    if not options.readme and not options.plot:
        print("\n".join(tables.values()))
    return 0


def _read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


if __name__ == "__main__":
    sys.exit(main())

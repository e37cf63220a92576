"""The speed of pseudopoint beside its peers', in one run: steps, bounds, time to quality, prediction, start, growth.

    make benchmark                                  # installs the peers into .venv-peers and runs all but quality
    python benchmarks/speed/run.py --quick          # the whole harness on toy sizes
    python benchmarks/speed/run.py --only quality --data FOLDER --budget 120
    python benchmarks/speed/run.py --only steps --cases "M=1000" --dtype float32

Each library has a process and an environment of its own. All read the same arrays, from the same start; bounds are
compared before anything is timed, and who computes something else is taken out, with the reason. Then turns are taken:
one library works while the others wait, in rounds, each begun by another one. A row holds the median and the quartiles.
"""

import argparse
import json
import math
import re
import shlex
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import plots
import suites
from compare import Bench
from provenance import provenance
from quality import quality
from tables import SECTIONS, report
from talk import Workers

RESULTS = Path(__file__).resolve().parents[1] / "results"
DEFAULT = ("likeness", "steps", "collapsed", "predict", "cold", "growth")


def pattern(text: str) -> re.Pattern:
    """A regular expression, or a clear error."""
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from None


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help=f"some of {','.join(SECTIONS)}; default: all but quality")
    of_cases = "of steps, collapsed, predict and quality: those with this regular expression in their names"
    parser.add_argument("--cases", type=pattern, default="", help=of_cases)
    parser.add_argument("--quick", action="store_true", help="toy sizes: does it work?")
    parser.add_argument("--repeats", type=int, help="rounds (7; quick: 2)")
    parser.add_argument("--dtype", choices=("float64", "float32"), default="float64")
    parser.add_argument("--envs", type=Path, default=Path(".venv-peers"), help="folder of the peers' environments")
    parser.add_argument("--out", type=Path, help="folder of speed.jsonl, speed.md and the pictures")
    parser.add_argument("--data", type=Path, help="folder of kin40k, protein and magic, for quality")
    parser.add_argument("--budget", type=float, help="seconds of a peer's training in quality (120; quick: 2)")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds after which a worker has failed")
    parser.add_argument("--fresh", action="store_true", help="forget rows of other runs in --out")
    options = parser.parse_args()
    options.repeats = options.repeats or (2 if options.quick else 7)
    options.budget = options.budget or (2.0 if options.quick else 120.0)
    options.limit += options.budget
    options.out = options.out or (Path(tempfile.gettempdir()) / "speed-quick" if options.quick else RESULTS)
    options.only = options.only.split(",") if options.only else list(DEFAULT + ("quality",) * options.quick)
    unknown = set(options.only) - SECTIONS.keys()
    if unknown:
        parser.error(f"--only knows {', '.join(SECTIONS)}, not {', '.join(sorted(unknown))}")
    return options


def stored(path: Path, options: argparse.Namespace) -> list[dict]:
    """Rows of earlier runs that this one does not measure again."""
    if options.fresh or not path.exists():
        return []
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    runs = lambda row: row["suite"] in options.only and row.get("dtype", "float64") == options.dtype
    chosen = lambda row: row["suite"] not in suites.BY_CASE or options.cases.search(row["case"])
    return [row for row in rows if not (runs(row) and chosen(row))]


def about(rows: list[dict]) -> str:
    """Where and with what."""
    versions: dict[str, str] = {}
    for row in rows:
        versions |= {f"{row['library']}: {name}": v for name, v in row.get("versions", {}).items()}
    rates = [row["gemm_gflops"] for row in rows if row["suite"] == "steps"]
    text = f"Made by `benchmarks/speed/run.py`. {', '.join(dict.fromkeys(row['machine'] for row in rows))}. "
    text += "Times compare within one run. Medians, ± half the interquartile range. "
    text += "`ours` is the standard bound, as peers have it; `ours tight` is our default, which costs more.\n"
    if rates:
        text += f"Matrix products ran at {min(rates):.0f} to {max(rates):.0f} GF/s.\n"
    return text + "\n" + ", ".join(f"{name} {version}" for name, version in versions.items()) + "\n"


def main() -> int:
    """Run, and write after every case, so that what was measured outlives a crash."""
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as Ctrl-C does, it ends the workers too
    options.out.mkdir(parents=True, exist_ok=True)
    rows = stored(options.out / "speed.jsonl", options)
    say = lambda text: print(text, end="", file=sys.stderr, flush=True)
    command = f"make benchmark OPTIONS={shlex.quote(shlex.join(asked(sys.argv[1:])))}"
    with tempfile.TemporaryDirectory() as folder:
        workers = Workers(options.envs.resolve(), options.limit, options.out / "speed.log")
        bench = Bench(workers, Path(folder), options.repeats, options.dtype, options.quick, options.cases, say)
        try:
            for suite in options.only:
                say(f"{suite}\n")
                start = time.perf_counter()
                work = (
                    quality(bench, options.data, options.budget)
                    if suite == "quality"
                    else getattr(suites, suite)(bench)
                )
                for row in work:
                    rows.append({"suite": suite, "quick": options.quick} | row | provenance() | {"command": command})
                    write(rows, options.out)
                say(f"{suite}: {time.perf_counter() - start:.0f} s\n")
        finally:
            workers.close()
    pictures(rows, options.out)
    return 0


def asked(words: list[str]) -> list[str]:
    """The options of a run without its own places: environments and results; FOLDER for other folders."""
    places = {"--envs", "--out"}
    kept = [word for before, word in zip(["", *words], words, strict=False) if not {before, word} & places]
    return ["FOLDER" if Path(word).is_absolute() else word for word in kept]


def plain(value):
    """Without NaN and infinity, which JSON has not."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write(rows: list[dict], out: Path) -> None:
    """speed.jsonl and speed.md."""
    (out / "speed.jsonl").write_text("".join(json.dumps(plain(row)) + "\n" for row in rows))
    (out / "speed.md").write_text(report(rows, about(rows)))


def pictures(rows: list[dict], out: Path) -> None:
    """steps.png and growth.png, of float64."""
    for name, draw in (("steps", plots.steps), ("growth", plots.growth)):
        own = [row for row in rows if row["suite"] == name and row.get("dtype") == "float64" and "seconds" in row]
        if own:
            draw(own, out / f"{name}.png")


if __name__ == "__main__":
    sys.exit(main())

"""The whole job: a flow beside the encoder, Lightning beside a loop, train beside a loop, and fix."""

import importlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_encode import sentence_transformer
from bench_material import Material
from bench_stock import plain_loop
from bench_timing import Result, Times, ratio, take_turns
from numpy.typing import NDArray

from bertflow.api.advising import fix
from bertflow.api.training import train
from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.flow import FlowCalibrator
from bertflow.encoder.reading import AbstractTokenEncoder
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.files import write_text
from bertflow.training.batches import ShuffledBatches
from bertflow.training.flow_fit import FlowFit, fit_flow
from bertflow.training.module import build_optimizer
from bertflow.training.recipe import PRESETS, Recipe

ROUNDS = 3
JOB_ROUNDS = 2
"""Of what takes long."""
WHOLE = 1500
"""Sentences of the whole job."""
ROWS = 26_173
"""Embeddings that a flow is fitted to, as many as the seven STS tasks have sentences; the encoder's time on a sample is
scaled to as many."""
EPOCH_TARGETS = {1: 1.1, 10: 1.3}
LINES = 600
"""Lines of text for ``fix``."""
FIXED: dict[str, dict[str, Any]] = {
    "its own pooling": {},
    "an inner layer, so that docstrings are read": {"pooling": "mean(1)"},
}
"""What ``fix`` is given besides MiniLM and the text."""
QUIET = {"enable_progress_bar": False}
STEPS = (40, 120)
"""Lightning is measured by the difference between a long and a short fit: the start belongs to no step."""


def rows_like(x: NDArray[np.float32], n: int) -> NDArray[np.float32]:
    """``n`` rows like those of ``x``, and of full rank: its rows, with a little noise in each coordinate."""
    generator = np.random.default_rng(0)
    noise = generator.standard_normal((n, x.shape[1]), dtype=np.float32)
    rows: NDArray[np.float32] = x[generator.integers(len(x), size=n)] + 0.3 * noise * x.std(0)
    return rows


def job(material: Material) -> Iterator[Result]:
    """The encoder and a fit of the paper's flow, dropout off, against the encoder alone, and sentence-transformers'."""
    recipe = replace(PRESETS["paper-tf"], dropout=False)
    encoder = TransformerEncoder(material.model, pooling=recipe.pooling, max_length=recipe.max_length, device="cpu")
    theirs = sentence_transformer(material.model, recipe.max_length)
    x = rows_like(encoder.encode(material.sentences), ROWS)
    calls: dict[str, Callable[[], object]] = {
        "ours": lambda: encoder.encode(material.sentences),
        "theirs": lambda: theirs.encode(material.sentences, show_progress_bar=False),
    }
    for epochs in EPOCH_TARGETS:
        calls[str(epochs)] = lambda epochs=epochs: fit_flow(x, replace(recipe, epochs=float(epochs)))
    times = take_turns(calls, JOB_ROUNDS)
    scale = ROWS / len(material.sentences)
    facts = {"rows": ROWS} | {f"encode_{name}_s": _seconds(times[name], scale) for name in ("ours", "theirs")}
    for epochs, target in EPOCH_TARGETS.items():
        fit = {**facts, "fit_s": _seconds(times[str(epochs)])}
        name = f"the paper's flow, {epochs} epoch{'s' if epochs > 1 else ''}: encode and fit"
        share = ratio(times[str(epochs)], times["ours"])
        cpu, wall = (1 + one / scale for one in share)
        yield Result(f"{name} / encode", cpu, wall, target, at_most=True, facts=fit)
        fitted, encoded = ratio(times[str(epochs)], times["theirs"]), ratio(times["ours"], times["theirs"])
        cpu, wall = (one / scale + other for one, other in zip(fitted, encoded, strict=True))
        yield Result(f"{name} / sentence-transformers' encode", cpu, wall, facts=fit)


def _seconds(times: Times, scale: float = 1) -> float:
    return round(scale * times.milliseconds() / 1e3, 1)


def whole(material: Material) -> Iterator[Result]:
    """``train`` with paper-tf, report included, against a plain port of the released code's loop; imports left out."""
    sentences = material.draw(WHOLE)
    with tempfile.TemporaryDirectory() as folder:
        runs = (Path(folder) / str(number) for number in range(JOB_ROUNDS + 1))
        calls: dict[str, Callable[[], object]] = {
            "plain": lambda: plain_loop(material.model, sentences),
            "ours": lambda: train(material.model, sentences, "paper-tf", output=next(runs), trainer=QUIET),
        }
        times = take_turns(calls, JOB_ROUNDS)
    facts = {f"{name}_s": _seconds(found) for name, found in times.items()}
    cpu, wall = ratio(times["ours"], times["plain"])
    yield Result(
        f"paper-tf on {WHOLE:,} sentences: train / plain port's loop", cpu, wall, 1.0, at_most=True, facts=facts
    )


def fixing(material: Material) -> Iterator[Result]:
    """``fix`` with everything that it writes, each time in a process of its own; its imports and encoding left out."""
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        write_text(text, "".join(f"{' '.join(sentence.split())}\n" for sentence in material.draw(LINES)))
        for name, options in FIXED.items():
            found = []
            for at in range(JOB_ROUNDS):
                given = json.dumps([material.model, str(text), str(Path(folder) / f"{name} {at}"), options])
                ran = subprocess.run([sys.executable, __file__, given], check=True, stdout=subprocess.PIPE, text=True)
                found.append(json.loads(ran.stdout.splitlines()[-1]))
            least = min(found, key=lambda one: one["rest"])
            yield Result(
                f"fix on {LINES} lines, {name}: beyond imports and encoding", least["rest"], None, 3.0, at_most=True,
                unit="s", facts=least,
            )  # fmt: skip


def fix_alone(model: str, text: str, output: str, options: dict[str, Any]) -> dict[str, Any]:
    """Seconds of the processor that one ``fix`` takes in this process: imports, encoding, and the rest."""
    spent, busy = {"imports": 0.0, "encoding": 0.0}, list[str]()

    def timed(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            if busy:
                return function(*given, **named)
            busy.append(what)
            begin = time.process_time()
            try:
                return function(*given, **named)
            finally:
                spent[busy.pop()] += time.process_time() - begin

        return call

    # What the statement "import" calls for a module that is not there yet.
    importlib._bootstrap._find_and_load = timed("imports", importlib._bootstrap._find_and_load)  # type: ignore[attr-defined]
    AbstractTokenEncoder.vectors = timed("encoding", AbstractTokenEncoder.vectors)  # type: ignore[method-assign]
    begin = time.process_time()
    advice = fix(model, text, output=output, progress=False, **options)
    rest = time.process_time() - begin - sum(spent.values())
    seconds = {name: round(value, 2) for name, value in {**spent, "rest": rest}.items()}
    return seconds | {"verdict": advice.verdict, "docstring pairs": advice.stand_in is not None}


def calibration(material: Material) -> Iterator[Result]:
    """What calibrating adds to encoding, with the default flow."""
    encoder = TransformerEncoder(material.model, pooling="mean", device="cpu", max_length=128)
    x = encoder.encode(material.sentences)
    calibrated = CalibratedEncoder(
        encoder, FlowCalibrator(n_components="all", trainer={"max_steps": 5}).fit(rows_like(x, 2048))
    )
    calls = {"encode": lambda: encoder.encode(material.sentences), "calibrate": lambda: calibrated.calibrate(x)}
    times = take_turns(calls, ROUNDS)
    cpu, wall = ratio(times["calibrate"], times["encode"])
    name = "the default flow: calibrate / encode"
    yield Result(name, 100 * cpu, 100 * wall, 2.0, at_most=True, unit="%")


def lightning(material: Material) -> Iterator[Result]:
    """A step of the default recipe at batch 256 under Lightning, against the same step in a bare loop."""
    encoder = TransformerEncoder(material.model, pooling="mean(1,2)", device="cpu", max_length=128)
    x = rows_like(encoder.encode(material.sentences), ROWS)
    recipe = replace(PRESETS["similarity-2"], held_out=0.0, keep="last")
    short, long = STEPS
    calls = {
        "short": lambda: fit_flow(x, recipe, trainer={"max_steps": short, "max_epochs": -1}),
        "long": lambda: fit_flow(x, recipe, trainer={"max_steps": long, "max_epochs": -1}),
        "bare": bare_loop(x, recipe, long - short),
    }
    times = take_turns(calls)
    for name in ("cpu", "wall"):
        more = [a - b for a, b in zip(getattr(times["long"], name), getattr(times["short"], name), strict=True)]
        getattr(times["long"], name)[:] = more
    cpu, wall = ratio(times["long"], times["bare"])
    facts = {"bare_step_ms": round(times["bare"].milliseconds() / (long - short), 2)}
    yield Result(
        "Lightning: a step of the default recipe over a bare loop's",
        100 * (cpu - 1),
        100 * (wall - 1),
        15.0,
        at_most=True,
        unit="%",
        facts=facts,
    )


def bare_loop(x: NDArray[np.float32], recipe: Recipe, steps: int) -> Callable[[], None]:
    """As many steps on the same batches, with the same optimizer and schedule, and nothing around them."""
    fit = FlowFit(x, recipe)
    made = build_optimizer(fit.module.flow, recipe, steps)
    optimizer, schedule = made["optimizer"], made["lr_scheduler"]["scheduler"]
    units = np.arange(len(x))

    def call() -> None:
        batches, done = ShuffledBatches(x, units, recipe.batch_size, seed=0), 0
        while done < steps:
            batches.set_epoch(batches.epoch + 1)
            for batch in batches:
                if done == steps:
                    return
                optimizer.zero_grad()
                loss = fit.module.nll(batch).mean()
                loss.backward()
                optimizer.step()
                schedule.step()
                done += 1

    return call


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(fix_alone(*json.loads(sys.argv[1]))))

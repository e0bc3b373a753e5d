"""Tensor-parallel inference on CPUs: transformers' Llama on several processes, over sley and gloo.

    pip install transformers accelerate
    torchrun --nproc-per-node 2 benchmarks/tensor_parallel.py [--layers 8] [--tokens 17]

The model is made from a configuration, with random weights. One process computes with one thread
and with as many threads as there are ranks; the ranks compute with one thread each. All generate
the same number of tokens after the same prompt, greedily, and take turns. Rank 0 prints the medians
and writes all times as JSON to benchmarks/results.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from common.machine import text
from common.results import RESULTS, save
from common.tables import ratio_text, table
from cpu_peers import machine
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.distributed import DistributedConfig
from transformers.utils import logging

import sley.torch  # noqa: F401 - registers the backend

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
CONTEXT = 128
"""The tokens of the prompt."""


@dataclass(frozen=True)
class Way:
    """A way to run the model. backend: of the group of all ranks; None: on rank 0 alone."""

    name: str
    backend: str | None
    threads: int


WAYS = [
    Way("1 process, 1 thread", None, 1),
    Way(f"1 process, {RANKS} threads", None, RANKS),
    Way(f"{RANKS} processes, gloo", "gloo", 1),
    Way(f"{RANKS} processes, sley", "sley", 1),
]


class Meeting:
    """All ranks meet here, without a group: those that have nothing to do sleep."""

    def __init__(self, store: dist.Store) -> None:
        self._store, self._turn = store, 0

    def wait(self) -> None:
        self._turn += 1
        if self._store.add(f"meeting {self._turn}", 1) == RANKS:
            self._store.set(f"met {self._turn}", "")
        self._store.wait([f"met {self._turn}"])


def seconds(model: Any, tokens: int) -> float:
    """The time to generate `tokens` tokens after the prompt."""
    prompt = torch.arange(CONTEXT)[None]
    begin = time.perf_counter()
    with torch.inference_mode():
        model.generate(
            prompt, min_new_tokens=tokens, max_new_tokens=tokens, do_sample=False, pad_token_id=0
        )
    return time.perf_counter() - begin


def run(way: Way, store: dist.Store, folder: str, dtype: str, tokens: int) -> tuple[float, float]:
    """The time of the prompt in ms, and the tokens in each second after it."""
    torch.set_num_threads(way.threads)
    more = {}
    if way.backend is not None:
        dist.init_process_group(way.backend, store=store, rank=RANK, world_size=RANKS)
        more["distributed_config"] = DistributedConfig(tp_plan="auto")
    model = LlamaForCausalLM.from_pretrained(folder, dtype=dtype, **more).eval()
    seconds(model, 2)  # connections, plans and caches
    prompt_s = min(seconds(model, 1) for _ in range(3))
    rate = (tokens - 1) / (seconds(model, tokens) - prompt_s)
    if way.backend is not None:
        dist.destroy_process_group()
    return 1e3 * prompt_s, rate


def measure(
    options: argparse.Namespace, dtype: str, folder: str, store: dist.Store, meeting: Meeting
) -> dict[str, list[tuple[float, float]]]:
    """The prompt's ms and the rate of each way, for each round."""
    found: dict[str, list[tuple[float, float]]] = {way.name: [] for way in WAYS}
    for turn in range(options.rounds):
        for way in WAYS if turn % 2 else reversed(WAYS):
            meeting.wait()
            if way.backend is not None or RANK == 0:
                own = dist.PrefixStore(f"{dtype} {turn} {way.name}", store)
                found[way.name].append(run(way, own, folder, dtype, options.tokens))
    return found


def print_times(dtype: str, found: dict[str, list[tuple[float, float]]]) -> None:
    rates = {name: median(rate for _, rate in times) for name, times in found.items()}
    one = rates[WAYS[0].name]
    lines = []
    for name, times in found.items():
        prompt = f"{median(ms for ms, _ in times):.0f}"
        lines.append((dtype, name, prompt, f"{rates[name]:.1f}", ratio_text(rates[name] / one)))
    head = ("type", "", "prompt, ms", "tokens/s", "times one thread")
    print(table(head, lines), "\n")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    made.add_argument("--types", default="bfloat16,float32")
    made.add_argument("--layers", type=int, default=8)
    made.add_argument("--hidden", type=int, default=2048)
    made.add_argument("--tokens", type=int, default=17)
    made.add_argument("--rounds", type=int, default=5)
    made.add_argument("--note", default="", help="kept with the results")
    made.add_argument("--output", type=Path, default=RESULTS)
    return made


def main() -> None:
    options = parser().parse_args()
    logging.disable_progress_bar()
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.PrefixStore("tensor parallel", dist.TCPStore(*address, is_master=False))
    meeting, times = Meeting(store), {}
    config = LlamaConfig(
        hidden_size=options.hidden,
        intermediate_size=options.hidden * 11 // 4,
        num_hidden_layers=options.layers,
        num_attention_heads=options.hidden // 64,
        num_key_value_heads=max(options.hidden // 256, RANKS),
        vocab_size=8192,
    )
    with TemporaryDirectory() as own:
        if RANK == 0:
            torch.manual_seed(0)
            LlamaForCausalLM(config).save_pretrained(own)
            store.set("folder", own)
        folder = store.get("folder").decode()
        for dtype in options.types.split(","):
            times[dtype] = measure(options, dtype, folder, store, meeting)
            if RANK == 0:
                print_times(dtype, times[dtype])
        meeting.wait()
    if RANK == 0:
        results = {
            "machine": machine.facts(),
            "options": {k: str(v) for k, v in vars(options).items()},
            "ranks": RANKS,
            "times": times,
        }
        print(text(results["machine"]), save(results, options.output, f"tensor-parallel-{RANKS}"))


if __name__ == "__main__":
    main()

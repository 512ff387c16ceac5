"""A real language model on AttnHub, checked against plain PyTorch: run `make demo`.

Five chats of different lengths and a page of Python's manual are answered by continuous batching.
Then the plain model (`plain.py`) reads each prompt and answer once, which shows for every token
both whether the logits were right and whether it was the most likely one. Exits with 1 if not.

It runs on `cuda:0` if there is one, else on the CPU. float32, so that the check is sharp; on a GPU
once more in bfloat16, which is what the kernels are made for.
"""

from __future__ import annotations

import sys
import textwrap
import time
from dataclasses import dataclass
from pydoc_data.topics import topics
from typing import Any

import torch
from engine import Chunk, Engine, Request
from model import Model
from plain import PlainModel
from tokenizer import Tokenizer
from weights import load_weights, open_gguf

import attnhub

# How far a logit may be off (they reach 40). Rounding in 30 layers came to 1e-4 and 0.8 here.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 1.6}

LETTER = (
    "Summarize in one sentence: The lighthouse on the northern cape was built in 1871, after three "
    "ships were lost on the same reef within a year. Its lamp burned whale oil at first, then "
    "paraffin, and was wired to the village's power line in 1932. Since 1990 nobody has lived "
    "there: the light is switched from the harbour office, and the keeper's house is a museum."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A request, what to call it, and the step before which it is submitted."""

    name: str
    request: Request
    arrives: int


def jobs(tokenizer: Tokenizer) -> list[Job]:
    """Return new requests: four greedy chats, one greedy text and one sampled chat."""
    manual = topics["for"][:1500].rpartition("\n\n")[0]

    def job(name: str, prompt: list[int], arrives: int, **settings: Any) -> Job:
        request = Request(prompt=prompt, max_new_tokens=32, keep_logits=True, **settings)
        return Job(name=name, request=request, arrives=arrives)

    def chat(text: str, arrives: int, **settings: Any) -> Job:
        return job(text, tokenizer.chat(text), arrives, **settings)

    return [
        chat("What is the capital of France?", 0),
        chat(LETTER, 0),
        job("Python's manual on the for statement", tokenizer.encode(manual), 4),
        chat("Name the primary colors.", 8),
        chat("Write a haiku about the sea.", 12),
        chat("Where would you sail to?", 12, temperature=0.8, top_p=0.9, seed=1),
    ]


@dataclass(slots=True)
class Speed:
    """Rows and seconds of one kind of step."""

    tokens: int = 0
    seconds: float = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """Count one step."""
        self.tokens += tokens
        self.seconds += seconds

    def __str__(self) -> str:
        rate = self.tokens / max(self.seconds, 1e-9)
        return f"{self.tokens} tokens in {self.seconds:.1f} s, {rate:.0f} tokens/s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What serving the jobs took, and who computed the attention."""

    prefill: Speed
    decode: Speed
    mixed: attnhub.Decision


def serve(engine: Engine, work: list[Job]) -> Run:
    """Submit the jobs when they arrive and step until all are answered; print joins and leaves."""
    prefill, decode, mixed = Speed(), Speed(), None
    waiting, step = list(work), 0
    print("  step  prompt rows  answer rows  free pages")
    while engine.queue or waiting:
        joined = [job for job in waiting if job.arrives <= step]
        waiting = [job for job in waiting if job.arrives > step]
        for job in joined:
            engine.submit(job.request)
        start = time.perf_counter()
        chunks = engine.step()
        seconds = time.perf_counter() - start
        rows, answering = sum(len(c.tokens) for c in chunks), sum(map(is_decode, chunks))
        if answering == rows:
            decode.add(rows, seconds)
        else:
            prefill.add(rows, seconds)
            mixed = engine.model.attention.explain() if answering or mixed is None else mixed
        left = sum(c.request.finished for c in chunks)
        if joined or left or answering < rows:
            events = f"{len(joined)} join" * bool(joined), f"{left} leave" * bool(left)
            text = ", ".join(filter(None, events))
            print(f"  {step:4} {rows - answering:12} {answering:12} {len(engine.free):11}  {text}")
        step += 1
    assert mixed is not None
    return Run(prefill=prefill, decode=decode, mixed=mixed)


def is_decode(chunk: Chunk) -> bool:
    """Whether the chunk is the newest token of an answer."""
    return chunk.start >= len(chunk.request.prompt)


def check(plain: PlainModel, work: list[Job], tolerance: float) -> bool:
    """Compare every logit and every greedy token with the plain model's; print and return."""
    worst = regret = 0.0
    same = greedy = 0
    for request in (job.request for job in work):
        tokens = torch.tensor(request.tokens, device=plain.weights["embed"].device)
        expected = plain.forward(tokens)[len(request.prompt) - 1 : -1]
        got = torch.stack(request.logits)
        worst = max(worst, float((got - expected).abs().max()))
        if request.temperature == 0:
            chosen = expected.gather(1, tokens[len(request.prompt) :, None])[:, 0]
            loss = expected.amax(1) - chosen
            regret = max(regret, float(loss.max()))
            same, greedy = same + int((loss == 0).sum()), greedy + len(loss)
    # Where the two best tokens are closer than the rounding, either is right.
    good = worst <= tolerance and regret <= 2 * tolerance
    print(f"  logits equal the plain model's: largest difference {worst:.1e} of {tolerance:.0e}")
    print(f"  greedy tokens that are the plain model's: {same} of {greedy}")
    print("  passed" if good else "  FAILED")
    return good


def run(plain: PlainModel, tokenizer: Tokenizer, dtype: torch.dtype, device: torch.device) -> bool:
    """Serve and check all jobs in one dtype on one device."""
    model = Model(plain.config, plain.weights, num_pages=128, device=device, dtype=dtype)
    engine = Engine(model, end=tokenizer.end)
    warm_up = engine.submit(Request(prompt=[tokenizer.end], max_new_tokens=2))
    while engine.queue:
        engine.step()
    assert warm_up.finished

    print(f"\nSteps ({str(dtype).removeprefix('torch.')} on {device})")
    work = jobs(tokenizer)
    result = serve(engine, work)
    print("\nAnswers")
    for job in work:
        request, drawn = job.request, f", temperature {job.request.temperature}"
        size = f"{len(request.prompt)} tokens{drawn * (request.temperature > 0)}"
        print(f"- {textwrap.shorten(job.name, 70, placeholder=' ...')} ({size})")
        print(textwrap.indent(tokenizer.decode(request.answer).strip(), "  > ", lambda _: True))
    print("\nSpeed")
    print(f"  prefill, in steps with prompt rows: {result.prefill}")
    print(f"  decode, in steps without: {result.decode}")
    print("\nAttention of a step with prompt and answer rows")
    print(textwrap.indent(str(result.mixed), "  "))
    print("  in the last step, with answer rows only:")
    print(f"  {str(model.attention.explain()).splitlines()[0]}")
    print("\nCheck")
    return check(plain, work, TOLERANCE[dtype])


def main() -> int:
    """Return the exit status."""
    start = time.perf_counter()
    # A product waits for its slowest thread: leave cores to whatever else runs on this machine.
    torch.set_num_threads(max(1, torch.get_num_threads() // 2))
    gguf = open_gguf()
    config, weights = load_weights(gguf)
    tokenizer = Tokenizer(gguf)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    plain = PlainModel(config, {name: weight.to(device) for name, weight in weights.items()})
    seconds = time.perf_counter() - start
    print(f"SmolLM2-135M-Instruct, read in {seconds:.1f} s; CPU threads: {torch.get_num_threads()}")
    dtypes = [torch.float32] if device.type == "cpu" else [torch.float32, torch.bfloat16]
    passed = [run(plain, tokenizer, dtype, device) for dtype in dtypes]
    print(f"\n{time.perf_counter() - start:.0f} s in all")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())

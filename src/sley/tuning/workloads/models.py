"""Models: the two workloads of MSCCLang's end-to-end results (section 7.6; GC3, section 7.5).

A language model is served on 8 A100, and a mixture of experts (MoE) trained on 256 A100. The papers
name neither model, so the dimensions are those of published models of the same kind and time.
Computation is the larger of two times: floating-point operations at a share of the GPU's peak, and
bytes of weights at a share of its memory's rate. Left out: attention to earlier tokens, norms,
embeddings, kernel launches, and the MoE's gating.
"""

from __future__ import annotations

from dataclasses import dataclass

from sley.errors.tuning import D945
from sley.ir.words import is_integer
from sley.tuning.workloads.workload import Steps, Workload

_BYTES = 2
"""Of a number in 16-bit floating point."""

_BACKWARD = 2
"""The operations of a layer's backward pass over those of its forward pass."""


@dataclass(frozen=True)
class Gpu:
    """A GPU's rates. The defaults are an A100's.

    peak: floating-point operations a second (NVIDIA's data sheet: 312e12 in 16 bit).
    memory: bytes a second (NVIDIA's data sheet: 1555e9, with 40 GB).
    of_peak: the share of the peak that large matrix products reach (assumption: 0.5; Megatron-LM's
        trainings reach 0.44 to 0.52 on A100).
    of_memory: the share of the memory's rate that reading weights reaches (assumption: 0.7).
    """

    peak: float = 312e12
    memory: float = 1555e9
    of_peak: float = 0.5
    of_memory: float = 0.7

    def time_us(self, operations: float, size_bytes: float) -> float:
        """The time of operations on weights of a size."""
        compute_s = operations / (self.peak * self.of_peak)
        return max(compute_s, size_bytes / (self.memory * self.of_memory)) * 1e6


A100 = Gpu()


def inference(
    batch: int,
    *,
    tokens: int = 1,
    layers: int = 40,
    hidden: int = 5120,
    ranks: int = 8,
    gpu: Gpu = A100,
) -> Workload:
    """A step of a language model with parallel tensors: in each layer an attention and a network
    of two products, each followed by an AllReduce of batch x tokens x hidden numbers (Megatron-LM).

    batch: sequences at a time. tokens: of each: 1 in a decoding step, those of the prompt when it
    is filled in. layers, hidden: by default of the model with 13 billion parameters of GPT-3's
    paper (table 2.1: 40 layers of 5140; 5120 here, which 8 GPUs can divide). Codex, which Copilot
    used, has 12 billion. Errors: D945.
    """
    _check(batch=batch, tokens=tokens, layers=layers, hidden=hidden, ranks=ranks)
    steps, rows = Steps(), batch * tokens
    for _ in range(layers):
        for products in (4, 8):  # weights of attention and network, in hidden^2
            weights = products * hidden**2 / ranks
            steps.compute(gpu.time_us(2 * weights * rows, weights * _BYTES))
            steps.call("allreduce", rows * hidden * _BYTES)
    kind = "decoding" if tokens == 1 else f"{tokens} tokens"
    return steps.workload(f"inference, batch {batch}, {kind}", ranks)


def moe_training(
    hidden: int = 1024,
    *,
    tokens: int = 4096,
    layers: int = 24,
    top: int = 1,
    ranks: int = 256,
    bucket_bytes: int = 25 << 20,
    gpu: Gpu = A100,
) -> Workload:
    """A training step of a mixture of experts, one expert on each GPU: every other layer sends its
    tokens to their experts and back (two AllToAlls forward, two backward), and the gradients of the
    other weights are reduced in buckets beside the backward pass (DistributedDataParallel).

    hidden, layers: by default of DeepSpeed-MoE's 350M+MoE-128 (24 layers of 1024; 2048 is that of
    1.3B+MoE-128). tokens: of each GPU in a step. top: experts of each token (1: Switch Transformer,
    DeepSpeed-MoE; 2: GShard). bucket_bytes: PyTorch's default is 25 MiB. Errors: D945.
    """
    _check(hidden=hidden, tokens=tokens, layers=layers, top=top, ranks=ranks, bucket=bucket_bytes)
    steps = Steps()
    attention, network = 4 * hidden**2, 8 * hidden**2
    # Equal parts: as many bytes for each expert, so every expert gets `top` x tokens.
    routed = max(tokens * top * hidden * _BYTES // ranks, 1) * ranks

    def compute(weights: int, passes: int, copies: int = 1) -> None:
        steps.compute(gpu.time_us(2 * weights * tokens * copies * passes, weights * _BYTES))

    for layer in range(layers):
        compute(attention, 1)
        if layer % 2:
            steps.call("alltoall", routed)
            compute(network, 1, top)
            steps.call("alltoall", routed)
        else:
            compute(network, 1)
    bucket, buckets = 0, []
    for layer in reversed(range(layers)):
        if layer % 2:
            steps.call("alltoall", routed)
            compute(network, _BACKWARD, top)
            steps.call("alltoall", routed)
        else:
            compute(network, _BACKWARD)
            bucket += network * _BYTES
        compute(attention, _BACKWARD)
        bucket += attention * _BYTES
        if bucket >= bucket_bytes or layer == 0:
            buckets.append(steps.call("allreduce", bucket, overlaps=True))
            bucket = 0
    steps.wait(*buckets)
    name = f"MoE training, hidden {hidden}, {tokens} tokens, top {top}"
    return steps.workload(name, ranks)


def _check(**given: int) -> None:
    for name, value in given.items():
        if not is_integer(value) or not 0 < value <= 1 << 30:
            raise D945.error(expected=f"{name} from 1 to {1 << 30}", found=f"{name}={value!r}")

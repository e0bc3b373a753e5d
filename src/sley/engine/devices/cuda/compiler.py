"""NVRTC: compiles kernels to machine code and reports their resources. Needs no GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from sley.errors import counted, shortened
from sley.errors.devices import K501, K502, K503

OPTIONS = ("--std=c++17", "--ptxas-options=-v")
"""Options of every compilation; -v makes the assembler print each function's resources."""

_KERNEL = re.compile(r"Compiling entry function '(\S+)'")
_FUNCTION = re.compile(r"Function properties for (\S+)")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_ERROR = re.compile(r"\berror\s*:")
_SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True)
class Resources:
    """The resources of a function: registers and stack of a thread, spills (bytes of registers that
    it stores to the stack and loads back), and shared memory of a block. A function that isn't
    inlined has its own stack and spills; its registers are counted in its kernel's."""

    registers: int = 0
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0
    stack_bytes: int = 0
    shared_bytes: int = 0


@dataclass(frozen=True)
class Compiled:
    """Machine code for one GPU architecture, the same as PTX, and the resources of its functions,
    by name."""

    cubin: bytes
    ptx: bytes
    functions: dict[str, Resources]


def compile_text(text: str, arch: str) -> Compiled:
    """Compiles C++17 source with kernels for a GPU architecture ("sm_90"). K501 without NVRTC, K502
    for an architecture that it doesn't support, K503 with its log if the compilation fails."""
    compiler = _Compiler()
    options = [option.encode() for option in (f"--gpu-architecture={arch}", *OPTIONS)]
    program = compiler.call("nvrtcCreateProgram", text.encode(), b"kernels.cu", 0, [], [])
    try:
        (result,) = compiler.nvrtc.nvrtcCompileProgram(program, len(options), options)
        log = compiler.text("nvrtcGetProgramLog", program)
        if result != compiler.nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise _failure(result.name, log, arch)
        cubin, ptx = (compiler.bytes(f"nvrtcGet{kind}", program) for kind in ("CUBIN", "PTX"))
        return Compiled(cubin, ptx, _resources(log))
    finally:
        compiler.nvrtc.nvrtcDestroyProgram(program)


def version() -> tuple[int, int]:
    """NVRTC's version: (13, 0). K501 without NVRTC."""
    major, minor = _Compiler().call("nvrtcVersion")
    return major, minor


def architecture(major: int, minor: int) -> str:
    """The architecture to compile for, given a GPU's compute capability: the newest that NVRTC
    supports and the GPU runs; it must have the same major number. K501 without NVRTC, K502 if
    there is none."""
    known = _Compiler().call("nvrtcGetSupportedArchs")
    usable = [arch for arch in known if arch // 10 == major and arch % 10 <= minor]
    if not usable:
        raise K502.error(
            expected=f"an NVRTC for GPUs of compute capability {major}.{minor}",
            found=f"NVRTC {'.'.join(map(str, version()))}, for {', '.join(map(_words, known))}",
            remedy="Install the NVRTC of a CUDA that supports this GPU: newer ones for newer GPUs, "
            'older ones for older GPUs (`pip install "cuda-bindings[all]==12.*"`).',
        )
    return f"sm_{max(usable)}"


def _words(arch: int) -> str:
    return f"{arch // 10}.{arch % 10}"


class _Compiler:
    """NVRTC's functions, which cuda-bindings loads at the first call."""

    def __init__(self) -> None:
        try:
            # The module may be cached although its package is missing.
            import_module("cuda.bindings")
            self.nvrtc = import_module("cuda.bindings.nvrtc")
        except ImportError as error:
            raise _nvrtc_error(str(error)) from None

    def call(self, name: str, *arguments: object) -> Any:
        """Calls a function and returns None, its value, or a tuple of its values."""
        try:
            result, *values = getattr(self.nvrtc, name)(*arguments)
        except RuntimeError as error:
            raise _nvrtc_error(str(error)) from None
        if result != self.nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise _nvrtc_error(f"{name}: {result.name}")
        return values[0] if len(values) == 1 else tuple(values)

    def bytes(self, name: str, program: Any) -> bytes:
        """The bytes that `name` writes into a buffer of `name`Size bytes."""
        buffer = bytes(self.call(f"{name}Size", program))
        self.call(name, program, buffer)
        return buffer

    def text(self, name: str, program: Any) -> str:
        return self.bytes(name, program).rstrip(b"\0").decode(errors="replace")


def _nvrtc_error(found: str) -> Exception:
    return K501.error(
        expected="NVIDIA's compiler NVRTC, with its builtins",
        found=found,
        remedy="Install the extra, which has cuda-bindings and nvidia-cuda-nvrtc: "
        'pip install "sley[cuda]".',
    )


def _failure(result: str, log: str, arch: str) -> Exception:
    lines = [line.rstrip() for line in log.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("ptxas info")]
    if result == "NVRTC_ERROR_INVALID_OPTION":
        known = _Compiler().call("nvrtcGetSupportedArchs")
        return K502.error(
            expected=f"an NVRTC that compiles for {arch}",
            found=f"NVRTC {'.'.join(map(str, version()))}, which says: {' '.join(lines)}",
            remedy=f"Name one of sm_{', sm_'.join(map(str, known))}, or install another NVRTC.",
        )
    if result == "NVRTC_ERROR_COMPILATION":
        errors = sum(_ERROR.search(line) is not None for line in lines)
        return K503.error(
            expected=f"a text that compiles for {arch}",
            found=counted(errors, "error"),
            notes=shortened(lines),
        )
    return _nvrtc_error(" ".join([result, *lines]))


def _resources(log: str) -> dict[str, Resources]:
    """The resources of each function, from the assembler's log. Its lines are in this order: the
    kernel's name; each function's name and, on the next line, its stack; the kernel's registers."""
    found: dict[str, Resources] = {}
    kernel = function = ""
    for line in log.splitlines():
        if match := _KERNEL.search(line):
            kernel = match[1]
        elif match := _FUNCTION.search(line):
            function = match[1]
        elif match := _STACK.search(line):
            stack, stores, loads = map(int, match.groups())
            found[function] = replace(
                found.get(function, Resources()),
                stack_bytes=stack,
                spill_store_bytes=stores,
                spill_load_bytes=loads,
            )
        elif match := _REGISTERS.search(line):
            shared = _SHARED.search(line)
            found[kernel] = replace(
                found.get(kernel, Resources()),
                registers=int(match[1]),
                shared_bytes=int(shared[1]) if shared else 0,
            )
    return found

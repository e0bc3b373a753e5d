"""Code generation: kernels of plans, as straight-line code or for an interpreter, over shared
primitives (ResCCL 4.5, MSCCLang 6)."""

from sley.codegen.source import KERNELS, Engine, Kernels, Platform, Variant

__all__ = ["KERNELS", "Engine", "Kernels", "Platform", "Variant"]

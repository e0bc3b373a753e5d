"""Kernels made of plans: straight-line code, an interpreter, and the primitives of both
(ResCCL 4.5, MSCCLang 6)."""

from sley.codegen.source import KERNELS, Engine, Kernels, Platform, Variant

__all__ = ["KERNELS", "Engine", "Kernels", "Platform", "Variant"]

"""Proofs of files, as their runtime reads them, and the conditions of proofs."""

from pathlib import Path

import pytest

import sley
from sley.errors import SleyError
from support.inputs.xml_plans import exchange


def conditions(proof: sley.Proof) -> dict[str, str]:
    return {condition.about: condition.text for condition in proof.conditions}


def test_a_proof_names_place_slots_and_input() -> None:
    assert conditions(sley.verify(exchange())) == {
        "place": "in place",
        "slots": "8 slots or more, one for each message",
    }
    outside = sley.verify(exchange(in_place=False), 3, per_chunk=True)
    assert conditions(outside) == {
        "place": "out of place",
        "slots": "3 slots or more, one for each chunk",
        "input": "the input is kept",
    }


def test_the_conditions_are_a_line_each_with_place_and_sizes_first(tmp_path: Path) -> None:
    path = tmp_path / "plan.xml"
    sley.save(exchange(in_place=False), path, min_bytes=64)
    (proof,) = sley.verify_file(path, "executor").proofs
    first, place, sizes, *others = proof.holds.splitlines()
    assert (first, place) == ("holds for:", "  out of place")
    assert sizes.startswith("  64 and more")
    assert len(others) == len(proof.conditions) - 2


def test_a_proof_names_the_root_and_a_write_to_the_input() -> None:
    @sley.program(sley.Broadcast(2, root=1))
    def spoils(p: sley.lang.ChunkProgram) -> None:
        p.chunk(1, "in", 0).copy(0, "out", 0).copy(1, "out", 0).copy(1, "in", 0)

    found = conditions(sley.verify(sley.compile(spoils)))
    assert (found["root"], found["input"]) == ("root 1", "the input may be overwritten")


def test_a_file_is_proven_for_its_target(tmp_path: Path) -> None:
    path = tmp_path / "plan.xml"
    sley.save(exchange(), path, target="rccl")
    found = sley.verify_file(path, "rccl")
    assert [proof.plan.collective.in_place for proof in found.proofs] == [True]
    assert (found.target.name, found.notes) == ("rccl", ())
    assert str(found) == f"{found.proofs[0]}\n{found.proofs[0].holds}"


def refused(path: Path, target: str, **settings: object) -> str:
    with pytest.raises(SleyError) as caught:
        sley.verify_file(path, target, **settings)
    return caught.value.code


def test_wrong_targets_suffixes_and_settings_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.xml"
    sley.save(exchange(), path)
    assert refused(path, "nccl") == "F440"
    assert refused(tmp_path / "plan.cu", "executor") == "F460"
    assert refused(path, "executor", colour="red") == "C309"
    with pytest.raises(SleyError, match="C309") as caught:
        sley.verify_file(path, max_bytes=4096)
    assert "executor" in caught.value.diagnostics[0].remedy
    assert refused(tmp_path / "missing.xml", "executor") == "F404"

"""Proofs of files, as their runtime reads them, and the conditions of proofs."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

import sley
from sley.errors import SleyError
from sley.ir.words import Op
from support.inputs.xml_plans import I, O, S, Step, exchange, plan_of


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
        "input": "calls don't change their input",
    }


def test_the_conditions_are_a_line_each_with_place_and_sizes_first(tmp_path: Path) -> None:
    path = tmp_path / "plan.xml"
    sley.save(exchange(in_place=False), path, min_bytes=64)
    (proof,) = sley.verify_file(path, "executor").proofs
    first, place, sizes, *others = proof.holds.splitlines()
    assert (first, place) == ("the proof holds for:", "  out of place")
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


def test_messages_of_ll_order_no_other_words(tmp_path: Path) -> None:
    """Rank 0 writes its scratch, sends it, and adds it to the answer, in another block: the kernels
    may load it for the sum before the message arrives."""

    def blocks(*waits: tuple[int, int]) -> list[list[list[Step]]]:
        sent = Step(Op.SEND, (S, 0), send=1, chan=0)
        summed = Step(Op.RECV_REDUCE_COPY, (S, 0), (O, 0), recv=1, chan=0, waits=waits)
        other = [
            Step(Op.RECV, dst=(S, 0), recv=0, chan=0),
            Step(Op.SEND, (I, 0), send=0, chan=0),
            Step(Op.COPY, (I, 0), (O, 0)),
            Step(Op.REDUCE, (S, 0), (O, 0)),
        ]
        return [[[Step(Op.COPY, (I, 0), (S, 0)), sent], [summed]], [other]]

    flat, ordered = (
        plan_of(sley.AllReduce(2), rows, scratch=[1, 1]) for rows in (blocks(), blocks((0, 1)))
    )
    sley.verify(flat)
    with pytest.raises(SleyError, match="V204"):
        sley.verify(flat, flagged=True)
    sley.verify(replace(flat, protocol=sley.Protocol.SIMPLE), flagged=True)
    sley.verify(ordered, flagged=True)
    # The file gets the wait, without which it would be refused.
    sley.save(flat, tmp_path / "plan.xml")
    assert len(sley.load(tmp_path / "plan.xml").waits) == 1
    text = (tmp_path / "plan.xml").read_text()
    (tmp_path / "plan.xml").write_text(re.sub('depid="0" deps="."', 'depid="-1" deps="-1"', text))
    assert refused(tmp_path / "plan.xml", "executor") == "V204"

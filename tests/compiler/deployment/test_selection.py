"""Selection: random directories and calls, against the rules of each runtime written down again."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sley.compiler.deployment import CallAction, DeployedCall, decide, examine, runtime_named
from sley.compiler.deployment.candidates import read_head
from sley.errors import SleyError
from sley.errors.deployment import F504
from sley.formats.mscclpp.parse import read_header
from support.generators.examples import examples
from support.inputs.deployments import plan, prove_nothing, xml


@dataclass(frozen=True)
class Head:
    """The attributes of a file that a runtime compares with a call."""

    coll: str
    ranks: int
    chunks: int
    inplace: int
    outofplace: int
    least: int
    most: int

    def text(self) -> str:
        return (
            f'<algo name="x" proto="LL" nchannels="1" nchunksperloop="{self.chunks}" '
            f'ngpus="{self.ranks}" coll="{self.coll}" inplace="{self.inplace}" '
            f'outofplace="{self.outofplace}" minBytes="{self.least}" maxBytes="{self.most}"></algo>'
        )


SIZES = st.sampled_from([0, 1, 256, 1024, 4096])
COLLECTIVES = ("allreduce", "allgather", "reducescatter", "gather")
HEADS = st.builds(
    Head,
    st.sampled_from(COLLECTIVES),
    st.sampled_from([2, 4]),
    st.sampled_from([1, 4, 6]),
    st.integers(0, 1),
    st.integers(0, 1),
    SIZES,
    SIZES,
)
CALLS = st.builds(
    DeployedCall,
    st.sampled_from(COLLECTIVES),
    st.sampled_from([16, 192, 256, 1024, 4096, 8192]),
    st.sampled_from([2, 4]),
    st.just(2),
    st.booleans(),
    st.sampled_from(["float32", "int8"]),
)


def matches(head: Head, call: DeployedCall) -> bool:
    """Whether msccl-executor-nccl and RCCL take a file for a call: rules of mscclSelectAlgo."""
    width = {"float32": 4, "int8": 1}[call.dtype]
    count = call.size_bytes // width // (1 if call.collective == "allreduce" else call.ranks)
    multiplier = head.ranks if head.coll in ("allgather", "reducescatter") else 1
    size = count * width * multiplier
    return (
        count > 0
        and count * multiplier % head.chunks == 0
        and size >= head.least
        and (head.most == 0 or size <= head.most)
        and head.ranks == call.ranks
        and head.coll == call.collective
        and bool(head.inplace if call.in_place else head.outofplace)
    )


@pytest.mark.parametrize("runtime", ["executor", "rccl"])
@examples(12)
@given(heads=st.lists(HEADS, min_size=1, max_size=4), calls=st.lists(CALLS, min_size=4, max_size=4))
def test_the_first_match_of_random_files_runs(runtime, heads, calls):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        prove_nothing(patch)  # the files have no steps
        for number, head in enumerate(heads):
            Path(folder, f"{number}.xml").write_text(head.text())
        found = examine(folder, runtime_named(runtime))
        for call in calls:
            right = [f"{k}.xml" for k, head in enumerate(heads) if matches(head, call)]
            decision = decide(found, call)
            assert decision.chosen == tuple(right[:1])
            assert decision.outcome == (CallAction.RUNS if right else CallAction.OWN)
            assert set(decision.why_not) == {f"{k}.xml" for k in range(len(heads))} - {*right[:1]}


@examples(9)
@given(
    ends=st.lists(st.tuples(SIZES, SIZES, st.sampled_from([8, 16])), min_size=1, max_size=4),
    sizes=st.lists(st.sampled_from([16, 256, 1024, 4096, 8192]), min_size=2, max_size=2),
    in_place=st.booleans(),
)
def test_any_matching_plan_of_mscclpp_may_run(ends, sizes, in_place):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        prove_nothing(patch)  # which plan runs, not how
        for number, (least, most, ranks) in enumerate(ends):
            limits = {"min_message_size": least, "max_message_size": most}
            plan(Path(folder, f"{number}.json"), ranks=ranks, **limits)
        found = examine(folder, runtime_named("mscclpp-python"))
        for size in sizes:
            right = {
                f"{k}.json"
                for k, (least, most, ranks) in enumerate(ends)
                if least <= size <= most and ranks == 16 and in_place
            }
            decision = decide(found, DeployedCall("allreduce", size, 16, 8, in_place))
            assert set(decision.chosen) == right


def _damaged(text: str, where: int, what: str, length: int) -> str:
    where %= len(text)
    return text[:where] + what + text[where + length :]


DAMAGE = st.tuples(st.integers(0), st.text(max_size=4), st.integers(0, 9))


@pytest.fixture(scope="module")
def right(tmp_path_factory):
    folder = tmp_path_factory.mktemp("right")
    plan(folder / "a.json", ranks=2)
    return xml(folder / "a.xml", ranks=2), (folder / "a.json").read_text()


@examples(9)
@given(damage=st.lists(DAMAGE, min_size=1, max_size=3), whole=st.one_of(st.none(), st.text()))
def test_damaged_heads_are_read_or_refused(right, damage, whole):
    with tempfile.TemporaryDirectory() as folder:
        for text, read in zip(right, (lambda p: read_head(p, F504), read_header), strict=True):
            for where in damage:
                text = _damaged(text, *where)
            path = Path(folder, "file")
            path.write_text(text if whole is None else whole, errors="surrogatepass")
            try:
                read(path)
            except SleyError as error:
                assert error.code in ("F504", "F506")

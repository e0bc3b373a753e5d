"""Notebooks: IPython shows every value as HTML, and of errors the user's own lines."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

RUNNER = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

shell = InteractiveShell.instance(colors="nocolor")
shown = []
for notebook in json.load(sys.stdin):
    shell.reset()
    cells = []
    for text in notebook:
        with capture_output(display=False) as output:
            done = shell.run_cell(text, store_history=True)
        data, _ = shell.display_formatter.format(done.result)
        cells.append({
            "text": text,
            "error": type(done.error_in_exec).__name__ if done.error_in_exec else "",
            "printed": output.stdout,
            "value": repr(done.result),
            "html": data.get("text/html"),
        })
    shown.append(cells)
json.dump(shown, sys.stdout)
"""

NOTEBOOKS = {
    "a program": [
        "import sley",
        "@sley.program(sley.AllGather(3))\n"
        "def ring(p: sley.ChunkProgram):\n"
        "    for rank in range(3):\n"
        "        chunk = p.chunk(rank, 'in', 0).copy(rank, 'out', rank)\n"
        "        for step in range(1, 3):\n"
        "            chunk = chunk.copy((rank + step) % 3, 'out', rank)",
        "ring",
        "plan = sley.compile(ring, topology='1x3')\nplan",
        "sley.verify(plan)",
        "sley.show(plan, rank=0)",
        "sley.draw(plan, of='instructions')",
    ],
    "a simulation": [
        "import sley",
        "plan = sley.compile(sley.algorithms.ring_allreduce(4, in_place=True), topology='1x4')",
        "sley.simulate(plan, '1M')",
        "found = sley.simulate(plan, ['64K', '1M'])\nfound",
        "found[0].bound",
        "found[0].model",
        "found[0].links",
        "found[0].critical",
        "sley.draw(found[0])",
    ],
    "a choice, and runs": [
        "import sley",
        "ring = sley.load('ring-allreduce', ranks=2, in_place=True)",
        "choices = sley.choose(ring, ['4K', '64K'], '1x2', channels=1, instances=1)\nchoices",
        "choices.at('4K')",
        "choices.at('4K').begin",
        "choices.ranges",
        "[choices.plan_for('4K')] * 2",
        "sley.run(choices.plan_for('4K'), ['4K', '8K'], iterations=1, warmup=1)",
        "sley.run(choices.plan_for('4K'), '4K', iterations=1, warmup=1)[0]",
    ],
    "clusters and tables": [
        "import sley",
        "cluster = sley.topologies.ndv4()\ncluster",
        "cluster.links",
        "sley.draw(cluster)",
        "plan = sley.compile(sley.algorithms.ring_allreduce(4), topology='1x4', schedule='hpds')",
        "plan.instructions",
        "plan.estimate",
        "sley.verify(plan).order",
        "sley.Options(channels=1)",
        "plan.collective",
    ],
    "mistakes": [
        "import sley",
        "\n@sley.program(sley.AllReduce(3))\ndef wrong(p):\n    p.chunk(5, 'in', 0)",
        "def helper(p):\n    p.chunk(0, 'in', 9)",
        "@sley.program(sley.AllReduce(3))\ndef wrong(p):\n    helper(p)",
        "\n\n@sley.program(sley.AllReduce(2))\ndef unfinished(p):\n    p.chunk(0, 'in', 0)",
        "sley.verify(sley.compile(unfinished))",
        "sley.AllReduce(-1)",
        "sley.algorithms.ring_allreduce(0)",
        "sley.CostModel(post_us=-1)",
        "sley.Options(protocol='LL3')",
        "sley.topologies.find('ndv55')",
        "sley.topologies.cluster(2, 8, nics=3)",
        "sley.compile(5)",
        "sley.simulate(5, '1M')",
        "open('wrong.py', 'w').write('import sley\\n1 / 0\\n')",
        "sley.load('wrong.py')",
        "sley.rescclang.load('missing.resccl')",
    ],
}


def test_notebooks_show_html_of_every_value_and_of_errors_the_users_cells(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUNNER],
        input=json.dumps(list(NOTEBOOKS.values())),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    cells = dict(zip(NOTEBOOKS, json.loads(done.stdout), strict=True))
    mistakes = cells.pop("mistakes")
    for cell in (cell for notebook in cells.values() for cell in notebook):
        assert not cell["error"], cell["printed"]
        assert cell["html"] or cell["value"] == "None", cell
    report = unescape(cells["a simulation"][2]["html"])
    assert '"timeline":{"kind":"executions"' in report
    failed = [cell for cell in mistakes if cell["error"]]
    assert len(failed) == 13
    for cell in failed:
        assert cell["error"] == "SleyError", cell
        assert "Traceback (most recent call last)" in cell["printed"]
        assert "/sley/" not in cell["printed"], cell["printed"]
    places = [re.search(r"SleyError: (Cell .*): [A-Z]", cell["printed"]) for cell in failed[:3]]
    assert [place and place[1] for place in places] == [
        "Cell In[2], line 3",
        "Cell In[3], line 2",
        "Cell In[5], line 1",
    ]
    assert "\n  called from: Cell In[4], line 3\n" in failed[1]["printed"]

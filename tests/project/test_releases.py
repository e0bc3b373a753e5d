"""The Dockerfile, the devcontainer and releases. Tests can't pull images: the steps run in roots
of Debian that debootstrap makes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SERVED = Path("/etc/ssl/certs/ca-certificates.crt")
"""The certificates of this machine, behind a proxy its own; a root without the package has none."""

PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass
class Stage:
    """A stage of a Dockerfile: where it starts from, and its instructions, as pairs of the
    instruction's name and its words."""

    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)


def read_stages(text: str) -> dict[str, Stage]:
    """The stages of a Dockerfile by name; the last may have none."""
    stages: dict[str, Stage] = {}
    stage = Stage("")
    for line in re.sub(r"\\\n", "", re.sub(r"(?m)^#.*\n", "", text)).splitlines():
        if not line.strip():
            continue
        name, words = line.split(maxsplit=1)
        if name == "FROM":
            base, _, title = words.partition(" AS ")
            stage = stages[title] = Stage(base)
        else:
            stage.steps.append((name, words))
    return stages


STAGES = read_stages((ROOT / "Dockerfile").read_text())


def in_root(root: Path, command: str, environment: Mapping[str, str], folder: str) -> str:
    """The output of a shell command in a root, with this machine's network and devices."""
    inside = (
        'for part in proc dev sys; do mount --rbind "/$part" "$0/$part"; done;'
        'exec chroot "$0" /usr/bin/env -i "$@"'
    )
    variables = {"PATH": PATH, "HOME": "/root", **environment}
    words = [f"{name}={value}" for name, value in variables.items()]
    words += ["/bin/sh", "-c", f'cd "{folder}" && {command}']
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-ec", inside, str(root), *words],
        env={"PATH": PATH},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-4000:]}{done.stderr[-4000:]}"
    return done.stdout


Built = tuple[Path, dict[str, str]]
"""A root and its environment variables."""


def build(name: str, folder: Path, built: dict[str, Built]) -> Built:
    """A stage; stages that it starts from or copies from are built first, each once."""
    if name not in built:
        built[name] = run_steps(STAGES[name], folder / (name or "last"), folder, built)
    return built[name]


def run_steps(stage: Stage, root: Path, roots: Path, built: dict[str, Built]) -> Built:
    if stage.base in STAGES:
        base, variables = build(stage.base, roots, built)
        environment = dict(variables)
        subprocess.run(["cp", "-a", base, root], check=True)
    else:
        suite = re.fullmatch(r"debian:(\w+)-slim", stage.base)
        assert suite, stage.base
        command = ["debootstrap", "--variant=minbase", suite[1], str(root)]
        subprocess.run(command, check=True, capture_output=True)
        environment = {}
        if SERVED.exists():
            shutil.copy(SERVED, root / "etc" / "served.crt")
            environment = {"PIP_CERT": "/etc/served.crt"}
    folder = "/"
    for step, words in stage.steps:
        if step == "RUN":
            in_root(root, words, environment, folder)
        elif step in ("ENV", "ARG"):
            variable, _, value = words.partition("=")
            environment[variable] = value
        elif step == "WORKDIR":
            folder = words
            (root / folder[1:]).mkdir(parents=True, exist_ok=True)
        elif step == "COPY" and words == ". .":
            files = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT)
            copy = ["cpio", "--quiet", "-0pdm", str(root / folder[1:])]
            subprocess.run(copy, input=files, cwd=ROOT, check=True)
        elif step == "COPY":
            found = re.fullmatch(r"--from=(\w+) /(\S+) /(\S+)", words)
            assert found, words
            source, _ = build(found[1], roots, built)
            shutil.copytree(source / found[2], root / found[3], symlinks=True)
        else:
            assert step == "ENTRYPOINT", step
    return root, environment


@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("debootstrap") or not shutil.which("cpio"),
    reason="needs root, debootstrap and cpio",
)
def test_the_image_proves_runs_and_predicts(tmp_path: Path) -> None:
    """Each step of the Dockerfile, and three commands in the result, which has no compiler."""
    root, environment = build("", tmp_path, {})
    entry = json.loads(dict(STAGES[""].steps)["ENTRYPOINT"])
    for words, expected in (
        ("verify ring-allreduce --ranks 8", "proven: ring-allreduce"),
        ("run ring-allreduce --ranks 2 -b 1K -e 1M", "# Out of bounds values : 0 OK"),
        ("simulate ring-allreduce --topology ndv4 -b 1M", "GB/s"),
    ):
        assert expected in in_root(root, f"{' '.join(entry)} {words}", environment, "/")
    assert not in_root(root, "command -v c++ gcc make || true", environment, "/")

    # A clone in the same root: it says what to install.
    shutil.copytree(tmp_path / "build" / "source", root / "source")
    install = "python3 -m venv /own && ! /own/bin/python -m pip install /source 2>&1"
    assert "Debian, Ubuntu: g++" in in_root(root, install, environment, "/")
    install = "apt-get update && apt-get install --yes g++ >/dev/null && ! /own/bin/python -m pip"
    install += " install /source 2>&1"
    assert "Debian, Ubuntu: python3-dev" in in_root(root, install, environment, "/")


def test_a_tag_makes_a_release_of_files_with_checksums_and_changes(tmp_path: Path) -> None:
    """Its script, with a stand-in for GitHub's command; a tag of another version makes none."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "wheels.yml").read_text())
    script = workflow["jobs"]["release"]["steps"][-1]["run"]
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "sley-1.0.whl").write_text("a wheel")
    (tmp_path / "pyproject.toml").write_text('name = "sley"\nversion = "1.0"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changes\n\n## 1.0\n\n- New\n\n## 0.9\n\n- Old\n")
    (tmp_path / "gh").write_text('#!/bin/sh\necho "$@"; sha256sum --check SHA256SUMS\n')
    (tmp_path / "gh").chmod(0o700)
    told = {}
    for tag in ("v1.0", "v1.1"):
        found = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "GITHUB_REF_NAME": tag}
        command = ["bash", "-eo", "pipefail", "-c", script]
        told[tag] = subprocess.run(command, cwd=tmp_path, env=found, capture_output=True, text=True)
    assert told["v1.0"].stdout.splitlines() == [
        "release create v1.0 SHA256SUMS sley-1.0.whl --title v1.0 --notes-file ../changes.md",
        "sley-1.0.whl: OK",
    ]
    assert (tmp_path / "changes.md").read_text() == "## 1.0\n\n- New\n\n"
    assert (told["v1.1"].returncode, told["v1.1"].stdout) == (1, "")


def test_a_container_for_development_names_a_stage() -> None:
    folder = ROOT / ".devcontainer"
    container = json.loads((folder / "devcontainer.json").read_text())
    assert (folder / container["build"]["dockerfile"]).resolve() == ROOT / "Dockerfile"
    assert container["build"]["target"] in STAGES
    target = container["postCreateCommand"].removeprefix("make ")
    assert f"\n$(VENV)/{target.removeprefix('.venv/')}:" in (ROOT / "Makefile").read_text()

"""Libraries that train for a program, told to use sley: the losses are those of gloo.

They are no requirements of the tests: `pip install accelerate pytorch-lightning` lets these run.
"""

from __future__ import annotations

import os
import socket
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sley.torch import ProcessGroupSley, replace_gloo
from support.processes.rank_pool import RankPool

pytestmark = pytest.mark.slow  # the libraries load for seconds in each process

BACKENDS = ("gloo", "sley")


def dataset() -> TensorDataset:
    inputs = torch.randn(64, 16, generator=torch.Generator().manual_seed(1))
    return TensorDataset(inputs, inputs.sin())


def model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def like_torchrun() -> None:
    """Ends the default group, and sets the variables that torchrun would."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    os.environ.update(
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(ranks),
        LOCAL_WORLD_SIZE=str(ranks),
        GROUP_RANK="0",
        MASTER_ADDR="127.0.0.1",
        TORCHELASTIC_RUN_ID="tests",
    )


@pytest.fixture
def ranks(four_ranks: RankPool) -> Any:
    """Four ranks, whose processes end with the test: the libraries change much in them."""
    yield four_ranks
    four_ranks.stop()


def with_accelerate(backend: str) -> list[float]:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, PartialState

    AcceleratorState._reset_state(True)
    PartialState._reset_state()
    with replace_gloo() if backend == "sley" else nullcontext():  # Accelerate has no name for it
        accelerator = Accelerator(cpu=True)
    assert isinstance(dist.group.WORLD, ProcessGroupSley) == (backend == "sley")
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net, optimizer, loader = accelerator.prepare(net, optimizer, DataLoader(dataset(), 4))
    found = []
    for inputs, target in loader:
        loss = (net(inputs) - target).square().mean()
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        found.append(accelerator.gather(loss.detach()).mean().item())
    accelerator.end_training()  # destroys the group
    return found


def check_accelerate(ports: list[int]) -> None:
    like_torchrun()
    found = []
    for backend, port in zip(BACKENDS, ports, strict=True):
        os.environ["MASTER_PORT"] = str(port)
        found.append(with_accelerate(backend))
    assert len(found[0]) == 4
    assert found[0] == pytest.approx(found[1], rel=1e-5)


@pytest.mark.skipif(find_spec("accelerate") is None, reason="accelerate isn't installed")
def test_accelerate_has_the_losses_of_gloo(ranks: RankPool) -> None:
    ranks.run(check_accelerate, [free_port() for _ in BACKENDS])


def with_lightning(backend: str, folder: str) -> list[float]:
    import pytorch_lightning as lightning
    from pytorch_lightning.strategies import DDPStrategy

    found: list[float] = []

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = model()

        def training_step(self, batch: Any) -> torch.Tensor:
            loss = (self.net(batch[0]) - batch[1]).square().mean()
            found.append(self.all_gather(loss.detach()).mean().item())
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=4,
        strategy=DDPStrategy(process_group_backend=backend),
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(Module(), DataLoader(dataset(), 4))
    assert dist.get_backend() == backend
    assert isinstance(dist.group.WORLD, ProcessGroupSley) == (backend == "sley")
    dist.destroy_process_group()
    return found


def check_lightning(ports: list[int], folder: str) -> None:
    like_torchrun()
    found = []
    for backend, port in zip(BACKENDS, ports, strict=True):
        os.environ["MASTER_PORT"] = str(port)
        found.append(with_lightning(backend, folder))
    assert len(found[0]) == 4
    assert found[0] == pytest.approx(found[1], rel=1e-5)


@pytest.mark.skipif(find_spec("pytorch_lightning") is None, reason="Lightning isn't installed")
def test_lightning_has_the_losses_of_gloo(ranks: RankPool, tmp_path: Path) -> None:
    ranks.run(check_lightning, [free_port() for _ in BACKENDS], str(tmp_path))

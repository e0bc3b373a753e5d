"""A Llama on two processes of CPUs: tensor parallelism of transformers, over sley.

Each process holds half of every layer, and two AllReduces a layer join the halves. transformers
uses the default group that it finds, so the program says only which backend that has. The model is
made from a configuration, with random weights: nothing is downloaded.

Tested with transformers 5.23 (pip install transformers accelerate).

    torchrun --standalone --nproc-per-node 2 examples/tensor_parallel_llama.py

prints:

    gate_proj has 512 x 256 weights, of which rank 0 has 256 x 256
    2 ranks generate the same 12 tokens as one process
    collectives on sley: all_gather, all_reduce
"""

from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.distributed import DistributedConfig
from transformers.utils import logging

import sley.torch  # registers the backend "sley"

logging.disable_progress_bar()

CONFIG = LlamaConfig(
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=1000,
)
PROMPT = torch.arange(8)[None]
TOKENS = 12


def generate(model):
    """The tokens that the model finds most likely after the prompt."""
    with torch.inference_mode():
        found = model.generate(PROMPT, max_new_tokens=TOKENS, do_sample=False, pad_token_id=0)
    return found[0, PROMPT.shape[1] :].tolist()


if __name__ == "__main__":
    torch.manual_seed(0)  # the same weights on all ranks
    whole = LlamaForCausalLM(CONFIG).eval()
    with TemporaryDirectory() as folder:
        whole.save_pretrained(folder)
        dist.init_process_group("sley")
        parallel = DistributedConfig(tp_plan="auto")
        model = LlamaForCausalLM.from_pretrained(folder, distributed_config=parallel).eval()
    is_same = generate(model) == generate(whole)
    if dist.get_rank() == 0:
        weights = model.model.layers[0].mlp.gate_proj.weight
        sizes = " x ".join(map(str, weights.shape)), " x ".join(map(str, weights.to_local().shape))
        print(f"gate_proj has {sizes[0]} weights, of which rank 0 has {sizes[1]}")
        same = "the same" if is_same else "other"
        print(f"2 ranks generate {same} {TOKENS} tokens as one process")
        print("collectives on sley:", ", ".join(sorted({row.kind for row in sley.stats()})))
    dist.destroy_process_group()

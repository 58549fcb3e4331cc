"""The checkpoint in Hugging Face layout: writing it from a model, reading it back."""

import json
import shutil
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from release.demo.architecture import Architecture
from release.demo.conversation import END_OF_TURN
from release.demo.layers import Experts
from release.demo.model import Ling
from release.demo.tokenizer import PADDING, id_of

TEMPLATE: Final = Path(__file__).with_name("chat_template.jinja")
CHECKPOINT: Final = Path(__file__).with_name("checkpoint")
"""Where the trained checkpoint is kept."""

_KEPT_FLOAT32: Final = ("A_log", "dt_bias", "expert_bias")


def tensors(model: Ling) -> dict[str, Tensor]:
    """The model's tensors under the checkpoint's names: `model.` in front, experts one by one, bias with its router."""
    named: dict[str, Tensor] = {}
    for name, value in model.state_dict().items():
        outer = name if name.startswith("lm_head") else f"model.{name}"
        place = outer.rpartition(".")[0]
        if name.endswith("mlp.gate_up"):
            for index, expert in enumerate(value):
                gate, up = expert.chunk(2)
                named[f"{place}.experts.{index}.gate_proj.weight"] = gate
                named[f"{place}.experts.{index}.up_proj.weight"] = up
        elif name.endswith("mlp.down"):
            for index, expert in enumerate(value):
                named[f"{place}.experts.{index}.down_proj.weight"] = expert
        elif name.endswith("mlp.expert_bias"):
            named[f"{place}.gate.expert_bias"] = value
        else:
            named[outer] = value
    return named


def save_checkpoint(model: Ling, tokenizer: Tokenizer, folder: Path, *, dtype: torch.dtype = torch.bfloat16) -> None:
    """Writes the whole folder except the model card; decay parameters and expert biases stay float32."""
    folder.mkdir(parents=True, exist_ok=True)
    stored = {
        name: value.detach().to(torch.float32 if name.endswith(_KEPT_FLOAT32) else dtype).contiguous().clone()
        for name, value in tensors(model).items()
    }
    partial = folder / "model.safetensors.partial"
    save_file(dict(sorted(stored.items())), partial, metadata={"format": "pt"})
    partial.chmod(0o644)
    partial.replace(folder / "model.safetensors")
    end, padding = id_of(tokenizer, END_OF_TURN), id_of(tokenizer, PADDING)
    config = model.architecture.config(end_of_turn=end, padding=padding)
    config["torch_dtype"] = str(dtype).removeprefix("torch.")
    _write_json(folder / "config.json", config)
    _write_json(
        folder / "generation_config.json",
        {"do_sample": False, "eos_token_id": [end, padding], "pad_token_id": padding},
    )
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|startoftext|>",
            "eos_token": END_OF_TURN,
            "pad_token": PADDING,
            "cls_token": "[CLS]",
            "gmask_token": "[gMASK]",
            "add_bos_token": False,
            "add_eos_token": False,
            "clean_up_tokenization_spaces": False,
            "model_max_length": model.architecture.max_positions,
            "chat_template": TEMPLATE.read_text(encoding="utf-8"),
        },
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    shutil.copyfile(TEMPLATE, folder / "chat_template.jinja")


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def load_checkpoint(folder: Path) -> tuple[Ling, Tokenizer]:
    """Reads a folder that `save_checkpoint` wrote, as a float32 model in evaluation mode."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    model = Ling(Architecture.from_config(config))
    stored = load_file(folder / "model.safetensors")
    state: dict[str, Tensor] = {}
    for name, value in stored.items():
        if ".experts." not in name:
            inner = name.removeprefix("model.").replace(".gate.expert_bias", ".expert_bias")
            state[inner] = value.float()
    for index, block in enumerate(model.layers):
        if isinstance(block.mlp, Experts):
            place = f"model.layers.{index}.mlp.experts"
            parts = [
                [stored[f"{place}.{expert}.{kind}_proj.weight"].float() for kind in ("gate", "up", "down")]
                for expert in range(block.mlp.count)
            ]
            state[f"layers.{index}.mlp.gate_up"] = torch.stack([torch.cat([gate, up]) for gate, up, _ in parts])
            state[f"layers.{index}.mlp.down"] = torch.stack([down for _, _, down in parts])
    model.load_state_dict(state)
    return model.eval(), Tokenizer.from_file(str(folder / "tokenizer.json"))

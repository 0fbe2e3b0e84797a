"""TRL's trainers of preference pairs: `packed_pairs.py FOLDER WAYS TOKENIZER stock|packed|sharded`, JSON a step."""

from __future__ import annotations

import copy
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import torch
import trl.trainer.utils
from datasets import Dataset
from peft import LoraConfig
from transformers import (
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from trl import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer, SFTConfig, SFTTrainer

from packer_cli.loader.adapters.transformers import packed
from tests.examples.packed_trainer import allow_fsdp_on_cpus
from tests.examples.pairs import VOCABULARY, PairSet, Steps, item_of, make_pairs

NUM_STEPS, NUM_PAIRS = 4, 6
"""And so many pairs a step."""
LAYOUTS: dict[int, Steps] = {
    1: [[[4], [2]], [[6]]] * (NUM_STEPS // 2),
    2: [[[3, 1], [2, 0]], [[0, 1], [1, 4]]] * (NUM_STEPS // 2),
}
"""By processes. Of some rows a rank has no pair."""
WAYS: dict[str, dict[str, Any]] = {
    "sigmoid": {}, "ipo": {"loss_type": ["ipo"]}, "lora": {}, "precomputed": {"precompute_ref_log_probs": True},
    "checkpointed": {"gradient_checkpointing": True}, "reward": {"center_rewards_coefficient": 0.1}, "reward-lora": {},
    "weighted": {
        "use_weighting": True, "ld_alpha": 0.5, "loss_type": ["robust", "sigmoid_norm"], "loss_weights": [1.0, 0.5],
    },
    "computed": {"precompute_ref_log_probs": True},
    "computed-ipo": {"precompute_ref_log_probs": True, "loss_type": ["ipo"], "ld_alpha": 0.5},
    "computed-given": {"precompute_ref_log_probs": True},
    "js": {"f_divergence_type": "js_divergence"},
    "sft": {}, "forward_kl": {"f_divergence_type": "forward_kl"}, "sppo_hard": {"loss_type": ["sppo_hard"]},
    **{name: {"loss_type": [name], "label_smoothing": 0.1} for name in (
        "hinge", "exo_pair", "nca_pair", "bco_pair", "apo_zero", "apo_down", "discopop"
    )},
}  # fmt: skip


COMPUTED = {name: options for name, options in WAYS.items() if name.startswith("computed")}
"""Whose set lacks a number, so that the reference runs once; stock trainers keep it in memory."""
STEEP = ("forward_kl", "sppo_hard")
"""Whose loss overflows where the reference model is far away."""


class Print(TrainerCallback):
    def __init__(self, way: str) -> None:
        self.way = way

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
        if state.is_world_process_zero:
            print(json.dumps({"way": self.way, "step": state.global_step, **logs}))


def make_model(kind: Any = LlamaForCausalLM, seed: int = 0, **options: Any) -> Any:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.2, **options,
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    model = kind(config).double()
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, LlamaRMSNorm):  # Which computes in float32.
                setattr(module, name, torch.nn.RMSNorm(32, config.rms_norm_eps, dtype=torch.float64))
    return model


class ExactLogProbs:
    """TRL's kernel computes in float32; this is its rule, in float64."""

    @staticmethod
    def apply(hidden: Any, weight: Any, bias: Any, targets: Any, *_: Any) -> tuple[Any, ...]:
        logits = hidden @ weight.T
        log_probs = logits.log_softmax(-1)
        entropy, is_top1 = -(log_probs.exp() * log_probs).sum(-1), logits.argmax(-1) == targets
        found = log_probs.gather(-1, targets[:, None])[:, 0]
        return found, entropy, (2 * log_probs).logsumexp(-1).detach(), logits.mean(-1).detach(), is_top1


class StockDPO(DPOTrainer):
    """On tokens."""

    def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
        return dataset


def stock_set(way: str) -> Any:
    rows = []
    for pair in make_pairs(NUM_STEPS * NUM_PAIRS):
        if way == "sft":
            for branch in item_of(pair):
                labels = [token if weight else -100 for token, weight in zip(*branch, strict=True)]
                rows.append({"input_ids": branch.tokens, "labels": labels})
            continue
        row = {"prompt_ids": pair.prompt, "chosen_ids": pair.chosen, "rejected_ids": pair.rejected}
        if way == "precomputed":
            row |= {"ref_chosen_logps": pair.ref_chosen_logps, "ref_rejected_logps": pair.ref_rejected_logps}
        if way.startswith("reward"):
            row = {"chosen_ids": pair.prompt + pair.chosen, "rejected_ids": pair.prompt + pair.rejected}
            row["margin"] = pair.margin
        rows.append(row)
    return Dataset.from_list(rows)


def run(way: str, folder: Path, tokenizer: Any, *, is_packed: bool, is_sharded: bool) -> None:
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    options = {
        "output_dir": str(folder), "learning_rate": 0.02, "lr_scheduler_type": "constant", "optim": "sgd",
        "use_cpu": True, "logging_steps": 1, "report_to": "none", "disable_tqdm": True, "save_strategy": "no",
        "bf16": False, "gradient_checkpointing": False, "max_grad_norm": 1e9, "num_train_epochs": 1,
    }  # fmt: skip
    others: dict[str, Any] = {"callbacks": [Print(way)], "processing_class": tokenizer}
    if is_packed:
        rank = int(os.environ.get("RANK", "0"))
        pairs = make_pairs(NUM_STEPS * NUM_PAIRS)
        if way in COMPUTED:
            pairs[-1] = pairs[-1]._replace(ref_chosen_logps=math.nan)
        others["train_dataset"] = PairSet(pairs, LAYOUTS[world_size], rank)
    else:
        options |= {
            "per_device_train_batch_size": NUM_PAIRS,
            "train_sampling_strategy": "sequential",
            "max_length": None,
        }
        others["train_dataset"] = stock_set(way)
    options |= WAYS[way]
    if way in COMPUTED and not is_packed:
        del options["precompute_ref_log_probs"]
    if is_sharded:
        options |= {"fsdp": True, "fsdp_config": {"transformer_layer_cls_to_wrap": "LlamaDecoderLayer"}}
    model: Any
    arguments: Any
    if way == "sft":
        model = make_model()
        if is_packed:
            trainer_class, arguments = SFTTrainer, SFTConfig(**options)
        else:
            options["per_device_train_batch_size"] = 2 * NUM_PAIRS
            del options["max_length"]
            trainer_class, arguments = Trainer, TrainingArguments(**options)
            others["data_collator"] = DataCollatorForSeq2Seq(tokenizer)
    elif way.startswith("reward"):
        trainer_class, model = RewardTrainer, make_model(LlamaForSequenceClassification, num_labels=1)
        arguments = RewardConfig(**options)
        if way == "reward-lora":
            lora = {"r": 4, "init_lora_weights": False, "target_modules": ["q_proj", "v_proj"]}
            others["peft_config"] = LoraConfig(**lora, modules_to_save=["score"], task_type="SEQ_CLS")
    else:
        trainer_class, model, arguments = StockDPO, make_model(), DPOConfig(**options)
        if way == "lora":
            others["peft_config"] = LoraConfig(r=4, init_lora_weights=False, target_modules=["q_proj", "v_proj"])
        elif way in ("computed", "computed-ipo"):  # By the model itself, before it trains.
            others["ref_model"] = None if is_packed else make_model()
        elif way != "precomputed":
            others["ref_model"] = make_model(seed=1)
            if way in STEEP:
                others["ref_model"].load_state_dict({name: 1.01 * x for name, x in model.state_dict().items()})
                arguments.learning_rate = 1e-4
    made = packed(DPOTrainer if trainer_class is StockDPO else trainer_class) if is_packed else trainer_class
    if not is_packed and way == "precomputed":
        made = type("Given", (made,), {"_precompute_ref_logps": lambda self, dataset, *_: dataset})
    trainer = made(model=model, args=arguments, **others)
    assert is_packed is False or others.get("ref_model") is not None or getattr(trainer, "ref_model", None) is None
    trainer.train()


def main(folder: str, ways: str, tokenizer: str, kind: str) -> None:
    trl.trainer.utils._ChunkedLogProbFunction = ExactLogProbs
    known = AutoTokenizer.from_pretrained(tokenizer)
    os.environ["HBPACK_CACHE"] = folder
    if kind == "sharded":
        allow_fsdp_on_cpus()
    for way in ways.split(","):
        run(way, Path(folder), copy.copy(known), is_packed=kind != "stock", is_sharded=kind == "sharded")


if __name__ == "__main__":
    main(*sys.argv[1:])
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()

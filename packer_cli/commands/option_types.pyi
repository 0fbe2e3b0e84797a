"""The options of the API, for editors and mypy: generated from `packer_cli.config` by `make docs`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from packer_cli.plan.packing import PackingAlgorithm
    from packer_cli.plan.strategies.protocol import Strategy

class GpuOptions(TypedDict, total=False):
    """Sources of predicted time and memory: the model's shape and a GPU, or measurements."""

    model: str | os.PathLike[str] | None
    """Your model's config.json (Hugging Face), or its folder; needs `gpu`."""
    gpu: str | None
    """GPU you train on, such as h100; needs `model`."""
    profile: str | os.PathLike[str] | None
    """Measurements of `hbpack profile`, instead of `model` and `gpu`."""
    assume: str | None
    """Other values for what no data sheet gives, such as gradient_bytes=2."""
    trainer: str | None
    """Your trainer, such as trl or megatron, or what it can do, such as fsdp,sp,cp; by default transformers."""

class AutoGroupsOptions(GpuOptions, total=False):
    """Rules by which `auto` chooses groups, see `hbpack groups`."""

    group_algorithm: Literal["search", "hbp"] | None
    """Method by which `groups` auto chooses groups: hbpack's `search`, or HBP's algorithm 1."""
    max_groups: int | None
    """Most groups the search may choose."""
    parallel: str | None
    """Tensor, context and pipeline parallel degrees of every replica, such as tp=8,cp=2,pp=4."""
    max_length: str | int | None
    """Longest capacity to choose; by default, the longest sample fits."""

class PlanOptions(AutoGroupsOptions, total=False):
    """Lengths to plan."""

    strategy: (
        str
        | Strategy
        | Literal[
            "balanced",
            "hbp",
            "naive",
            "longalign-packing",
            "flexsp:all",
            "flexsp",
            "batchada",
            "fcp",
            "bytescale",
            "megatron",
            "dp-balanced",
            "wlb",
            "fixed-4d",
            "plain-4d",
            "hydraulis",
        ]
        | None
    )
    """Planning method: balanced, hbp, naive, longalign-packing, flexsp:all, flexsp, batchada, fcp, bytescale,
    megatron, dp-balanced, wlb, fixed-4d, plain-4d, hydraulis; docs/strategies.md explains each."""
    align: str | int | None
    """Round each sample up to a multiple of this many tokens, for trainers that pad each sample."""
    groups: str | Sequence[str | Mapping[str, Any]] | None
    """Length groups as CAPACITY:SP_DEGREE, shortest first, such as 16k:1,128k:8; `auto` chooses them."""
    gpus: int | None
    """Number of GPUs you train on."""
    packing: str | PackingAlgorithm | Callable[..., Any] | None
    """Packing algorithm and its options, such as isf:rounds=10."""
    fill: Literal["balanced", "greedy", "longest"] | None
    """Which short samples fill up long packs."""
    balance: str | None
    """Which packs share an iteration."""
    mask: Literal["document", "causal"] | None
    """Tokens that a token attends to: earlier ones of its own sample, or of its whole row."""
    cp_sharding: str | None
    """Rule by which context-parallel ranks (`parallel` cp=N) divide a row."""
    cost: str | None
    """Cost to even out: attention work, or time."""
    overflow: Literal["split", "truncate", "drop", "error"] | None
    """Treatment of samples longer than the largest group."""
    max_samples: str | int | None
    """Most samples in a pack; by default, or with 0, as many as fit."""
    max_path_tokens: str | None
    """Most path tokens of a pack, as a multiple of its capacity; by default 2x. Only for samples that share
    prefixes."""
    global_tokens: str | int | None
    """Tokens in an optimizer step; by default, or with 0, each iteration is a step."""
    lockstep: str | int | None
    """GPUs that meet in every micro-batch: `all` (FSDP, ZeRO-2/3), or those of `1` replica (DDP, ZeRO-1)."""
    step_mix: Literal["alternate", "stratified"] | None
    """Rule by which several iterations are combined into a step."""
    curriculum_steps: int | None
    """Steps at the start of the first epoch that train on short samples."""
    epochs: int | None
    """Epochs to write rank manifests for; the loader can go on beyond them."""
    seed: int | None
    """Seed for everything random."""

class StorePlanOptions(PlanOptions, total=False):
    """Tokens to plan."""

    validation: str | int | None
    """Samples to set aside for validation: a share such as 1%, or a number."""
    dedup: Literal["off", "report", "drop"] | None
    """Treatment of samples with the same tokens and loss as an earlier one, of any input."""

class TokenizeOptions(TypedDict, total=False):
    """Corpus to token store."""

    tokenizer: str | os.PathLike[str] | None
    """Tokenizer: a folder, a file, or a name on the Hugging Face Hub."""
    tokenizer_backend: Literal["auto", "gigatoken", "tokenizers"] | None
    """Library that encodes."""
    schema: (
        str
        | Literal["auto", "messages", "alpaca", "prompt-completion", "text", "tokens", "preference", "completions"]
        | None
    )
    """Format of the records; `auto` detects it for each record."""
    chat_template: str | os.PathLike[str] | None
    """Chat template to use instead of the tokenizer's: a Jinja file, or a name such as chatml."""
    date: str | None
    """Date that the chat template writes, if it does; by default, that of the store's first run."""
    loss_on: str | None
    """Tokens to train on: completion, all, last-turn, reasoning, no-reasoning or tool-calls."""
    append_eos: Literal["auto", "always", "never"] | None
    """Which samples get the EOS token at their end, and are trained on it."""
    eos_token: str | None
    """EOS token to use instead of the tokenizer's; it must be in its vocabulary."""
    alpaca: Literal["auto", "template", "stanford"] | None
    """Form of the samples from Alpaca records."""
    plain_content: bool | None
    """Encode special tokens that appear in the data as ordinary text."""
    items: Literal["auto", "none", "pairs", "groups"] | None
    """Which records hold several samples that stay together in one micro-batch."""
    turns: Literal["whole", "branch"] | None
    """Samples to make from a conversation."""
    share_prefixes: bool | None
    """Store the tokens that samples of a pair, group or conversation begin with only once."""
    keep_columns: str | None
    """Columns, or keys, of the records to keep beside the samples in the token store, such as id,license."""
    exclude: str | None
    """File of records to leave out, one a line: FILE:LINE, id:VALUE or hash:HASH."""
    allow_skipped: bool | None
    """Go on with a folder or pattern of which more bytes are skipped than read."""
    recheck: bool | None
    """Read all inputs again and compare their contents."""
    max_rejected: str | int | None
    """Stop before planning if more records than this are rejected: a number, or a share such as 1%."""
    strict: bool | None
    """Stop before planning if a file of a folder or pattern was skipped, or a file is damaged."""
    max_record_bytes: str | int | None
    """Reject records with more bytes of decompressed text than this."""

class WriteOptions(TypedDict, total=False):
    """Plan to shards."""

    shard_size: str | int | None
    """Approximate size of a shard."""
    keep_tokens: bool | None
    """Keep the token store, so that you can plan again without tokenizing."""
    index_only: bool | None
    """Leave the tokens in the token store, which takes half the space."""
    keep: int | None
    """Afterwards, remove all but the newest N versions, as `hbpack prune` does; by default all stay."""

class PackOptions(WriteOptions, StorePlanOptions, TokenizeOptions, total=False):
    """Everything that decides the bytes of a packed data set, which the number of workers does not."""

class WorkersOptions(TypedDict, total=False):
    """Processes that do the work."""

    workers: int | None
    """Worker processes; by default, one for each CPU."""

class EngineOptions(WorkersOptions, total=False):
    """Place where the work runs, and the processes there."""

    engine: str | None
    """Place where the work runs: on this machine (`local`), or on a Ray cluster."""

class JobOptions(EngineOptions, total=False):
    """Share of the work that a run makes, and the place where it does."""

    shard: str | None
    """Make share I of N, counted from 0, as a task of a job array; by default, as Slurm or Kubernetes says."""

class AppendOptions(TypedDict, total=False):
    """Changes to the inputs of a packed set."""

    tokenizer: str | os.PathLike[str] | None
    """Place where the set's tokenizer is now; by default, where it was when the set was made."""
    moved: Sequence[str] | None
    """Input of the set, or a folder above it, that is at NEW now, as OLD=NEW. Its contents must be the same."""
    gone: Literal["keep", "drop"] | None
    """Treatment of files of the set's inputs that are gone: keep their tokens, or drop them from the set."""
    exclude: str | None
    """File of records to leave out, one a line: FILE:LINE, id:VALUE or hash:HASH."""
    allow_skipped: bool | None
    """Go on with a new folder or pattern of which more bytes are skipped than read."""
    recheck: bool | None
    """Read all inputs again and compare their contents."""
    max_rejected: str | int | None
    """Stop before planning if more records of new inputs than this are rejected: a number, or a share such as 1%."""
    strict: bool | None
    """Stop before planning if a file of a new folder or pattern was skipped, or a new file is damaged."""
    keep: int | None
    """Afterwards, remove all but the newest N versions, as `hbpack prune` does; by default all stay."""

class RebalanceOptions(TypedDict, total=False):
    """Place where training goes on, and its number of GPUs."""

    gpus: int | None
    """GPUs that train from now on."""
    state: str | os.PathLike[str] | None
    """The loader's state as JSON, or trainer_state.json of a checkpoint of transformers' Trainer."""
    from_step: int | None
    """First step of the epoch that training did not run, as training counted it."""
    epoch: int | None
    """Epoch of `from_step`; by default, the first."""
    global_tokens: str | int | None
    """Tokens of an optimizer step; by default, as planned."""

class ExportOptions(TypedDict, total=False):
    """The options that, with the packed set, decide the bytes of an export."""

    format: str | None
    """Format to export to (``to``)."""
    groups: str | None
    """Groups of the set to export, by capacity or by name."""
    order: Literal["use", "packs"] | None
    """`use`: rows as training reads them, by iteration, then DP rank; `packs`: in the order of the shards."""
    epoch: int | None
    """Epoch whose order `use` takes; by default, the first of the set."""
    shard_size: str | int | None
    """Approximate size of a file; megatron has one. By default, 256MiB; mds: 64MiB."""
    loss_weights: bool | None
    """Keep the loss weights of a set that has any; without them, each loss token counts 1."""

class BoundOptions(TypedDict, total=False):
    """Proof of bounds."""

    bound: Literal["l2", "lp"] | None
    """Proof of the least number of packs."""

class RepeatOptions(TypedDict, total=False):
    """Number of plans to compare for each row, and of samples to plan."""

    seeds: int | None
    """Plan each row with this many seeds, from `seed` on, and show means and standard deviations; by default 1."""
    sample: int | None
    """Plan this many of the samples, drawn evenly over the lengths, and scale epochs to all of them; 0 for all."""

class TrainOptions(TypedDict, total=False):
    """Rules of training that a plan does not have."""

    pad_to: Literal["multiple", "row", "capacity"] | None
    """Length to which the loader pads rows."""
    step_seconds: float | None
    """Fixed seconds of each optimizer step: gradient sync and optimizer."""

class CallOfAppend(AppendOptions, EngineOptions, total=False):
    """Options of `append`."""

class CallOfCompare(PlanOptions, TokenizeOptions, BoundOptions, RepeatOptions, WorkersOptions, total=False):
    """Options of `compare`."""

class CallOfExport(ExportOptions, JobOptions, total=False):
    """Options of `export`."""

class CallOfGroups(AutoGroupsOptions, TokenizeOptions, WorkersOptions, total=False):
    """Options of `groups`."""

class CallOfPack(PackOptions, EngineOptions, total=False):
    """Options of `pack`."""

class CallOfReport(PlanOptions, TrainOptions, WorkersOptions, total=False):
    """Options of `report`."""

class CallOfSimulate(PlanOptions, TrainOptions, TokenizeOptions, WorkersOptions, total=False):
    """Options of `simulate`."""

class CallOfSimulateOfPlan(GpuOptions, TrainOptions, total=False):
    """Options of `simulate`."""

class CallOfStats(PlanOptions, BoundOptions, total=False):
    """Options of `stats`."""

class CallOfTokenize(TokenizeOptions, JobOptions, total=False):
    """Options of `tokenize`."""

class CallOfWrite(WriteOptions, JobOptions, total=False):
    """Options of `write`."""

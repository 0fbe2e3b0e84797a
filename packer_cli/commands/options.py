"""The options of the API, for editors and mypy: generated from `packer_cli.config` by `make docs`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from packer_cli.plan.packing import PackingAlgorithm
    from packer_cli.plan.strategies.protocol import Strategy


class GpuOptions(TypedDict, total=False):
    """What time and memory are predicted from: the model's shape and a GPU, or what was measured."""

    model: str | os.PathLike[str] | None
    """The model's config.json (Hugging Face), or its folder; needs `gpu`."""
    gpu: str | None
    """GPU to train on, such as h100: its speed, memory and links."""
    profile: str | os.PathLike[str] | None
    """File of `hbpack profile`, to use measurements instead of `model` and `gpu`."""
    assume: str | None
    """Other values than ours for what no data sheet gives, such as gradient_bytes=2,exposed_sync=0.3; docs/profile.md
    lists them. With `profile`, these two alone."""


class AutoGroupsOptions(GpuOptions, total=False):
    """How `auto` chooses groups, see `hbpack groups`."""

    group_algorithm: Literal["search", "hbp"] | None
    """How to choose groups: `search` for the fewest groups whose predicted epoch of these lengths is within 1% of the
    shortest; `hbp` for HBP's algorithm 1. By default, `hbp` for `strategy` hbp, and `search` for others."""
    max_groups: int | None
    """Most groups the search may choose."""
    parallel: str | None
    """Degrees of tensor, context and pipeline parallelism of every replica, such as tp=8,cp=2,pp=4; `gpus` counts all
    GPUs. Megatron's "sequence parallelism" is a part of tp; give SP degrees (Ulysses) in `groups`."""
    max_length: str | int | None
    """Longest capacity to choose; longer samples follow `overflow`. By default, the longest sample fits."""


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
    """Whose plan: `balanced`: hbpack's; `hbp`: HBP's, to the letter; `naive`: HBP's baseline, with the longest group
    alone; `longalign-packing`: LongAlign's packing, with the longest group alone; `flexsp:all`: FlexSP's mixed SP
    degrees over the whole data set; `flexsp`: FlexSP's mixed SP degrees, step by step; `batchada`: FlexSP's baseline,
    one SP degree a step; `fcp`: FCP's CP degrees, any number, step by step; `bytescale`: ByteScale's hybrid data
    parallelism; `megatron`: Megatron-LM's dynamic context parallelism; `dp-balanced`: Megatron-LM's packing at one CP
    degree; `wlb`: WLB-LLM's steps of even micro-batches; `fixed-4d`: WLB-LLM's baseline, rows of equal length;
    `plain-4d`: WLB-LLM's baseline, rows as they come; `hydraulis`: Hydraulis's pipelines of unlike tp, cp, pp. It sets
    the defaults of other options, such as `packing` and `balance`. The curriculum of `hbp` takes a fifth of the short
    iterations at most: the paper's 500 steps are a seventh of its run, and would leave a small data set nothing to mix
    with the long ones. `flexsp`, `batchada` and `flexsp:all` plan at every degree that divides the longest group's,
    and need `model` and `gpu`, or `profile`; `flexsp` solves its micro-batches by `packing` search, or by milp, the
    paper's program. `fcp`, `bytescale` and `megatron` use CP degrees up to that of the longest group; the first two
    need `model` and `gpu`, or `profile`. `wlb` takes the capacity of the longest group for the context window (by
    default, the longest sample), packs by `packing` delay, original, greedy or solver, and evens out `cost` 1,24576,
    or what `model` and `gpu`, or `profile`, predict. `hydraulis` needs `model` and `gpu`, or `profile`, and
    `global_tokens`; samples are as long as the longest group's capacity at most, and degrees as high as `parallel` and
    that group's SP degree. It plans by `packing` search, or by published, the paper's layouts and stage 1."""
    align: str | int | None
    """Count each sample at its length rounded up to a multiple of this, for trainers that pad each sample: tokens, or
    N*cp for N times the SP or CP degree of each group above degree 1; or of several, such as 2*cp,32.
    TransformerEngine (Megatron, NeMo) needs 2*cp with context parallelism. By default, samples are not padded."""
    groups: str | Sequence[str | Mapping[str, Any]] | None
    """CAPACITY[:SP_DEGREE[:CHECKPOINT_LAYERS]] of each, shortest first, such as 16k:1,128k:8; or `auto`, to choose
    them from the lengths with `model` and `gpu`, or `profile`."""
    gpus: int | None
    """Number of GPUs that train."""
    packing: str | PackingAlgorithm | Callable[..., Any] | None
    """Packing algorithm with its options, such as isf:rounds=10."""
    fill: Literal["balanced", "greedy", "longest"] | None
    """Which short samples fill long packs: `balanced`: those that even out attention work; `greedy`: all that fit, in
    the order of the data (HBP); `longest`: the longest that fit."""
    balance: str | None
    """Which packs share an iteration: `sort`: those of similar attention work (HBP); `window:K`: the same within
    windows of K iterations; `none`: random ones. `+refine` also exchanges samples within iterations; `refine` is
    `sort+refine`."""
    mask: Literal["document", "causal"] | None
    """What a token may attend to: `document`: those before it of its own sample; `causal`: all before it in its row.
    It decides the attention work of a pack; the loader takes it from the set."""
    cp_sharding: str | None
    """How the ranks of a context-parallel group (`parallel` cp=N) divide a row: `sequence`: they cut the row;
    `document`: they cut each sample, so that attention work is even; `static`: the one of the two that is faster for
    all packs together; `auto[:rho=R]`: for each pack the faster, by the attention times of `profile` or, without it,
    by tiles of 128 tokens, which pieces of under 256 tokens compute at R (default 1) of the full rate."""
    cost: str | None
    """What to even out: `quadratic`: attention work, the sum of squared lengths (HBP); `A,B`: A a squared token and B
    a token, such as 1,24576 for a 7B model; `profile`: both from `profile`, or from `model` and `gpu`."""
    overflow: Literal["split", "truncate", "drop", "error"] | None
    """What to do with samples longer than the largest group."""
    max_samples: int | None
    """Most samples of a pack, for kernels and graphs that take borders of a fixed number of samples. A lower number
    pads more. By default, as many as fit."""
    global_tokens: str | int | None
    """Tokens in an optimizer step. By default, each iteration is one step."""
    lockstep: Literal["all", "1"] | None
    """Which GPUs share collectives in every micro-batch: `all` of them (FSDP, ZeRO-2 and 3); or those of `1` replica
    (DDP, ZeRO-1). Then each replica runs as many micro-batches as its share of a step needs, and the loader gives
    lists of micro-batches (`lockstep=False`). `1` needs `global_tokens`."""
    step_mix: Literal["alternate", "stratified"] | None
    """How to combine iterations into steps of several: `alternate`: shuffled; `stratified`: with the same proportions
    of groups and lengths in every step."""
    curriculum: str | None
    """What the first `curriculum_steps` are: `short`: steps without the longest group or, if there is one group, of
    the lighter half of its packs; `skyladder[:START]`: attention sees START tokens of a sample at a time (default 32),
    growing by the same amount in each step; `growlength[:START]`: the same from 128 tokens on, doubling at equal
    intervals."""
    curriculum_steps: int | None
    """Steps of the curriculum at the start of the first epoch."""
    epochs: int | None
    """Epochs to write rank manifests for; the loader can go on beyond them."""
    seed: int | None
    """Seed for everything random."""


class StorePlanOptions(PlanOptions, total=False):
    """Tokens to plan."""

    validation: str | int | None
    """Samples to set aside for validation, in OUT/validation: a share of them, such as 1%, or a number, such as 2000.
    A hash of its tokens decides for each sample, so the choice stays the same when data is added, and equal samples
    stay together. A number takes the lowest hashes. Training never sees these samples."""


class TokenizeOptions(TypedDict, total=False):
    """Corpus to token store."""

    tokenizer: str | os.PathLike[str] | None
    """Folder, tokenizer.json, SentencePiece .model, vocab.json beside merges.txt, or a hub name."""
    tokenizer_backend: Literal["auto", "gigatoken", "tokenizers"] | None
    """Library that encodes; `auto` is gigatoken if it can load the tokenizer, checked against tokenizers."""
    schema: str | Literal["auto", "messages", "alpaca", "prompt-completion", "text", "tokens"] | None
    """Shape of the records; `auto` detects it for each record."""
    chat_template: str | os.PathLike[str] | None
    """Template to use instead of the tokenizer's own: a Jinja file (or text), or a name: chatml, gemma3, llama3,
    llama3.1, mistral, phi3, qwen2.5, qwen3."""
    loss_on: str | None
    """`completion`: assistant turns and completions (and all of a plain text); `all`: every token; `last-turn`: the
    last assistant turn; `reasoning`: the thinking in assistant turns; `no-reasoning`: assistant turns without it;
    `tool-calls`: the tool calls in them. Join with +: last-turn+reasoning, reasoning+tool-calls."""
    append_eos: Literal["auto", "always", "never"] | None
    """Which samples get the EOS token at their end, and are trained on it: `auto`: completions, texts, and chats whose
    template does not end the last turn; `always`: every sample that does not end with it; `never`: none."""
    eos_token: str | None
    """EOS token to use instead of the tokenizer's own, or if it has none; a token of its vocabulary."""
    alpaca: Literal["auto", "template", "stanford"] | None
    """What Alpaca records become: `template`: a conversation for the chat template; `stanford`: the prompt of the
    Stanford Alpaca project and its completion; `auto`: the template if there is one."""
    plain_content: bool | None
    """Encode special tokens written inside the data as ordinary text."""
    max_rejected: int | None
    """Stop if more records than this are rejected, not counting those without a loss. By default, there is no
    limit."""
    max_record_bytes: str | int | None
    """Largest record, in bytes of decompressed text; longer ones are rejected. Reading takes a few times as much
    memory."""


class WriteOptions(TypedDict, total=False):
    """Plan to shards."""

    shard_size: str | int | None
    """Approximate size of a shard."""
    keep_tokens: bool | None
    """Keep the token store, to plan again without tokenizing."""
    index_only: bool | None
    """Leave the tokens in the token store: shards say where each pack's samples lie there, and the loader gathers
    them. Takes half the space."""


class PackOptions(WriteOptions, StorePlanOptions, TokenizeOptions, total=False):
    """Everything that decides the bytes of a packed data set. The number of workers is not among it."""


class WorkersOptions(TypedDict, total=False):
    """Where work runs."""

    workers: int | None
    """Worker processes; by default, as many as there are CPUs. The result is the same for any number."""


class BoundOptions(TypedDict, total=False):
    """How bounds are proved."""

    bound: Literal["l2", "lp"] | None
    """Proof of the least number of packs: `l2` uses sizes alone (Martello and Toth's L2); `lp` also solves the linear
    program of cutting stock where a plan has more packs than that, which takes up to 60 seconds for each group of each
    plan."""


class TrainOptions(TypedDict, total=False):
    """How a plan is trained, beyond what the plan says."""

    pad_to: Literal["multiple", "row", "capacity"] | None
    """What the loader pads rows to."""
    step_seconds: float | None
    """Fixed seconds of each optimizer step: gradient sync and optimizer."""

"""Networks of optimum-graphcore, wrapped in two pipeline stages and run eagerly: one update.

PYTHONPATH=FOLDER python benchmarks/published_models.py --record

FOLDER has optimum-graphcore 0.7.1, transformers 4.29.2 and what these two import, installed by
``pip install --no-deps --target FOLDER``. Networks are small and have random weights in float32, no
dropout, and made-up batches. Eight micro-batches are accumulated; losses and parameters after one
step of SGD are compared with those of the same module, called by plain PyTorch. Runs on the target
that ABELE_TARGET names.
"""

from __future__ import annotations

import argparse
import copy
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers  # pyright: ignore[reportMissingImports]
from optimum.graphcore import IPUConfig  # pyright: ignore[reportMissingImports]
from optimum.graphcore.modeling_utils import to_pipelined  # pyright: ignore[reportMissingImports]

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "src")]

from benchmarks import harness  # noqa: E402

import poptorch  # noqa: E402

PAGE = HERE.parent / "docs" / "published_programs.md"
ROWS, TOKENS, WORDS = 8, 16, 64
Batch = dict[str, torch.Tensor]

QUIET = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
LAYERS = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4}
ENCODER = {**QUIET, **LAYERS, "intermediate_size": 48}
TEXT = {**ENCODER, "vocab_size": WORDS, "max_position_embeddings": 40}
TWO_SIDES = {
    "vocab_size": WORDS,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "dropout": 0.0,
}
DISTIL = {"vocab_size": WORDS, "dim": 32, "n_layers": 4, "n_heads": 4, "hidden_dim": 48}
DISTIL |= {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0}
DISENTANGLED = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
IMAGE = {"image_size": 32, "patch_size": 8, "num_labels": 4}
STAGES = {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "num_labels": 4}
SOUND = {"num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 20}
SOUND |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3}
T5 = {"vocab_size": WORDS, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
T5 |= {"dropout_rate": 0.0, "decoder_start_token_id": 0}
GPT2 = {"vocab_size": WORDS, "n_positions": 40, "n_embd": 32, "n_layer": 4, "n_head": 4}
GPT2 |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def text(**labels: torch.Tensor) -> Batch:
    """Rows of words whose last quarter is masked, and what is to be found in them."""
    words = torch.randint(5, WORDS - 4, (ROWS, TOKENS))
    mask = torch.ones_like(words)
    mask[:, TOKENS - 4 :] = 0
    return {"input_ids": words, "attention_mask": mask, **labels}


def images() -> Batch:
    """Images of four classes."""
    return {"pixel_values": torch.randn(ROWS, 3, 32, 32), "labels": classes(4)}


def classes(count: int, *shape: int) -> torch.Tensor:
    """Return random classes, one for each row or element."""
    return torch.randint(0, count, (ROWS, *shape))


def translation() -> Batch:
    """Words, and words to write."""
    wanted = torch.randint(5, WORDS - 4, (ROWS, 10))
    return text(decoder_input_ids=wanted, labels=wanted)


def speech() -> Batch:
    """Spectra, and words to write."""
    wanted = torch.randint(5, WORDS - 4, (ROWS, 10))
    heard = torch.randn(ROWS, 8, 40)
    return {"input_features": heard, "decoder_input_ids": wanted, "labels": wanted}


def ends() -> Batch:
    """Words, and where an answer begins and ends."""
    return text(start_positions=classes(10), end_positions=classes(10))


def continued() -> Batch:
    """Words that are to be told from those before."""
    batch = text()
    return batch | {"labels": batch["input_ids"]}


# Network: its configuration, settings of that, and a batch.
NETWORKS: dict[str, tuple[str, dict[str, Any], Callable[[], Batch]]] = {
    "BertForMaskedLM": ("BertConfig", TEXT, lambda: text(labels=classes(WORDS, TOKENS))),
    "RobertaForTokenClassification": (
        "RobertaConfig",
        TEXT | {"num_labels": 5},
        lambda: text(labels=classes(5, TOKENS)),
    ),
    "DebertaForQuestionAnswering": ("DebertaConfig", TEXT | DISENTANGLED, ends),
    "DistilBertForSequenceClassification": (
        "DistilBertConfig",
        DISTIL,
        lambda: text(labels=classes(2)),
    ),
    "GPT2LMHeadModel": ("GPT2Config", GPT2, continued),
    "T5ForConditionalGeneration": ("T5Config", T5, translation),
    "BartForConditionalGeneration": ("BartConfig", TWO_SIDES, translation),
    "WhisperForConditionalGeneration": ("WhisperConfig", TWO_SIDES | SOUND, speech),
    "ViTForImageClassification": ("ViTConfig", ENCODER | IMAGE, images),
    "ConvNextForImageClassification": ("ConvNextConfig", STAGES, images),
}


def main() -> int:
    """Compare all networks and print a line for each; record the result if asked."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=list(NETWORKS), help="names of networks")
    parser.add_argument("--record", action="store_true", help="keep the result, renew the page")
    options = parser.parse_args()
    rows = {}
    for name in options.only or NETWORKS:
        rows[name] = compared(name)
        print(name, rows[name], flush=True)
    if options.record:
        record = harness.write_record(
            "published-models", {"environment": harness.environment(), "networks": rows}
        )
        renew(rows, record)
    return 0


def compared(name: str) -> dict[str, Any]:
    """One update of a network by a wrapper and by plain PyTorch."""
    configuration, settings, make = NETWORKS[name]
    torch.manual_seed(0)
    network = getattr(transformers, name)(getattr(transformers, configuration)(**settings))
    network.config.use_cache = False
    batch = make()
    plain, wrapped = pipelined(copy.deepcopy(network)), pipelined(network)
    expected = plain_update(plain, batch)
    losses, target = update(wrapped, batch)
    ours = dict(wrapped.named_parameters())
    gaps = [(value - ours[key]).abs().max().item() for key, value in plain.named_parameters()]
    return {
        "target": target,
        "losses equal": int((losses == expected).sum()),
        "largest loss gap": (losses - expected).abs().max().item(),
        "parameters": len(gaps),
        "parameters equal": sum(gap == 0 for gap in gaps),
        "largest parameter gap": max(gaps),
    }


def pipelined(network: Any) -> Any:
    """Place the network on two IPUs as optimum-graphcore does, for training."""
    layers = {"layers_per_ipu": [2, 2], "inference_layers_per_ipu": [2, 2]}
    config = IPUConfig(
        ipus_per_replica=2,
        gradient_accumulation_steps=ROWS,
        executable_cache_dir="disabled",
        enable_half_partials=False,
        **layers,
    )
    spread = to_pipelined(network, config, force=False)
    spread.ipu_config.train()
    return spread.parallelize().train()


def loss_of(results: Any) -> torch.Tensor:
    """Return the loss among a network's results."""
    return results["loss"] if isinstance(results, dict) else results[0]


def plain_update(network: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """Return the losses of all rows before an update with their mean gradient."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    losses = []
    for row in range(ROWS):
        results = network(**{key: value[row : row + 1] for key, value in batch.items()})
        loss = loss_of(results)
        (loss / ROWS).backward()
        losses.append(loss.detach())
    optimizer.step()
    return torch.stack(losses)


def update(network: Any, batch: Batch) -> tuple[torch.Tensor, str]:
    """Return the losses of a wrapper, and the target that ran."""
    options = network.ipu_config.to_options().outputMode(poptorch.OutputMode.All)
    optimizer = poptorch.optim.SGD(network.parameters(), lr=0.1)
    wrapped = poptorch.trainingModel(network, options, optimizer)
    loss = loss_of(wrapped(**batch))
    target = str(wrapped.target)
    wrapped.destroy()
    return loss.detach().flatten().float(), target


def renew(rows: dict[str, dict[str, Any]], record: Path) -> None:
    """Rewrite the table of the page."""
    table = ["| network | losses equal | parameters equal | largest gap |", "|---|---|---|---|"]
    table += [
        f"| `{name}` | {row['losses equal']} of {ROWS} | {row['parameters equal']} of "
        f"{row['parameters']} | {row['largest parameter gap']:.1g} |"
        for name, row in rows.items()
    ]
    targets = ", ".join(sorted({row["target"] for row in rows.values()}))
    source = f"Target {targets}, from [`{record.name}`](../benchmarks/records/{record.name})."
    body = "\n".join(["<!-- networks -->", source, "", *table, "<!-- end networks -->"])
    page = PAGE.read_text()
    PAGE.write_text(re.sub(r"(?s)<!-- networks -->.*<!-- end networks -->", body, page))


if __name__ == "__main__":
    sys.exit(main())

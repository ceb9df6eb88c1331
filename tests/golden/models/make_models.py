"""Writes the parity set: tiny models of every family and variant, and what transformers makes of them.

    python make_models.py [NAME...]        (needs torch, transformers 5, safetensors; run once)

Each directory holds a model as users have it (config.json, model.safetensors or shards), rows.jsonl
(the sequences as `input_ids` rows) and golden.safetensors:

    ids.N, logits.N     sequence N and its logits [T, V]
    ids.long, logits.long   only for `dynamic` rope: beyond max_position_embeddings
    loss, tokens        token-weighted mean of the next-token loss over all sequences, its denominator
    grad.NAME           gradient of that mean, under the parameter's name
    rope                cos and sin at the positions of `rope_positions`, [P, 2, D/2], of a sequence
                        that ends with the last of them

Everything is computed in float64. transformers itself drops to float32 inside RMSNorm and in the
softmax of Llama-like models; both are replaced here by the same formula without the cast. Weights
are drawn far larger than an initialisation would, with uneven norm weights and biases, so that no
part of the model is too quiet to matter.

`adamw10_*` hold ten AdamW steps as well: `losses`, `norms`, `rates` and `final.NAME`.
"""
import json
import math
import os
import shutil
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.models.gpt2.configuration_gpt2 import GPT2Config
from transformers.models.llama import modeling_llama
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.mistral import modeling_mistral
from transformers.models.mistral.configuration_mistral import MistralConfig
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen2.configuration_qwen2 import Qwen2Config
from transformers.models.qwen3 import modeling_qwen3
from transformers.models.qwen3.configuration_qwen3 import Qwen3Config

HERE = os.path.dirname(os.path.abspath(__file__))
ROPE_POSITIONS = [0, 1, 2, 3, 5, 17, 40, 69]


def norm64(self, x):
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


def attention64(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    groups = module.num_key_value_groups
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.transpose(2, 3) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = scores.softmax(-1)
    return (weights @ value).transpose(1, 2).contiguous(), weights


for module, norm in ((modeling_llama, "LlamaRMSNorm"), (modeling_mistral, "MistralRMSNorm"),
                     (modeling_qwen2, "Qwen2RMSNorm"), (modeling_qwen3, "Qwen3RMSNorm")):
    getattr(module, norm).forward = norm64
    module.eager_attention_forward = attention64


def llama_like(cls, **changes):
    keys = dict(vocab_size=53, hidden_size=16, intermediate_size=36, num_hidden_layers=2,
                num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=128,
                rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False)
    keys.update(changes)
    return cls(**keys)


def llama(**changes):
    return llama_like(LlamaConfig, **changes)


def rope(kind, **keys):
    return dict(rope_type=kind, **keys)


def gpt2(**changes):
    keys = dict(vocab_size=53, n_embd=16, n_layer=2, n_head=2, n_positions=96, bos_token_id=1,
                eos_token_id=2)
    keys.update(changes)
    return GPT2Config(**keys)


LLAMA3 = rope("llama3", rope_theta=100.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)
# NAME: (configuration, how it is stored)
MODELS = {
    "llama_default": (llama(), {}),
    "llama_linear": (llama(num_attention_heads=4, num_key_value_heads=2,
                           rope_parameters=rope("linear", rope_theta=500.0, factor=4.0)),
                     {"old": "type", "shard": "12KB"}),
    "llama_llama3": (llama(head_dim=16, num_key_value_heads=1, rope_parameters=LLAMA3), {}),
    "llama_llama3_old": (llama(head_dim=16, num_key_value_heads=1, rope_parameters=LLAMA3),
                         {"old": "rope_type", "dtype": torch.bfloat16}),
    "llama_yarn": (llama(head_dim=16, rope_parameters=rope(
        "yarn", rope_theta=1000.0, factor=4.0, original_max_position_embeddings=32)), {}),
    "llama_yarn_mscale": (llama(head_dim=16, rope_parameters=rope(
        "yarn", rope_theta=100.0, factor=3.5, original_max_position_embeddings=32, beta_fast=4.0,
        beta_slow=0.5, mscale=1.4, mscale_all_dim=0.7, truncate=False)), {"old": "rope_type"}),
    "llama_dynamic": (llama(head_dim=16, max_position_embeddings=48, rope_parameters=rope(
        "dynamic", rope_theta=1000.0, factor=2.0)), {"lengths": (41, 17, 5), "long": 70}),
    "llama_mqa": (llama(hidden_size=24, num_attention_heads=4, num_key_value_heads=1, head_dim=6),
                  {"dtype": torch.float16}),
    "llama_bias": (llama(attention_bias=True, mlp_bias=True, head_dim=10), {}),
    "llama_tied": (llama(tie_word_embeddings=True), {"old": "type"}),
    "llama_gelu": (llama(hidden_act="gelu"), {"prefix": False}),
    "llama_gelu_tanh": (llama(hidden_act="gelu_pytorch_tanh"), {}),
    "llama_relu": (llama(hidden_act="relu"), {}),
    "llama_quick_gelu": (llama(hidden_act="quick_gelu"), {}),
    "mistral_window": (llama_like(MistralConfig, num_attention_heads=4, sliding_window=24,
                                  rope_parameters=rope("default", rope_theta=1e6)), {}),
    "mistral_full": (llama_like(MistralConfig, sliding_window=None, head_dim=12),
                     {"old": "type", "dtype": torch.bfloat16}),
    "qwen2": (llama_like(Qwen2Config, num_attention_heads=4, tie_word_embeddings=True), {}),
    "qwen2_window": (llama_like(Qwen2Config, num_hidden_layers=3, use_sliding_window=True,
                                sliding_window=13, max_window_layers=1), {"old": "type"}),
    "qwen3": (llama_like(Qwen3Config, hidden_size=24, num_attention_heads=4, head_dim=8,
                         tie_word_embeddings=True), {}),
    "qwen3_window": (llama_like(Qwen3Config, num_hidden_layers=3, head_dim=12, attention_bias=True,
                                use_sliding_window=True, sliding_window=16, layer_types=[
                                    "sliding_attention", "full_attention", "sliding_attention"]),
                     {}),
    "gpt2": (gpt2(), {}),
    "gpt2_inner": (gpt2(n_inner=40, activation_function="gelu"), {"prefix": False}),
    "gpt2_inverse": (gpt2(n_layer=3, scale_attn_by_inverse_layer_idx=True, n_inner=24), {}),
    "gpt2_relu": (gpt2(activation_function="relu", tie_word_embeddings=False,
                       scale_attn_weights=False), {"dtype": torch.float16}),
    "adamw10_llama": (llama(num_attention_heads=4), {"steps": 10}),
    "adamw10_gpt2": (gpt2(), {"steps": 10}),
}


def fill(model, generator):
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=generator)
        norm = p.dim() == 1 and name.endswith("weight")
        p.data = 1 + 0.3 * noise if norm else 0.25 * noise


def old_spelling(path, kind):
    """Rewrites config.json as transformers 4 wrote it."""
    with open(path) as f:
        keys = json.load(f)
    rope_keys = keys.pop("rope_parameters")
    keys["rope_theta"] = rope_keys.pop("rope_theta")
    name = rope_keys.pop("rope_type")
    keys["rope_scaling"] = None if name == "default" else {kind: name, **rope_keys}
    keys["torch_dtype"] = keys.pop("dtype")
    keys.pop("layer_types", None)
    keys["transformers_version"] = "4.44.0"
    with open(path, "w") as f:
        json.dump(keys, f, indent=2, sort_keys=True)
        f.write("\n")


def store(config, how, out, seed):
    model = AutoModelForCausalLM.from_config(config)
    fill(model, torch.Generator().manual_seed(seed))
    model = model.to(how.get("dtype", torch.float32))
    model.save_pretrained(out, max_shard_size=how.get("shard", "1GB"))
    os.remove(os.path.join(out, "generation_config.json"))
    if "old" in how:
        old_spelling(os.path.join(out, "config.json"), how["old"])
    if how.get("prefix") is False:
        path = os.path.join(out, "model.safetensors")
        tensors = load_file(path)
        prefix = model.base_model_prefix + "."
        save_file({k.removeprefix(prefix): v for k, v in tensors.items()}, path,
                  metadata={"format": "pt"})
    return model


def load(out):
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float64,
                                                 attn_implementation="eager")
    return model.eval()


def sequences(lengths, vocabulary, generator):
    return [torch.randint(0, vocabulary, (n,), generator=generator) for n in lengths]


def write_rows(path, rows):
    with open(path, "w") as f:
        for ids in rows:
            f.write(json.dumps({"input_ids": ids.tolist()}, separators=(",", ":")) + "\n")


def summed_loss(model, ids):
    logits = model(input_ids=ids[None]).logits[0]
    return logits, torch.nn.functional.cross_entropy(logits[:-1], ids[1:], reduction="sum")


def rope_table(model):
    if not hasattr(model.base_model, "rotary_emb"):
        return {}
    p = torch.tensor([ROPE_POSITIONS])
    cos, sin = model.base_model.rotary_emb(torch.zeros(1, dtype=torch.float32), p)
    half = cos.shape[-1] // 2
    return {"rope": torch.stack([cos[0, :, :half], sin[0, :, :half]], 1).contiguous(),
            "rope_positions": p[0].contiguous()}


def parity(model, how, out, seed):
    generator = torch.Generator().manual_seed(seed + 1)
    rows = sequences(how.get("lengths", (70, 17, 5)), model.config.vocab_size, generator)
    write_rows(os.path.join(out, "rows.jsonl"), rows)
    golden = rope_table(model)
    total, tokens = 0.0, 0
    for i, ids in enumerate(rows):
        logits, loss = summed_loss(model, ids)
        total, tokens = total + loss, tokens + len(ids) - 1
        golden[f"ids.{i}"], golden[f"logits.{i}"] = ids, logits.detach().float()
    mean = total / tokens
    mean.backward()
    golden["loss"] = mean.detach().reshape(1)
    golden["tokens"] = torch.tensor([tokens])
    for name, p in model.named_parameters():
        golden["grad." + name] = p.grad.float()
    if "long" in how:
        ids, = sequences((how["long"],), model.config.vocab_size, generator)
        golden["ids.long"] = ids
        golden["logits.long"] = summed_loss(model, ids)[0].detach().float()
    save_file(golden, os.path.join(out, "golden.safetensors"))
    return float(mean.detach())


def rate(step, steps, peak, warmup, floor):
    if step <= warmup:
        return peak * step / warmup
    phase = (step - warmup) / (steps - warmup)
    return peak * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * phase)))


RUN = """model: .
output: out
seed: 1
data:       {{train: [rows.jsonl], shuffle: false, max_length: 64}}
batch:      {{sequences: 4}}
microbatch: {{tokens: 128}}
train:      {{steps: {steps}, dtype: float32}}
optimizer:  {{lr: {lr}, schedule: cosine, warmup: 2, min_lr_ratio: 0.1, betas: [0.9, 0.95],
             eps: 1.0e-8, weight_decay: 0.1, clip: 1.0}}
"""


def train(model, how, out, seed):
    steps, peak = how["steps"], 0.01
    generator = torch.Generator().manual_seed(seed + 1)
    lengths = torch.randint(2, 60, (4 * steps,), generator=generator).tolist()
    rows = sequences(lengths, model.config.vocab_size, generator)
    write_rows(os.path.join(out, "rows.jsonl"), rows)
    with open(os.path.join(out, "run.yaml"), "w") as f:
        f.write(RUN.format(steps=steps, lr=peak))
    groups = [{"params": [p for p in model.parameters() if p.dim() == 2], "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.dim() != 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.95), eps=1e-8)
    losses, norms, rates = [], [], []
    for step in range(steps):
        batch = rows[4 * step:4 * step + 4]
        loss = sum(summed_loss(model, ids)[1] for ids in batch) / sum(len(i) - 1 for i in batch)
        optimizer.zero_grad()
        loss.backward()
        rates.append(rate(step + 1, steps, peak, 2, 0.1))
        for group in optimizer.param_groups:
            group["lr"] = rates[-1]
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        losses.append(loss.item())
        optimizer.step()
    golden = {"losses": torch.tensor(losses, dtype=torch.float64),
              "norms": torch.tensor(norms, dtype=torch.float64),
              "rates": torch.tensor(rates, dtype=torch.float64)}
    for name, p in model.named_parameters():
        golden["final." + name] = p.detach().float()
    save_file(golden, os.path.join(out, "golden.safetensors"))
    return losses


def main():
    torch.set_num_threads(1)
    for seed, (name, (config, how)) in enumerate(MODELS.items()):
        if len(sys.argv) > 1 and name not in sys.argv[1:]:
            continue
        out = os.path.join(HERE, name)
        shutil.rmtree(out, ignore_errors=True)
        os.makedirs(out)
        drawn = store(config, how, out, 100 * seed)
        model = load(out)
        for (key, p), (_, q) in zip(model.named_parameters(), drawn.named_parameters()):
            assert torch.equal(p, q.double()), f"{name}: {key} did not survive the files"
        print(name, (train if "steps" in how else parity)(model, how, out, 100 * seed))


main()

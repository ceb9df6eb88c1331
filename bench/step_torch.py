"""The step of bench/step.c in PyTorch: prints tokens per second of the best step.

usage: step_torch.py MODEL BATCH SEQ THREADS DTYPE   (needs torch and transformers)
Scaled-dot-product attention, fused AdamW, bf16 by autocast, malloc told to keep its memory (else PyTorch's
step is several times slower, by page faults).
"""
import os
import sys

TUNED = {"MALLOC_MMAP_THRESHOLD_": str(1 << 32), "MALLOC_TRIM_THRESHOLD_": str(1 << 34), "MALLOC_TOP_PAD_": str(1 << 28)}
if any(os.environ.get(k) != v for k, v in TUNED.items()):
    os.execve(sys.executable, [sys.executable] + sys.argv, {**os.environ, **TUNED, "HF_HUB_OFFLINE": "1"})

import time

import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

model_name, batch, seq, threads, dtype = sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5]
torch.set_num_threads(threads)
torch.manual_seed(1)
configs = {
    "gpt2-124m": GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0),
    "llama-10m": LlamaConfig(hidden_size=320, num_hidden_layers=8, num_attention_heads=5, num_key_value_heads=5,
                             intermediate_size=864, vocab_size=4096, max_position_embeddings=32768, rms_norm_eps=1e-5,
                             tie_word_embeddings=True),
}
model = AutoModelForCausalLM.from_config(configs[model_name], attn_implementation="sdpa")
decay = [p for p in model.parameters() if p.dim() > 1]
plain = [p for p in model.parameters() if p.dim() == 1]
optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}],
                              lr=3e-4, betas=(0.9, 0.95), eps=1e-8, fused=True)
V = model.config.vocab_size
t = torch.arange(batch * seq, dtype=torch.int64)
ids = ((t * 2654435761) % V).view(batch, seq)
targets = (((t + 1) * 2654435761) % V).view(batch, seq)
best = 1e30
for step in range(6):
    started = time.perf_counter()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bfloat16"):
        logits = model(ids, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.float().view(-1, V), targets.view(-1))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if step >= 2:
        best = min(best, time.perf_counter() - started)
print(batch * seq / best)

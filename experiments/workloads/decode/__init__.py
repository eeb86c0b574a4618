"""The decode workload: a compact Qwen3 / Llama decoder with paged KV cache and split-KV attention."""

"""The decode workload: a compact Qwen3 / Llama decoder with paged KV and split-KV attention."""

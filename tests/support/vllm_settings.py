"""How engines are started in tests."""

import os
from typing import Any

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

# What vLLM's attention on a CPU can run: heads of 32 and blocks of 32 tokens.
SIZES = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2}
ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "eager": True,
    "max_seqs": 64,
    "options": {"block_size": 32},
}

"""One engine step through hal: a request decodes while another's prompt is read, in one ragged batch."""

import torch

import hal

config = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
}
shape = hal.read_shape(config)  # or a model folder, a config.json, a transformers config
limits = hal.Limits(max_model_len=512, max_num_seqs=4, max_num_batched_tokens=256)
plan = hal.plan(shape, limits=limits, dtype="float32")  # this machine's best device
attention = plan.open(num_blocks=64)
device = plan.device.torch_device
pages = [attention.pages.allocate(-(-limits.max_model_len // plan.block_size)) for _ in range(2)]


def run_step(query_lens: list[int], seq_lens: list[int], block_tables: list[list[int]]) -> torch.Tensor:
    """The last layer's output [tokens, heads, head_dim]; a model would make q, k and v from hidden states."""
    metadata = attention.build(hal.Batch(query_lens, seq_lens, block_tables))
    for layer in shape.layers:
        q = torch.randn(sum(query_lens), layer.num_heads, layer.head_dim, device=device)
        k, v = torch.randn(2, sum(query_lens), layer.num_kv_heads, layer.head_dim, device=device)
        out = attention.attend(layer.layer_id, q, k, v, metadata)
    return out


torch.manual_seed(0)
run_step([40], [40], pages[:1])  # the first request's prompt
out = run_step([1, 25], [41, 25], pages)  # its first new token, beside the second request's prompt
backends = {selection.backend for selection in plan.selections if selection is not None}
print(f"{plan.device.target} by {', '.join(backends)}: {tuple(out.shape)}, mean square {out.square().mean():.6f}")

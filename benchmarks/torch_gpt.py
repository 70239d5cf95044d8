"""The other yardstick: GPT-2's training step in PyTorch, as one writes it, under torch.compile."""

from transformer_lab.models.decoder import DecoderConfig


def make_turn(config: DecoderConfig, rows: int, length: int, steps: int):
    """A turn of so many steps of the same sizes; None where PyTorch is not installed.

    scaled_dot_product_attention, AdamW, and on a GPU bfloat16 autocast and TF32, a tied head, no
    dropout: what `config` asks of our own.
    """
    try:
        import torch
        import torch.nn.functional as F
        from torch import nn
    except ImportError:
        return None
    width, heads = config.width, config.heads

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
            self.packed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up = nn.Linear(width, config.feed_forward_width)
            self.down = nn.Linear(config.feed_forward_width, width)

        def forward(self, x):
            b, t, _ = x.shape
            split = [
                h.view(b, t, heads, -1).transpose(1, 2)
                for h in self.packed(self.first(x)).chunk(3, dim=-1)
            ]
            mixed = F.scaled_dot_product_attention(*split, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(b, t, width))
            return x + self.down(F.gelu(self.up(self.second(x)), approximate="tanh"))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(config.table_rows, width)
            self.places = nn.Embedding(length, width)
            self.blocks = nn.ModuleList(Block() for _ in range(config.layers))
            self.norm = nn.LayerNorm(width)

        def forward(self, ids, targets):
            x = self.tokens(ids) + self.places.weight
            for block in self.blocks:
                x = block(x)
            logits = self.norm(x) @ self.tokens.weight.T
            return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    model = GPT().to(device)
    nn.init.normal_(model.tokens.weight, std=0.02)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(0, config.vocab_size, (rows, length), device=device)
    compiled = torch.compile(model)

    def turn():
        for _ in range(steps):
            with torch.autocast(device, torch.bfloat16, enabled=config.dtype == "bfloat16"):
                loss = compiled(ids, ids)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if device == "cuda":
            torch.cuda.synchronize()
        return float(loss)

    return turn

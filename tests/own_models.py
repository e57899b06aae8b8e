"""Small models that are not from transformers, written as people write them. `attention` names their attention modules."""

import math

import torch
from torch import nn
from torch.nn import functional as F

V, D, H, L, T = 61, 32, 4, 3, 64


def weight(*shape):
    return nn.Parameter(torch.randn(*shape) * 0.2)


class TorchEncoder(nn.Module):
    def __init__(self, norm_first=False, activation="relu", batch_first=True, final=False, layers=L):
        super().__init__()
        self.embed = nn.Embedding(V, D)
        self.position = nn.Embedding(T, D)
        layer = nn.TransformerEncoderLayer(
            D, H, 64, dropout=0.1, activation=activation, norm_first=norm_first, batch_first=batch_first
        )
        self.encoder = nn.TransformerEncoder(
            layer, layers, norm=nn.LayerNorm(D) if final else None, enable_nested_tensor=False
        )
        self.batch_first = batch_first

    def forward(self, input_ids, attention_mask):
        x = self.embed(input_ids) + self.position(torch.arange(input_ids.shape[1]))
        if not self.batch_first:
            x = x.transpose(0, 1)
        x = self.encoder(x, src_key_padding_mask=attention_mask == 0)
        return x if self.batch_first else x.transpose(0, 1)


class LayerNorm(nn.Module):
    def __init__(self, ndim, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(ndim))
        self.bias = nn.Parameter(torch.zeros(ndim)) if bias else None

    def forward(self, input):
        return F.layer_norm(input, self.weight.shape, self.weight, self.bias, 1e-5)


class CausalSelfAttention(nn.Module):
    def __init__(self, flash, bias):
        super().__init__()
        self.c_attn = nn.Linear(D, 3 * D, bias=bias)
        self.c_proj = nn.Linear(D, D, bias=bias)
        self.attn_dropout = nn.Dropout(0.1)
        self.flash = flash
        self.register_buffer("mask", torch.tril(torch.ones(T, T)).view(1, 1, T, T))

    def forward(self, x):
        B, Tn, C = x.size()
        q, k, v = self.c_attn(x).split(D, dim=2)
        k = k.view(B, Tn, H, C // H).transpose(1, 2)
        q = q.view(B, Tn, H, C // H).transpose(1, 2)
        v = v.view(B, Tn, H, C // H).transpose(1, 2)
        if self.flash:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=0, is_causal=True)
        else:
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = att.masked_fill(self.mask[:, :, :Tn, :Tn] == 0, float("-inf"))
            att = F.softmax(att, dim=-1)
            att = self.attn_dropout(att)
            y = att @ v
        y = y.transpose(1, 2).contiguous().view(B, Tn, C)
        return self.c_proj(y)


class MLP(nn.Module):
    def __init__(self, bias=True):
        super().__init__()
        self.c_fc = nn.Linear(D, 4 * D, bias=bias)
        self.gelu = nn.GELU()
        self.c_proj = nn.Linear(4 * D, D, bias=bias)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        return self.dropout(self.c_proj(self.gelu(self.c_fc(x))))


class PreNormBlock(nn.Module):
    """The stream, plus what attention makes of its norm, plus what a network makes of a norm of both."""

    def __init__(self, attention, network, norm=lambda: nn.LayerNorm(D)):
        super().__init__()
        self.ln_1, self.attn, self.ln_2, self.mlp = norm(), attention, norm(), network

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Stack(nn.Module):
    """Embeddings, a sequence of blocks, and what comes last."""

    def __init__(self, block, positions=False, last=None):
        super().__init__()
        self.emb, self.position = nn.Embedding(V, D), nn.Embedding(T, D) if positions else None
        self.blocks, self.last = nn.Sequential(*[block() for _ in range(L)]), last

    def forward(self, tokens):
        x = self.emb(tokens)
        if self.position is not None:
            x = x + self.position(torch.arange(tokens.shape[1]))
        x = self.blocks(x)
        return x if self.last is None else self.last(x)


class Block(PreNormBlock):
    def __init__(self, flash, bias):
        super().__init__(CausalSelfAttention(flash, bias), MLP(bias), lambda: LayerNorm(D, bias))


class NanoGPT(nn.Module):
    def __init__(self, flash=True, bias=True):
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(V, D),
                "wpe": nn.Embedding(T, D),
                "drop": nn.Dropout(0.1),
                "h": nn.ModuleList(Block(flash, bias) for _ in range(L)),
                "ln_f": LayerNorm(D, bias),
            }
        )
        self.lm_head = nn.Linear(D, V, bias=False)
        self.transformer.wte.weight = self.lm_head.weight

    def forward(self, idx):
        t = idx.size(1)
        pos = torch.arange(0, t, dtype=torch.long, device=idx.device)
        x = self.transformer.drop(self.transformer.wte(idx) + self.transformer.wpe(pos))
        for block in self.transformer.h:
            x = block(x)
        x = self.transformer.ln_f(x)
        logits = self.lm_head(x[:, [-1], :])
        return logits, None


class LensAttention(nn.Module):
    def __init__(self):
        super().__init__()
        k = D // H
        for name in "QKV":
            setattr(self, f"W_{name}", weight(H, D, k))
            setattr(self, f"b_{name}", weight(H, k))
        self.W_O = weight(H, k, D)
        self.b_O = weight(D)

    def forward(self, x):
        q = torch.einsum("bpm,hmk->bphk", x, self.W_Q) + self.b_Q
        k = torch.einsum("bpm,hmk->bphk", x, self.W_K) + self.b_K
        v = torch.einsum("bpm,hmk->bphk", x, self.W_V) + self.b_V
        s = torch.einsum("bqhk,bphk->bhqp", q, k) / math.sqrt(q.shape[-1])
        n = s.shape[-1]
        s = s.masked_fill(torch.triu(torch.ones(n, n, dtype=torch.bool), 1), -1e5)
        a = s.softmax(-1)
        z = torch.einsum("bphk,bhqp->bqhk", v, a)
        return torch.einsum("bqhk,hkm->bqm", z, self.W_O) + self.b_O


class LensBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.attn, self.ln2 = nn.LayerNorm(D), LensAttention(), nn.LayerNorm(D)
        self.W_in, self.b_in = weight(D, 4 * D), weight(4 * D)
        self.W_out, self.b_out = weight(4 * D, D), weight(D)

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + (F.gelu(self.ln2(x) @ self.W_in + self.b_in) @ self.W_out + self.b_out)


class RMS(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.scale, self.e = nn.Parameter(torch.rand(D) + 0.5), eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.e) * self.scale


class LlamaBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = RMS(), RMS()
        self.wq, self.wk, self.wv = (
            nn.Linear(D, D, bias=False),
            nn.Linear(D, D // 2, bias=False),
            nn.Linear(D, D // 2, bias=False),
        )
        self.wo = nn.Linear(D, D, bias=False)
        self.w1, self.w2, self.w3 = (
            nn.Linear(D, 48, bias=False),
            nn.Linear(48, D, bias=False),
            nn.Linear(D, 48, bias=False),
        )

    def forward(self, x, freqs):
        h = self.n1(x)
        b, t, _ = h.shape
        q, k, v = self.wq(h).view(b, t, H, -1), self.wk(h).view(b, t, H // 2, -1), self.wv(h).view(b, t, H // 2, -1)
        q, k = rotate(q, freqs), rotate(k, freqs)
        k, v = k.repeat_interleave(2, dim=2), v.repeat_interleave(2, dim=2)
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        x = x + self.wo(y.transpose(1, 2).reshape(b, t, -1))
        h = self.n2(x)
        return x + self.w2(F.silu(self.w1(h)) * self.w3(h))


def rotate(x, freqs):
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * freqs[:, None].to(pairs.dtype)).flatten(3)


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(V, D)
        self.layers = nn.ModuleList(LlamaBlock() for _ in range(L))
        self.norm = RMS()
        self.out = nn.Linear(D, V, bias=False)

    def forward(self, tokens):
        t = tokens.shape[1]
        k = D // H
        angles = torch.outer(torch.arange(t), 1 / 100 ** (torch.arange(0, k, 2) / k))
        freqs = torch.polar(torch.ones_like(angles), angles)
        x = self.tok(tokens)
        for layer in self.layers:
            x = layer(x, freqs)
        return self.out(self.norm(x))


class MatmulAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (weight(D, D) for _ in range(4))
        self.bo = weight(D)

    def forward(self, x, mask):
        b, t, _ = x.shape

        def heads(z):
            return z.view(b, t, H, -1).permute(0, 2, 1, 3)

        q, k, v = heads(x @ self.wq), heads(torch.matmul(x, self.wk)), heads(x @ self.wv)
        a = torch.softmax(q @ k.mT / (D // H) ** 0.5 + mask, -1)
        return (a @ v).permute(0, 2, 1, 3).reshape(b, t, D) @ self.wo + self.bo


class MatmulBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = MatmulAttention()
        self.g1, self.b1, self.g2, self.b2 = (weight(D) for _ in range(4))
        self.w1, self.c1, self.w2 = weight(64, D), weight(64), weight(D, 64)

    def forward(self, x, mask):
        x = F.layer_norm(x + self.attn(x, mask), (D,), self.g1, self.b1, 1e-12)
        y = F.linear(F.gelu(F.linear(x, self.w1, self.c1)), self.w2)
        return F.layer_norm(x + y, (D,), self.g2, self.b2, 1e-12)


class Matmul(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.layers = nn.Embedding(V, D), nn.ModuleList(MatmulBlock() for _ in range(L))

    def forward(self, input_ids, attention_mask):
        mask = (1 - attention_mask[:, None, None].to(self.emb.weight.dtype)) * -1e9
        x = self.emb(input_ids)
        for layer in self.layers:
            x = layer(x, mask)
        return x


class MhaBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.mha = nn.MultiheadAttention(D, H, batch_first=True)
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.ff = nn.Sequential(nn.Linear(D, 64), nn.GELU(), nn.Linear(64, D))

    def forward(self, x, pad):
        y, weights = self.mha(self.n1(x), self.n1(x), self.n1(x), key_padding_mask=pad)
        x = x + y
        return x + self.ff(self.n2(x)), weights


class Mha(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.blocks = nn.Embedding(V, D), nn.ModuleList(MhaBlock() for _ in range(L))
        self.pos = nn.Parameter(torch.randn(1, T, D))

    def forward(self, input_ids, attention_mask):
        x, maps = self.emb(input_ids) + self.pos[:, : input_ids.shape[1]], []
        for block in self.blocks:
            x, w = block(x, attention_mask == 0)
            maps.append(w)
        return {"output": x, "maps": maps}


class Parallel(nn.Module):
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln, self.qkv, self.proj = nn.LayerNorm(D), nn.Linear(D, 3 * D), nn.Linear(D, D)
            self.up, self.down = nn.Linear(D, 64), nn.Linear(64, D)

        def forward(self, x, alibi):
            h = self.ln(x)
            b, t, _ = h.shape
            q, k, v = self.qkv(h).reshape(b, t, 3, H, -1).permute(2, 0, 3, 1, 4)
            a = ((q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5 + alibi).softmax(-1)
            y = self.proj((a @ v).transpose(1, 2).flatten(2))
            return x + y + self.down(F.relu(self.up(h)))

    def __init__(self):
        super().__init__()
        self.emb, self.layers, self.ln_f = (
            nn.Embedding(V, D),
            nn.ModuleList(self.Layer() for _ in range(L)),
            nn.LayerNorm(D),
        )

    def forward(self, ids):
        t = ids.shape[1]
        far = torch.arange(t)[:, None] - torch.arange(t)
        slopes = 2.0 ** -torch.arange(1, H + 1)
        alibi = (-slopes[:, None, None] * far).masked_fill(far < 0, float("-inf"))
        x = self.emb(ids)
        for layer in self.layers:
            x = layer(x, alibi)
        return self.ln_f(x)


class Flat(nn.Module):
    """No module runs a whole layer: its parts are in separate lists."""

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v, self.o = (nn.Linear(D, D) for _ in range(4))

        def forward(self, x, keep):
            b, t, _ = x.shape
            q, k, v = (f(x).view(b, t, H, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
            s = (q @ k.transpose(2, 3) / math.sqrt(D // H)).masked_fill(~keep, torch.finfo(x.dtype).min)
            return self.o((s.softmax(-1) @ v).transpose(1, 2).reshape(b, t, D))

    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, D)
        self.attentions = nn.ModuleList(self.Attention() for _ in range(L))
        self.norm1, self.norm2 = (nn.ModuleList(nn.LayerNorm(D) for _ in range(L)) for _ in range(2))
        self.ffs = nn.ModuleList(nn.Sequential(nn.Linear(D, 64), nn.ReLU(), nn.Linear(64, D)) for _ in range(L))

    def forward(self, input_ids, attention_mask):
        x = self.emb(input_ids)
        for a, n1, f, n2 in zip(self.attentions, self.norm1, self.ffs, self.norm2, strict=True):
            x = n1(x + a(x, attention_mask[:, None, None].bool()))
            x = n2(x + f(x))
        return x


class PreNorm(nn.Module):
    def __init__(self, fn):
        super().__init__()
        self.norm, self.fn = nn.LayerNorm(D), fn

    def forward(self, x, **kwargs):
        return self.fn(self.norm(x), **kwargs)


class FusedAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.to_qkv, self.to_out = nn.Linear(D, 3 * D, bias=False), nn.Sequential(nn.Linear(D, D), nn.Dropout(0.1))

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (z.view(b, t, H, -1).transpose(1, 2) for z in self.to_qkv(x).chunk(3, dim=-1))
        dots = torch.matmul(q, k.transpose(-1, -2)) * (D // H) ** -0.5
        out = torch.matmul(dots.softmax(dim=-1), v)
        return self.to_out(out.transpose(1, 2).reshape(b, t, D))


class Pairs(nn.Module):
    """Layers are pairs of modules, in one list (`flat`) or in one list each; a head follows at once."""

    def __init__(self, flat=False, head=True):
        super().__init__()
        self.emb = nn.Embedding(V, D)
        pairs = [(PreNorm(FusedAttention()), PreNorm(MLP())) for _ in range(L)]
        self.layers = nn.ModuleList(sum(pairs, ()) if flat else map(nn.ModuleList, pairs))
        self.to_logits = nn.Linear(D, V) if head else nn.LayerNorm(D)
        self.flat = flat

    def forward(self, tokens):
        x = self.emb(tokens)
        if self.flat:
            for layer in self.layers:
                x = layer(x) + x
        else:
            for attn, ff in self.layers:
                x = attn(x) + x
                x = ff(x) + x
        return self.to_logits(x)


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(D, D // H, bias=False) for _ in range(3))
        self.register_buffer("tril", torch.tril(torch.ones(T, T)))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        _, t, _ = x.shape
        k, q = self.key(x), self.query(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(self.tril[:t, :t] == 0, float("-inf"))
        wei = self.dropout(F.softmax(wei, dim=-1))
        return wei @ self.value(x)


class MultiHeadAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList(Head() for _ in range(H))
        self.proj, self.dropout = nn.Linear(D, D), nn.Dropout(0.1)

    def forward(self, x):
        return self.dropout(self.proj(torch.cat([head(x) for head in self.heads], dim=-1)))


class SeparateHeads(nn.Module):
    """Every head is a module."""

    def __init__(self):
        super().__init__()
        self.token_embedding_table, self.position_embedding_table = nn.Embedding(V, D), nn.Embedding(T, D)
        self.blocks = nn.Sequential(*[PreNormBlock(MultiHeadAttention(), MLP()) for _ in range(L)])
        self.ln_f, self.lm_head = nn.LayerNorm(D), nn.Linear(D, V)

    def forward(self, idx, _targets=None):
        _, t = idx.shape
        x = self.token_embedding_table(idx) + self.position_embedding_table(torch.arange(t, device=idx.device))
        return self.lm_head(self.ln_f(self.blocks(x))), None


class AttentionOnly(nn.Module):
    """No feed-forward network follows."""

    def __init__(self):
        super().__init__()
        self.emb, self.unembed = nn.Embedding(V, D), nn.Linear(D, V)
        self.attentions = nn.ModuleList(FusedAttention() for _ in range(L))

    def forward(self, tokens):
        x = self.emb(tokens)
        for attention in self.attentions:
            x = x + attention(x)
        return self.unembed(x)


class AttentionOnlyBlock(PreNorm):
    """The same, each with a norm."""

    def __init__(self):
        super().__init__(FusedAttention())

    def forward(self, x):
        return x + self.fn(self.norm(x))


class PlusOne(RMS):
    """It stores γ − 1."""

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.e) * (1 + self.scale)


class MixedNorms(Llama):
    """The norms of its layers store γ − 1, the last one does not."""

    def __init__(self):
        super().__init__()
        for layer in self.layers:
            layer.n1, layer.n2 = PlusOne(), PlusOne()
        self.norm = nn.LayerNorm(D)


class Scale(nn.Module):
    def __init__(self, alpha):
        super().__init__()
        self.alpha = alpha

    def forward(self, x):
        return self.alpha * x


class ReZero(nn.Module):
    """Every layer has a factor of its own on what it adds."""

    def __init__(self):
        super().__init__()
        alpha = nn.Parameter(torch.randn(()))
        self.fn, self.ff, self.scale, self.other = FusedAttention(), MLP(), Scale(alpha), Scale(alpha)

    def forward(self, x):
        x = x + self.scale(self.fn(x))
        return x + self.other(self.ff(x))


class EinsumAttention(nn.Module):
    """One einsum for queries, keys and values, and one of three operands for the sum over keys and heads."""

    def __init__(self):
        super().__init__()
        self.w, self.o = weight(3, H, D, D // H), weight(H, D // H, D)

    def forward(self, x):
        q, k, v = torch.einsum("...md,chdk->c...hmk", x, self.w)
        s = torch.einsum("...hqk,...hpk->...hqp", q, k) / math.sqrt(q.shape[-1])
        return torch.einsum("bhqp,bhpk,hkd->bqd", s.softmax(-1), v, self.o)


class TwoFactors(nn.Module):
    """What attention and what the network adds has a learned factor of its own."""

    def __init__(self):
        super().__init__()
        self.attn, self.mlp = EinsumAttention(), MLP()
        self.scale = Scale(nn.Parameter(torch.randn(())))
        self.b = nn.Parameter(torch.randn(1))

    def forward(self, x):
        x = x + self.scale(self.attn(x))
        return x + self.b * self.mlp(x)


class MultipliedResidual(PreNormBlock):
    """The residual connection carries a multiple of the stream, as in DeepNorm."""

    def __init__(self):
        super().__init__(EinsumAttention(), MLP())

    def forward(self, x):
        x = self.ln_1(1.7 * x + self.attn(x))
        return self.ln_2(1.7 * x + self.mlp(x))


class HookedAttention(nn.Module):
    """Weights by head are put in another order before each product; rotations are written in place."""

    def __init__(self):
        super().__init__()
        k = D // H
        for name in "QKV":
            setattr(self, f"W_{name}", weight(H, D, k))
            setattr(self, f"b_{name}", weight(H, k))
        self.W_O, self.b_O = weight(H, k, D), weight(D)
        angles = torch.arange(T)[:, None] / 100 ** (torch.arange(k // 2) / (k // 2))
        self.register_buffer("cos", angles.cos().repeat(1, 2)[:, None])
        self.register_buffer("sin", angles.sin().repeat(1, 2)[:, None])

    def heads(self, x, name):
        w = getattr(self, f"W_{name}").permute(0, 2, 1).reshape(D, D)
        b = getattr(self, f"b_{name}").reshape(D)
        return F.linear(x, w, b).reshape(*x.shape[:2], H, D // H)

    def turned(self, x):
        half, n = x.shape[-1] // 2, x.shape[1]
        other = x.clone()
        other[..., :half] = -x[..., half:]
        other[..., half:] = x[..., :half]
        return x * self.cos[:n] + other * self.sin[:n]

    def forward(self, x):
        q, k, v = self.turned(self.heads(x, "Q")), self.turned(self.heads(x, "K")), self.heads(x, "V")
        s = (q.permute(0, 2, 1, 3) @ k.permute(0, 2, 3, 1)) / math.sqrt(D // H)
        n = s.shape[-1]
        s = torch.where(torch.tril(torch.ones(n, n, dtype=torch.bool)), s, torch.tensor(-torch.inf, dtype=s.dtype))
        a = s.softmax(-1)
        a = torch.where(torch.isnan(a), torch.zeros_like(a), a)
        z = (a @ v.permute(0, 2, 1, 3)).permute(0, 2, 1, 3)
        return F.linear(z.reshape(*x.shape[:2], D), self.W_O.permute(2, 0, 1).reshape(D, D), self.b_O)


class Hooked(Stack):
    """As in TransformerLens: a bare table of embeddings, weights by head."""

    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.W_E = weight(V, D)

        def forward(self, tokens):
            return self.W_E[tokens, :]

    def __init__(self):
        super().__init__(lambda: PreNormBlock(HookedAttention(), MLP()))
        self.emb = self.Table()


class UnitNorm(nn.Module):
    """An RMSNorm without ε."""

    def __init__(self):
        super().__init__()
        self.g = nn.Parameter(torch.rand(D) + 0.5)

    def forward(self, x):
        return F.normalize(x, dim=-1) * math.sqrt(D) * self.g


class OptionalAttention(nn.Module):
    """As in x-transformers: options that are not in use leave terms of zero behind."""

    def __init__(self):
        super().__init__()
        self.to_qkv, self.gate, self.to_out = nn.Linear(D, 3 * D), nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x):
        q, k, v = self.to_qkv(x).view(*x.shape[:2], 3, H, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        return self.to_out(y * torch.sigmoid(0.0 + self.gate(x)))


class OptionalNetwork(nn.Module):
    """The same, with a factor of one."""

    def __init__(self):
        super().__init__()
        self.proj, self.out, self.factor = nn.Linear(D, 96), nn.Linear(48, D), 1.0

    def forward(self, x):
        x, gate = self.proj(x).chunk(2, dim=-1)
        return self.out(x * F.gelu(gate) * self.factor)


class ShortGPT(SeparateHeads):
    """It has eight positions."""

    def __init__(self):
        super().__init__()
        self.position_embedding_table = nn.Embedding(8, D)


class InPlacePairs(Pairs):
    def forward(self, tokens):
        x = self.emb(tokens)
        for attn, ff in self.layers:
            x += attn(x)
            x += ff(x)
        return self.to_logits(x)


class InPlaceBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.fn, self.ff = PreNorm(FusedAttention()), PreNorm(MLP())

    def forward(self, x):
        x += self.fn(x)
        x += self.ff(x)
        return x


class NoMask(nn.Module):
    """A bidirectional model that takes no mask."""

    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, D)
        self.enc = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(D, H, 64, batch_first=True, norm_first=True), L, enable_nested_tensor=False
        )

    def forward(self, x):
        return self.enc(self.emb(x))


class LinearAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.q, self.k, self.v = nn.Embedding(V, D), nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, input_ids):
        x = self.emb(input_ids)
        q, k = F.elu(self.q(x)) + 1, F.elu(self.k(x)) + 1
        return x + q @ (k.transpose(1, 2) @ self.v(x))


def gpt():
    """A factory for `model.factory`."""
    torch.manual_seed(0)
    return NanoGPT()


def unweighted(x):
    return F.rms_norm(x, (x.shape[-1],))


class UnweightedAttention(nn.Module):
    """Norms of queries and keys without parameters, then a rotation; `gate` multiplies the heads' outputs by a sigmoid."""

    def __init__(self, gate=False):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(D, D, bias=False) for _ in range(4))
        self.gate = nn.Linear(D, D) if gate else None
        angles = torch.outer(torch.arange(T), 1000 ** -torch.linspace(0, 1, D // H // 2))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def turned(self, x):
        first, second = x.chunk(2, -1)
        cos, sin = (table[: x.shape[1], None].to(x) for table in (self.cos, self.sin))
        return torch.cat([first * cos + second * sin, second * cos - first * sin], -1)

    def forward(self, x):
        q, k, v = (part(x).view(*x.shape[:2], H, -1) for part in (self.q, self.k, self.v))
        q, k = self.turned(unweighted(q)), self.turned(unweighted(k))
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        y = y.transpose(1, 2).reshape(x.shape)
        return self.o(y if self.gate is None else y * torch.sigmoid(self.gate(x)))


class UnweightedNorm(nn.Module):
    def forward(self, x):
        return F.layer_norm(x, (D,))


class UnweightedBlock(nn.Module):
    def __init__(self, norm, gate):
        super().__init__()
        self.attention, self.norm, self.norm_after = UnweightedAttention(gate), norm(), norm()
        self.up, self.down = nn.Linear(D, 64, bias=False), nn.Linear(64, D, bias=False)

    def forward(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.down(F.relu(self.up(self.norm_after(x))).square())


class Unweighted(nn.Module):
    """Norms that are functions, or one module without parameters for the whole model."""

    def __init__(self, modules=False, gate=False):
        super().__init__()
        norm = UnweightedNorm if modules else lambda: unweighted
        self.norm = norm()
        self.embed, self.head = nn.Embedding(V, D), nn.Linear(D, V, bias=False)
        self.blocks = nn.ModuleList(UnweightedBlock(norm, gate) for _ in range(L))

    def forward(self, ids):
        x = self.norm(self.embed(ids))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class LayerScale(nn.Module):
    """A factor for each dimension."""

    def __init__(self, inplace):
        super().__init__()
        self.gamma, self.inplace = nn.Parameter(torch.ones(D)), inplace

    def forward(self, x):
        return x.mul_(self.gamma) if self.inplace else x * self.gamma


class ScaledBlock(PreNormBlock):
    def __init__(self, post=False, inplace=False):
        super().__init__(CausalSelfAttention(flash=True, bias=True), MLP())
        self.ls1, self.ls2, self.post = LayerScale(inplace), LayerScale(inplace), post

    def forward(self, x):
        if self.post:
            x = self.ln_1(x + self.ls1(self.attn(x)))
            return self.ln_2(x + self.ls2(self.mlp(x)))
        x = x + self.ls1(self.attn(self.ln_1(x)))
        return x + self.ls2(self.mlp(self.ln_2(x)))


class Affine(nn.Module):
    """Stands in place of a norm."""

    def __init__(self):
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.ones(D)), nn.Parameter(torch.zeros(D))

    def forward(self, x):
        return self.shift + self.gain * x


class AffineBlock(ScaledBlock):
    def __init__(self):
        super().__init__(post=True)
        self.ln_1, self.ln_2 = Affine(), Affine()


class ScaledAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.gamma = CausalSelfAttention(flash=True, bias=True), nn.Parameter(torch.ones(D))

    def forward(self, x):
        return self.gamma * self.inner(x)


class BareScales(PreNormBlock):
    """The factors are parameters of the attention and of the block."""

    def __init__(self):
        super().__init__(ScaledAttention(), MLP())
        self.gamma = nn.Parameter(0.5 + torch.rand(1, 1, D))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x)) * self.gamma


class ScaledPairs(nn.Module):
    """Layers written out in `forward`, with their factors in lists beside them."""

    def __init__(self):
        super().__init__()
        self.embed, self.position = nn.Embedding(V, D), nn.Embedding(T, D)
        self.attentions = nn.ModuleList(ScaledAttention() for _ in range(L))
        self.networks = nn.ModuleList(MLP() for _ in range(L))
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(2 * L))
        self.scales = nn.ParameterList(torch.ones(D) for _ in range(L))

    def forward(self, ids):
        x = self.embed(ids) + self.position(torch.arange(ids.shape[1]))
        for layer, (attention, network) in enumerate(zip(self.attentions, self.networks, strict=True)):
            x = x + attention(self.norms[2 * layer](x))
            x = x + self.scales[layer] * network(self.norms[2 * layer + 1](x))
        return x


MODELS = {
    "torch-post": (TorchEncoder, "encoder.layers.{0}.self_attn"),
    "torch-pre": (lambda: TorchEncoder(norm_first=True, activation="gelu", final=True), "encoder.layers.{0}.self_attn"),
    "tokens-first": (lambda: TorchEncoder(batch_first=False, norm_first=True), "encoder.layers.{0}.self_attn"),
    "gpt": (NanoGPT, "transformer.h.{0}.attn"),
    "gpt-without-fused-attention": (lambda: NanoGPT(flash=False, bias=False), "transformer.h.{0}.attn"),
    "rotary": (Llama, "layers.{0}.wo"),
    "norms-that-add-one": (MixedNorms, "layers.{0}.wo"),
    "multi-head-attention": (Mha, "blocks.{0}.mha"),
    "parallel-alibi": (Parallel, "layers.{0}.proj"),
    "without-mask": (NoMask, "enc.layers.{0}.self_attn"),
    "bare-matrices": (Matmul, "layers.{0}.attn"),
    "einsum": (lambda: Stack(LensBlock, last=nn.LayerNorm(D)), "blocks.{0}.attn"),
    "heads-as-modules": (SeparateHeads, "blocks.{0}.attn"),
    "attention-only": (AttentionOnly, "attentions.{0}"),
    "attention-only-blocks": (lambda: Stack(AttentionOnlyBlock, last=nn.Linear(D, V)), "blocks.{0}.fn"),
    "rezero": (lambda: Stack(ReZero), "blocks.{0}.scale"),
    "two-factors": (lambda: Stack(TwoFactors), "blocks.{0}.scale"),
    "hooked": (Hooked, "blocks.{0}.attn"),
    "gated-options-not-in-use": (
        lambda: Stack(lambda: PreNormBlock(OptionalAttention(), OptionalNetwork(), UnitNorm)),
        "blocks.{0}.attn",
    ),
    "layer-scale": (lambda: Stack(ScaledBlock, positions=True), "blocks.{0}.ls1"),
    "layer-scale-post": (lambda: Stack(lambda: ScaledBlock(post=True), positions=True), "blocks.{0}.ls1"),
    "layer-scale-in-place": (lambda: Stack(lambda: ScaledBlock(inplace=True), positions=True), "blocks.{0}.ls1"),
    "layer-scale-parameters": (lambda: Stack(BareScales, positions=True), "blocks.{0}.attn"),
    "affine-norms": (lambda: Stack(AffineBlock, positions=True), "blocks.{0}.ls1"),
    "layer-scale-in-lists": (ScaledPairs, "attentions.{0}"),
    "norms-without-parameters": (Unweighted, "blocks.{0}.attention"),
    "norm-modules-without-parameters": (lambda: Unweighted(modules=True), "blocks.{0}.attention"),
    "gated-heads": (lambda: Unweighted(gate=True), "blocks.{0}.attention"),
    "few-positions": (ShortGPT, "blocks.{0}.attn"),
    "layers-in-separate-lists": (Flat, "attentions.{0}"),
    "layers-as-pairs": (Pairs, "layers.{0}.0"),
    "pairs-in-place": (InPlacePairs, "layers.{0}.0"),
    "blocks-in-place": (lambda: Stack(InPlaceBlock, last=nn.LayerNorm(D)), "blocks.{0}.fn"),
    "layers-in-a-flat-list": (lambda: Pairs(flat=True, head=False), "layers.{1}"),
}
"""Models, and the module whose output is that of attention, for a layer n from 0 and 2n."""

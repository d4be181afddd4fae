"""A plain PyTorch training loop over the batches of chassis, for training.py and lora.py.

The batches are derived here from the rules that host/data documents, without shuffling: labels are shifted once, the last
token of a document has no target, positions restart in each piece of a document and attention ends there, padding is not
attended to. The loss is the sum of cross entropies over the trained tokens of all micro-batches, divided by their number.
The auxiliary loss of experts is that of each micro-batch times its number of trained tokens.
"""

import itertools

import numpy as np
import torch
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

MICRO, STEPS, WARMUP, DECAY = 2, 10, 3, 0.1


def documents(seed, vocab, lengths, count):
    """Rows of a tokens file: some with labels, of which a random part is masked."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        ids = rng.integers(0, vocab, rng.integers(*lengths)).tolist()
        row = {"input_ids": ids}
        if number % 3 != 0:
            masked = rng.random(len(ids)) < rng.uniform(0.1, 0.9)
            row["labels"] = [-100 if hide else id for hide, id in zip(masked, ids)]
        rows.append(row)
    return rows


def rows_of(rows, case):
    """Endless (input_ids, labels, positions, document_ids), each of seq_len."""
    def blank():
        return np.repeat(np.array([[0], [-100], [0], [-1]]), case.seq_len, axis=1)

    row, column, piece = blank(), 0, 0
    for document in itertools.cycle(rows):
        ids = np.array(document["input_ids"])
        labels = np.array(document.get("labels", document["input_ids"]))
        targets = np.append(labels[1:], -100)
        begin = 0
        while begin < len(ids):
            length = min(case.seq_len - column, len(ids) - begin)
            span = slice(column, column + length)
            row[0, span], row[1, span] = ids[begin:begin + length], targets[begin:begin + length]
            row[2, span], row[3, span] = np.arange(length), piece
            begin, column, piece = begin + length, column + length, piece + 1
            if column == case.seq_len or case.packing == "none":
                yield row
                row, column, piece = blank(), 0, 0


def attention_mask(document_ids, dtype, config):
    """Causal inside each document, and inside the window, or the chunk of the document, of layers that have one; added to the
    scores."""
    T = document_ids.shape[1]
    visible = (document_ids[:, :, None] == document_ids[:, None, :]) & torch.ones(T, T, dtype=torch.bool).tril()

    def mask(window, chunk=None):
        seen = visible if window is None else visible & torch.ones(T, T, dtype=torch.bool).triu(1 - window)
        if chunk is not None:
            first = (document_ids[:, :, None] == document_ids[:, None, :]).int().argmax(-1)
            number = (torch.arange(T) - first) // chunk
            seen = seen & (number[:, :, None] == number[:, None, :])
        return torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)[:, None]

    window = getattr(config, "sliding_window", None)
    if getattr(config, "layer_types", None) is None:
        return mask(window)
    chunk = getattr(config, "attention_chunk_size", None)
    return {"full_attention": mask(None), "sliding_attention": mask(window), "chunked_attention": mask(None, chunk)}


def learning_rate(case, step):
    """Step k of a warm-up of n runs at lr·k/n; then half a cosine, down to a tenth."""
    if step <= WARMUP:
        return case.lr * step / WARMUP
    progress = (step - WARMUP) / (STEPS - WARMUP)
    return case.lr * (0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * progress)))


def logits_and_balance(model, config, ids, positions, document_ids, dtype):
    """Logits, and the auxiliary loss of one micro-batch as transformers computes it, without padding; 0 unless the
    configuration asks for it. Not by the whole model, whose loss takes no mask of documents."""
    mask = attention_mask(document_ids, dtype, config)
    if not getattr(config, "output_router_logits", False):
        return model(input_ids=ids, position_ids=positions, use_cache=False, attention_mask=mask).logits, 0.0
    out = model.model(input_ids=ids, position_ids=positions, use_cache=False, attention_mask=mask, output_router_logits=True)
    num_experts = getattr(config, "num_experts", None) or config.num_local_experts
    balance = load_balancing_loss_func(out.router_logits, num_experts, config.num_experts_per_tok, document_ids >= 0)
    return model.lm_head(out.last_hidden_state), config.router_aux_loss_coef * balance


def train(model, rows, case):
    """The plain loop over the parameters that require gradients. Returns losses, gradient norms and numbers of trained
    tokens."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = case.make_optimizer([{"params": [p for p in trained if p.dim() >= 2], "weight_decay": DECAY},
                                     {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0}])
    dtype = next(model.parameters()).dtype
    source, losses, norms, counts = rows_of(rows, case), [], [], []
    for step in range(1, STEPS + 1):
        batch = torch.from_numpy(np.stack([next(source) for _ in range(case.global_batch)]))
        count = (batch[:, 1] != -100).sum().item()
        loss_sum = 0.0
        for part in batch.split(MICRO):
            ids, labels, positions, document_ids = part.unbind(1)
            logits, balance = logits_and_balance(model, model.config, ids, positions, document_ids, dtype)
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100,
                                                     reduction="sum") + balance * (labels != -100).sum()
            (loss / count).backward()
            loss_sum += loss.item()
        norms.append(torch.nn.utils.clip_grad_norm_(trained, case.clip).item())
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(case, step)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss_sum / count)
        counts.append(count)
    return losses, norms, counts

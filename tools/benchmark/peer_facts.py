"""The line `FACTS {…}` by which a peer says what its training needs, in bytes; see measured.py."""
import json

import torch


def num_bytes(tensors) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def gradient_bytes(model) -> int:
    return num_bytes(p.grad for p in model.parameters() if p.grad is not None)


def print_facts(model, optimizer, **facts) -> None:
    states = (value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value))
    facts |= dict(parameters=num_bytes(model.parameters()), optimizer=num_bytes(states))
    print("FACTS " + json.dumps(facts), flush=True)

"""Numbers of parameters of published models, which tests/host/plan compares with plans: transformers counts the same."""

import json
import pathlib

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from suite import Suite

suite = Suite(__doc__)
folder = pathlib.Path(__file__).parents[1] / "golden" / "published"
for name, num_parameters in json.loads((folder / "num_parameters.json").read_text()).items():
    keys = json.loads((folder / f"{name}.json").read_text())
    keys = keys.get("text_config", keys)  # chassis trains the text model of a model of text and images
    if keys.get("attn_temperature_tuning") == 4:
        keys["attn_temperature_tuning"] = True  # transformers refuses the number, which early files have
    config = AutoConfig.for_model(**keys)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    suite.check(name, model.num_parameters() == num_parameters, f"{model.num_parameters()}, expected {num_parameters}")
suite.close()

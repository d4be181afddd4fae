# One line per plugin: its folder, plugins/<kind>/<name>.
set(CHASSIS_PLUGINS
  ops/cuda_rms_norm
  model/llama
  optimizer/adamw
  optimizer/sgd
  tokenizer/bytes
)

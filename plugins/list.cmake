# One line per plugin: its folder, plugins/<kind>/<name>.
set(CHASSIS_PLUGINS
  model/llama
  attention/naive
  attention/sdpa
  attention/interval
  ops/aten
  ops/fused
  ops/reference
  ops/cuda_rms_norm
  optimizer/adamw
  optimizer/sgd
  format/safetensors
  tokenizer/bytes
)

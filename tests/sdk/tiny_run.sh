# To be sourced. Writes $scratch/run.toml: five steps of a tiny Llama on a generated text.
i=0
while [ $i -lt 400 ]; do
  echo "line $i of a text that counts: $((i * i)), $((i * 7919 % 1009))"
  i=$((i + 1))
done > "$scratch/text.txt"
cat > "$scratch/run.toml" << END
schema_version = 1
[run]
max_steps = 5
seed = 3
device = "cpu"
resume = "never"
[model]
plugin = "llama"
[model.config]
vocab_size = 259
hidden_size = 48
intermediate_size = 64
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
[tokenizer]
plugin = "bytes"
[[data.train]]
path = "$scratch/text.txt"
[train]
seq_len = 64
micro_batch_size = 2
global_batch_size = 4
[optimizer]
plugin = "sgd"
lr = 0.1
[attention]
plugin = "sdpa"
[log]
every_steps = 1
END

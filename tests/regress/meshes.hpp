// Meshes of tensor, context and pipeline parallelism, alone and with strategies that divide the batch, and the kinds of
// model and run with which each is tried.
#pragma once

#include <string>
#include <vector>

#include "tests/regress/parallel_run.hpp"

namespace chassis::test {

struct Mesh {
  const char* name;
  int ranks;
  int same_rows;  // ranks that compute the same rows
  std::vector<std::string> toml;
  std::vector<std::string> axes = {};
  int layers = 3;

  Strategy strategy() const { return {name, toml, no_mesh, same_rows}; }
  // Schedules of several chunks need several micro-batches.
  std::vector<std::string> rows() const {
    const bool is_pipeline = std::string(name).find("pp") != std::string::npos;
    return is_pipeline ? std::vector<std::string>{"train.micro_batch_size=1"} : std::vector<std::string>{};
  }
};

inline std::vector<Mesh> meshes() {
  const std::string tensor = "plugin = \"tensor\"", sequence = "sequence_parallel = true",
                    context = "plugin = \"context\"", pipeline = "plugin = \"pipeline\"", next = "[[parallel]]",
                    fsdp2 = "plugin = \"fsdp2\"", zero3 = "plugin = \"zero\"";
  const auto order = [](const char* name) { return std::string("schedule = \"") + name + "\""; };
  return {{"tp", 2, 2, {tensor}},
          {"tp, sequence_parallel", 2, 2, {tensor, sequence}},
          {"cp, all_to_all", 2, 2, {context}},
          {"cp, gather", 2, 2, {context, "mode = \"gather\""}},
          {"cp, ring", 2, 2, {context, "mode = \"ring\""}},
          {"pp, gpipe", 2, 2, {pipeline, order("gpipe")}},
          {"pp, 1f1b", 2, 2, {pipeline}},
          {"pp, interleaved", 2, 2, {pipeline, order("interleaved")}},
          {"pp, zb_h1", 2, 2, {pipeline, order("zb_h1")}},
          {"pp, zbv", 2, 2, {pipeline, order("zbv")}},
          {"pp, interleaved", 4, 4, {pipeline, order("interleaved")}, {}, 7},
          {"tp × pp", 4, 4, {tensor, next, pipeline}, {"mesh.tp=2", "mesh.pp=2"}},
          {"tp × cp, ring", 4, 4, {tensor, next, context, "mode = \"ring\""}, {"mesh.tp=2", "mesh.cp=2"}},
          {"tp × fsdp2", 4, 2, {tensor, next, fsdp2}, {"mesh.tp=2"}},
          {"cp × fsdp2", 4, 2, {context, next, fsdp2}, {"mesh.cp=2"}},
          {"pp × fsdp2", 4, 2, {pipeline, next, fsdp2}, {"mesh.pp=2"}},
          {"pp × zero 3", 4, 2, {pipeline, order("zbv"), next, zero3}, {"mesh.pp=2"}},
          {"tp × pp × fsdp2", 8, 4, {tensor, sequence, next, pipeline, next, fsdp2}, {"mesh.tp=2", "mesh.pp=2"}}};
}

struct Kind {
  const char* name;
  unsigned variant;
  bool tied = false;
  int heads = 4, key_value_heads = 2, vocab = 96;
};
inline constexpr Kind kKinds[] = {{"plain", 0},
                                  {"tied", 0, true},
                                  {"one kv head", 0, false, 4, 1},
                                  {"uneven vocabulary", 0, true, 4, 2, 101},
                                  {"accumulation", 0b010000},
                                  {"recompute", 0b001000},
                                  {"frozen", 0b000100},
                                  {"bf16", 0b000001}};

inline std::string model_of(const Kind& kind, int layers) {
  return "plugin = \"llama\"\nconfig = { vocab_size = " + std::to_string(kind.vocab) +
         ", hidden_size = 48, intermediate_size = 96, num_hidden_layers = " + std::to_string(layers) +
         ", num_attention_heads = " + std::to_string(kind.heads) +
         ", num_key_value_heads = " + std::to_string(kind.key_value_heads) +
         ", attention_bias = true, initializer_range = 0.1, tie_word_embeddings = " + (kind.tied ? "true" : "false") +
         " }\n";
}

}  // namespace chassis::test

// The branches of experts: PEFT's names for their parameters, and their places in its files.
//
// The program has a linear of all experts of a layer as one weight [experts, out, in], and its branch as lora_A
// [experts, r, in] and lora_B [experts, out, r]. PEFT has two forms of files. In the fused one (target_parameters),
// gate and up are one parameter, gate_up_proj, with one A; A is [experts·r, in], expert e has rows e·r to (e+1)·r - 1;
// B is [out, r·experts], expert e has columns e, e + experts, e + 2·experts, …. The other form (targets), that of
// transformers 4, has a branch for each linear of each expert.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "chassis/adapter.hpp"

namespace lora {

struct ExpertLinear {
  std::string module;    // in the program: "model.layers.3.mlp.experts.gate_proj"
  std::string in_files;  // of expert 0: "model.layers.3.block_sparse_moe.experts.0.w1"
  int64_t num_experts = 0, out = 0, in = 0;
  int64_t rank = 0;
  double scale = 0;
  bool is_fused = false;
};

// "gate_proj" of "model.layers.3.mlp.gate_proj".
std::string_view last_part(std::string_view name);

// transformers' name for the parameter of a linear: "….experts.gate_up_proj" for gate_proj and up_proj.
std::string fused_parameter(std::string_view module);
// The number of linears that it joins, and the index of this one.
int num_fused(std::string_view module);
int index_in_fused(std::string_view module);

// "model.layers.3.mlp.experts.7.w1" for the name of expert 0; empty if files do not name single experts.
std::string of_expert(std::string_view in_files, int64_t expert);
// A regular expression for the names of all experts.
std::string of_any_expert(std::string_view in_files);

// A name of three parts, "mlp.experts.gate_up_proj", as target_parameters have it.
std::string short_parameter(std::string_view parameter);

// The side of A in PEFT's fused files. kSwapped: A belongs to the outputs, because PEFT takes Llama 4's
// parameters [experts, in, out] for [experts, out, in].
enum class Orientation { kPlain, kSwapped };
// That which PEFT 0.19.1 and later give a model, by its config.json.
Orientation peft_orientation(std::string_view model_config_json);
// True if a version (of adapter_config.json) is 0.19.1 or later. Older ones gave other models Llama 4's orientation.
bool is_settled_version(std::string_view peft_version);

// A fused parameter of one layer.
struct FusedBranch {
  std::string parameter;  // "model.layers.3.mlp.experts.gate_up_proj"
  std::string tensors;    // "model.layers.3.mlp.experts.base_layer": before ".lora_A.weight"
  std::vector<ExpertLinear> linears;

  int64_t in() const { return linears.front().in; }
  int64_t out() const;
};
// The fused parameters of linears, in their order. Of two in one layer PEFT wraps gate_up_proj first, as base_layer of
// the other.
std::vector<FusedBranch> fused_branches(std::span<const ExpertLinear> linears);

// The orientation in files that are read. Throws INVALID_ARGUMENT if it is ambiguous: in and out are equal, and the
// version is not settled.
Orientation orientation_in(std::span<const chassis::AdapterTensor> in_files, const FusedBranch& branch,
                           Orientation of_model, std::string_view peft_version);
std::vector<chassis::AdapterPart> places(const FusedBranch& branch, Orientation orientation);
// In the form of transformers 4.
std::vector<chassis::AdapterPart> places(const ExpertLinear& linear);

}  // namespace lora

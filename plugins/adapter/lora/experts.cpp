// Names and places, as in PEFT 0.21 (ParamWrapper) and transformers 5.
#include "experts.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>

#include "chassis/guard.hpp"

namespace lora {

using namespace chassis;

namespace {

constexpr std::string_view kFirstExpert = ".experts.0.";
constexpr std::array<std::string_view, 2> kGateUp = {"gate_proj", "up_proj"};

std::string_view without_last(std::string_view name) {
  const size_t dot = name.rfind('.');
  return dot == name.npos ? "" : name.substr(0, dot);
}

std::string text(std::string_view a, std::string_view b) { return std::string(a) + std::string(b); }

std::string with_expert(std::string_view in_files, std::string_view expert) {
  const size_t at = in_files.find(kFirstExpert);
  if (at == in_files.npos) return "";
  const size_t digit = at + kFirstExpert.size() - 2;
  return text(in_files.substr(0, digit), expert) + std::string(in_files.substr(digit + 1));
}

}  // namespace

std::string_view last_part(std::string_view name) { return name.substr(name.rfind('.') + 1); }

std::string fused_parameter(std::string_view module) {
  return index_in_fused(module) < 0 ? std::string(module) : text(without_last(module), ".gate_up_proj");
}

int num_fused(std::string_view module) { return index_in_fused(module) < 0 ? 1 : static_cast<int>(kGateUp.size()); }

int index_in_fused(std::string_view module) {
  const auto found = std::ranges::find(kGateUp, last_part(module));
  return found == kGateUp.end() ? -1 : static_cast<int>(found - kGateUp.begin());
}

std::string of_expert(std::string_view in_files, int64_t expert) {
  return with_expert(in_files, std::to_string(expert));
}

std::string of_any_expert(std::string_view in_files) { return with_expert(in_files, "[0-9]+"); }

std::string short_parameter(std::string_view parameter) {
  size_t at = parameter.size();
  for (int i = 0; i < 3 && at != parameter.npos && at > 0; ++i) at = parameter.rfind('.', at - 1);
  return std::string(at == parameter.npos ? parameter : parameter.substr(at + 1));
}

Orientation peft_orientation(std::string_view model_config_json) {
  const auto config = nlohmann::json::parse(model_config_json, nullptr, false);
  const auto type = config.is_object() ? config.value("model_type", nlohmann::json()) : nlohmann::json();
  return type.is_string() && type.get<std::string>().starts_with("llama4") ? Orientation::kSwapped
                                                                           : Orientation::kPlain;
}

bool is_settled_version(std::string_view peft_version) {
  constexpr std::array<int64_t, 3> kSettled = {0, 19, 1};
  std::array<int64_t, 3> version = {};
  const char* at = peft_version.data();
  const char* const end = at + peft_version.size();
  for (size_t i = 0; i < version.size(); ++i) {
    const auto [next, error] = std::from_chars(at, end, version[i]);
    if (error != std::errc()) return false;
    at = next;
    if (i + 1 < version.size() && (at == end || *at++ != '.')) return false;
  }
  return version >= kSettled;
}

int64_t FusedBranch::out() const {
  int64_t sum = 0;
  for (const ExpertLinear& linear : linears) sum += linear.out;
  return sum;
}

std::vector<FusedBranch> fused_branches(std::span<const ExpertLinear> linears) {
  std::vector<FusedBranch> branches;
  for (const ExpertLinear& linear : linears) {
    if (!linear.is_fused) continue;
    const std::string parameter = fused_parameter(linear.module);
    auto known = std::ranges::find(branches, parameter, &FusedBranch::parameter);
    if (known == branches.end()) {
      branches.push_back({parameter, std::string(without_last(parameter)), {}});
      known = branches.end() - 1;
    }
    known->linears.push_back(linear);
  }
  for (FusedBranch& branch : branches)
    if (num_fused(branch.linears.front().module) > 1 && std::ranges::any_of(branches, [&](const FusedBranch& other) {
          return &other != &branch && without_last(other.parameter) == without_last(branch.parameter);
        }))
      branch.tensors += ".base_layer";
  return branches;
}

Orientation orientation_in(std::span<const AdapterTensor> in_files, const FusedBranch& branch, Orientation of_model,
                           std::string_view peft_version) {
  const std::string name = branch.tensors + ".lora_A.weight";
  const auto found = std::ranges::find(in_files, std::string_view(name), &AdapterTensor::name);
  if (found == in_files.end() || found->sizes.size() != 2) return of_model;
  if (branch.in() == branch.out()) {
    if (is_settled_version(peft_version)) return of_model;
    fail_invalid(name, " may be that of the inputs or of the outputs of '", branch.parameter, "', which has ",
                 branch.in(), " of both: PEFT before 0.19.1 exchanged them, and ",
                 peft_version.empty() ? "adapter_config.json names no peft_version"
                                      : "peft_version is \"" + std::string(peft_version) + "\"",
                 "; load and save the adapter with PEFT 0.19.1 or later");
  }
  if (found->sizes[1] == branch.in()) return Orientation::kPlain;
  if (found->sizes[1] == branch.out()) return Orientation::kSwapped;
  return of_model;
}

std::vector<AdapterPart> places(const FusedBranch& branch, Orientation orientation) {
  const bool swapped = orientation == Orientation::kSwapped;
  const ExpertLinear& first = branch.linears.front();
  const int64_t experts = first.num_experts, rank = first.rank, in = branch.in(), out = branch.out();
  const std::string a = branch.tensors + ".lora_A.weight", b = branch.tensors + ".lora_B.weight";
  std::vector<AdapterPart> parts;
  // A's tensor has rows for each expert, B's has a column of each expert for each rank.
  const std::string down = first.module + ".lora_A.weight";
  for (int64_t e = 0; !swapped && e < experts; ++e)
    parts.push_back({down, {e, 0, 0}, {e + 1, rank, in}, a, {experts * rank, in}, {e * rank, 0}, {1, 2}});
  for (int64_t j = 0; swapped && j < rank; ++j)
    parts.push_back({down, {0, j, 0}, {experts, j + 1, in}, b, {in, rank * experts}, {0, j * experts}, {2, 0}});
  int64_t at = 0;
  for (const ExpertLinear& linear : branch.linears) {
    const std::string up = linear.module + ".lora_B.weight";
    for (int64_t j = 0; !swapped && j < rank; ++j)
      parts.push_back(
          {up, {0, 0, j}, {experts, linear.out, j + 1}, b, {out, rank * experts}, {at, j * experts}, {1, 0}});
    for (int64_t e = 0; swapped && e < experts; ++e)
      parts.push_back({up, {e, 0, 0}, {e + 1, linear.out, rank}, a, {experts * rank, out}, {e * rank, at}, {2, 1}});
    at += linear.out;
  }
  return parts;
}

std::vector<AdapterPart> places(const ExpertLinear& linear) {
  std::vector<AdapterPart> parts;
  for (int64_t e = 0; e < linear.num_experts; ++e) {
    const std::string expert = of_expert(linear.in_files, e);
    parts.push_back({linear.module + ".lora_A.weight",
                     {e, 0, 0},
                     {e + 1, linear.rank, linear.in},
                     expert + ".lora_A.weight",
                     {linear.rank, linear.in},
                     {0, 0},
                     {1, 2}});
    parts.push_back({linear.module + ".lora_B.weight",
                     {e, 0, 0},
                     {e + 1, linear.out, linear.rank},
                     expert + ".lora_B.weight",
                     {linear.out, linear.rank},
                     {0, 0},
                     {1, 2}});
  }
  return parts;
}

}  // namespace lora

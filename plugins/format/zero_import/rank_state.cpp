// Reads one rank's optimizer file: masters, states, step and loss scale.
#include "rank_state.hpp"

#include <algorithm>
#include <cstring>

#include "chassis/tensor.h"

namespace zero_import {
namespace {

constexpr size_t kMaxStates = 1'000;  // per group

std::optional<double> step_of(const Source& source, const TorchFile& file, const Value& value) {
  if (value.kind == Kind::kInt) return static_cast<double>(value.integer);
  if (value.kind == Kind::kFloat) return value.real;
  if (value.kind != Kind::kTensor) return std::nullopt;
  const Piece piece = piece_of(file, 0, value, "step");
  if (piece.num_elements != 1) return std::nullopt;
  if (piece.dtype == CHASSIS_DTYPE_F32) {
    float number = 0;
    source.read(piece.file, piece.offset, sizeof number, &number);
    return number;
  }
  if (piece.dtype != CHASSIS_DTYPE_I64) return std::nullopt;
  int64_t number = 0;
  source.read(piece.file, piece.offset, sizeof number, &number);
  return static_cast<double>(number);
}

// The states of group `index`; null if there are none.
const Value* group_state(const Pickle& pickle, const Value& by_group, size_t index) {
  if (by_group.kind == Kind::kList) {  // an elastic checkpoint
    const bool is_there = index < by_group.items.size() && pickle.at(by_group.items[index]).kind == Kind::kDict;
    return is_there ? &pickle.at(by_group.items[index]) : nullptr;
  }
  for (size_t i = 0; i + 1 < by_group.items.size(); i += 2) {
    const Value& key = pickle.at(by_group.items[i]);
    const Value& state = pickle.at(by_group.items[i + 1]);
    if (key.kind == Kind::kInt && key.integer == static_cast<int64_t>(index) && state.kind == Kind::kDict)
      return &state;
  }
  return nullptr;
}

void read_states(const Source& source, const TorchFile& file, uint32_t rank, size_t num_ranks, const Value& optimizer,
                 RankState& out) {
  const Pickle& pickle = file.pickle();
  const Value* base = pickle.find(optimizer, out.stage == 3 ? "optimizer_state_dict" : "base_optimizer_state");
  const Value* by_group = base != nullptr && base->kind == Kind::kDict ? pickle.find(*base, "state") : base;
  if (by_group == nullptr || (by_group->kind != Kind::kDict && by_group->kind != Kind::kList)) return;
  for (size_t group = 0; group < out.masters.size(); ++group) {
    const Value* state = group_state(pickle, *by_group, group);
    if (state == nullptr) return out.states.clear();
    if (state->items.size() / 2 > kMaxStates)
      throw Defect("a group has more than " + std::to_string(kMaxStates) + " states");
    for (size_t i = 0; i + 1 < state->items.size(); i += 2) {
      const Value &key = pickle.at(state->items[i]), &value = pickle.at(state->items[i + 1]);
      if (key.kind != Kind::kText) continue;
      if (key.text == "step") out.step = step_of(source, file, value);
      if (value.kind != Kind::kTensor) continue;
      // Masters are saved without the padding at the end of their group, states with it.
      const uint64_t wanted = out.masters[group].num_elements, found = pickle.tensor(value).num_elements();
      if (found < wanted || found - wanted >= 2 * num_ranks) continue;
      std::vector<Piece>& pieces = out.states[key.text];
      if (pieces.size() != group) continue;
      pieces.push_back(piece_of(file, rank, value, shown(key.text)));
      pieces.back().num_elements = wanted;
    }
  }
  std::erase_if(out.states, [&](const auto& entry) { return entry.second.size() != out.masters.size(); });
}

std::optional<double> dynamic_loss_scale(const Pickle& pickle, const Value& optimizer) {
  const Value* scaler = pickle.find(optimizer, "loss_scaler");
  if (scaler == nullptr || scaler->kind != Kind::kRecord || !scaler->text.ends_with(".DynamicLossScaler") ||
      scaler->items.empty() || pickle.at(scaler->items.back()).kind != Kind::kDict)
    return std::nullopt;
  const Value* scale = pickle.find(pickle.at(scaler->items.back()), "cur_scale");
  if (scale == nullptr) return std::nullopt;
  return scale->kind == Kind::kFloat ? scale->real : static_cast<double>(scale->integer);
}

}  // namespace

RankState read_rank(const Source& source, uint32_t file_index, uint32_t rank, size_t num_ranks) {
  const TorchFile file(source, file_index);
  const Pickle& pickle = file.pickle();
  try {
    const Value& optimizer = pickle.get(file.root(), "optimizer_state_dict", Kind::kDict);
    RankState out;
    out.stage = pickle.get(optimizer, "zero_stage", Kind::kInt).integer;
    if (out.stage < 1 || out.stage > 3) throw Defect("ZeRO stage " + std::to_string(out.stage) + " is not known");
    const Value* count = pickle.find(optimizer, "partition_count");
    int64_t partitions = 0;
    if (count != nullptr && count->kind == Kind::kInt) partitions = count->integer;
    if (count != nullptr && count->kind == Kind::kList)
      for (const ValueId item : count->items) partitions = std::max(partitions, pickle.at(item).integer);
    if (partitions != static_cast<int64_t>(num_ranks))
      throw Defect("the run had " + std::to_string(partitions) + " ranks, but there are files for " +
                   std::to_string(num_ranks));
    const Value& groups =
        pickle.get(optimizer, out.stage == 3 ? "fp32_flat_groups" : "single_partition_of_fp32_groups", Kind::kList);
    if (groups.items.empty() || groups.items.size() > kMaxGroups)
      throw Defect("there are " + std::to_string(groups.items.size()) + " flat groups");
    for (const ValueId group : groups.items)
      out.masters.push_back(piece_of(file, rank, pickle.at(group), "a flat group"));
    read_states(source, file, rank, num_ranks, optimizer, out);
    out.dynamic_loss_scale = dynamic_loss_scale(pickle, optimizer);
    return out;
  } catch (const Defect& defect) {
    if (std::strncmp(defect.what(), file.path().c_str(), file.path().size()) == 0) throw;
    file.fail(defect.what());
  }
}

}  // namespace zero_import

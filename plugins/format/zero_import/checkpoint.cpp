// Finds the tensors in the flat vectors of all ranks, stage by stage.
#include "checkpoint.hpp"

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <set>

#include "rank_state.hpp"
#include "step_files.hpp"

namespace zero_import {
namespace {

// A pickle can refer to one value many times, so the expanded number of parameters is limited.
constexpr size_t kMaxParameters = 1'000'000;

std::vector<int64_t> shape_of(const Pickle& pickle, const Value& size, const std::string& name) {
  if (size.kind != Kind::kTuple || size.items.size() > 64)
    throw Defect("the shape of " + shown(name) + " is not a torch.Size");
  std::vector<int64_t> shape;
  uint64_t product = 8;  // bytes of an element
  for (const ValueId item : size.items) {
    const Value& number = pickle.at(item);
    if (number.kind != Kind::kInt || number.integer < 0 ||
        __builtin_mul_overflow(product, static_cast<uint64_t>(std::max<int64_t>(number.integer, 1)), &product) ||
        product > static_cast<uint64_t>(INT64_MAX))
      throw Defect("the shape of " + shown(name) + " has an item that is not a valid size");
    shape.push_back(number.integer);
  }
  return shape;
}

struct Parameter {
  std::string name;
  std::vector<int64_t> shape;
};

// Parses an OrderedDict of names and sizes.
std::vector<Parameter> parameters_of(const Pickle& pickle, const Value& dict) {
  if (dict.kind != Kind::kDict)
    throw Defect("shapes of parameters are " + std::string(kind_name(dict.kind)) + ", not a dict");
  std::vector<Parameter> out;
  if (dict.items.size() / 2 > kMaxParameters)
    throw Defect("there are more than " + std::to_string(kMaxParameters) + " parameters");
  for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
    const Value& name = pickle.at(dict.items[i]);
    if (name.kind != Kind::kText) throw Defect("a parameter's name is " + std::string(kind_name(name.kind)));
    out.push_back({name.text, shape_of(pickle, pickle.at(dict.items[i + 1]), name.text)});
  }
  return out;
}

class Checkpoint {
 public:
  Checkpoint(const Source& source, const Sink& sink) : source_(source), sink_(sink), files_(find_files(source)) {}

  void run() {
    for (uint32_t rank = 0; rank < num_ranks(); ++rank)
      ranks_.push_back(read_rank(source_, files_.optimizer[rank], rank, num_ranks()));
    for (uint32_t rank = 1; rank < num_ranks(); ++rank) expect_same(rank);
    const auto first = open_model(0);
    read_model(*first);
    emit([](const RankState& rank) -> const std::vector<Piece>& { return rank.masters; }, "");
    for (const auto& [key, pieces] : ranks_[0].states)
      emit([&key = key](const RankState& rank) -> const std::vector<Piece>& { return rank.states.at(key); }, "." + key);
    emit_frozen(*first);
    emit_untrained(*first);
    emit_metadata(*first);
  }

 private:
  using PiecesOf = std::function<const std::vector<Piece>&(const RankState&)>;

  size_t num_ranks() const { return files_.optimizer.size(); }
  int64_t stage() const { return ranks_[0].stage; }
  const std::string& path_of(uint32_t rank) const { return source_.files[files_.optimizer[rank]].path; }

  void expect_same(uint32_t rank) const {
    const RankState &a = ranks_[0], &b = ranks_[rank];
    bool same = a.stage == b.stage && a.masters.size() == b.masters.size() && a.states.size() == b.states.size() &&
                a.step == b.step;
    for (const auto& [key, pieces] : a.states) same = same && b.states.contains(key);
    for (size_t group = 0; same && a.stage == 3 && group < a.masters.size(); ++group)
      same = a.masters[group].num_elements == b.masters[group].num_elements;
    if (!same) throw Defect(path_of(rank) + " and " + path_of(0) + " are not of the same step and optimizer");
  }

  std::unique_ptr<TorchFile> open_model(uint32_t rank) const {
    char name[80];
    if (stage() == 3) {
      std::snprintf(name, sizeof name, "zero_pp_rank_%u_mp_rank_00%s", rank, kModelSuffix);
    } else {
      std::snprintf(name, sizeof name, "mp_rank_00%s", kModelSuffix);
    }
    const auto it = files_.others.find(name);
    if (it == files_.others.end()) throw Defect("the model's file '" + std::string(name) + "' is missing");
    return std::make_unique<TorchFile>(source_, it->second);
  }

  void read_model(const TorchFile& model) {
    const Pickle& pickle = model.pickle();
    try {
      const Value* shapes = pickle.find(model.root(), "param_shapes");
      if (shapes == nullptr) throw Defect("there is no 'param_shapes': it was not saved by a ZeRO optimizer");
      if (shapes->kind == Kind::kDict) add_group(parameters_of(pickle, *shapes));
      if (shapes->kind == Kind::kList)
        for (const ValueId group : shapes->items) add_group(parameters_of(pickle, pickle.at(group)));
      const Value* frozen = pickle.find(model.root(), "frozen_param_shapes");
      if (frozen != nullptr && frozen->kind == Kind::kDict) frozen_ = parameters_of(pickle, *frozen);
    } catch (const Defect& defect) {
      model.fail(defect.what());
    }
  }

  void add_group(std::vector<Parameter> parameters) {
    num_parameters_ += parameters.size();
    if (num_parameters_ > kMaxParameters || groups_.size() == kMaxGroups)
      throw Defect("there are more than " + std::to_string(kMaxParameters) + " parameters or " +
                   std::to_string(kMaxGroups) + " groups");
    groups_.push_back(std::move(parameters));
  }

  void emit(const PiecesOf& pieces_of, const std::string& suffix) const {
    stage() == 3 ? emit_parts(pieces_of, suffix) : emit_partitions(pieces_of, suffix);
  }

  // Stages 1 and 2: each group is one flat vector, partitioned over all ranks.
  void emit_partitions(const PiecesOf& pieces_of, const std::string& suffix) const {
    const std::vector<std::vector<uint64_t>> paddings = alignment_paddings();
    if (groups_.size() != ranks_[0].masters.size())
      throw Defect("the model has " + std::to_string(groups_.size()) + " groups of parameters, the optimizer " +
                   std::to_string(ranks_[0].masters.size()));
    for (size_t group = 0; group < groups_.size(); ++group) {
      Flat flat;
      for (const RankState& rank : ranks_) flat.add(pieces_of(rank)[group]);
      uint64_t at = 0;
      for (size_t i = 0; i < groups_[group].size(); ++i) {
        const Parameter& parameter = groups_[group][i];
        const uint64_t count = num_elements(parameter.shape);
        expect_room(parameter, at, count, flat.num_elements());
        if (count == 0) emit_empty(sink_, parameter.name + suffix, parameter.shape, pieces_of(ranks_[0])[group]);
        flat.emit(sink_, parameter.name + suffix, parameter.shape, 0, at, count);
        at += count;
        if (!paddings.empty()) at += paddings.at(group).at(i);
      }
      // Padding extends the group to a multiple of twice the number of ranks; how much of it was saved varies.
      const uint64_t unit = 2 * num_ranks(), left = flat.num_elements() - std::min(at, flat.num_elements());
      if (at > flat.num_elements() + unit || left >= unit)
        throw Defect("group " + std::to_string(group) + " has " + std::to_string(flat.num_elements()) +
                     " elements on all ranks, its parameters take " + std::to_string(at));
    }
  }

  // Stage 3: each parameter is partitioned separately.
  void emit_parts(const PiecesOf& pieces_of, const std::string& suffix) const {
    std::vector<Flat> flats(num_ranks());
    for (size_t rank = 0; rank < num_ranks(); ++rank)
      for (const Piece& piece : pieces_of(ranks_[rank])) flats[rank].add(piece);
    uint64_t at = 0;
    for (const std::vector<Parameter>& group : groups_) {
      for (const Parameter& parameter : group) {
        const uint64_t count = num_elements(parameter.shape), part = (count + num_ranks() - 1) / num_ranks();
        expect_room(parameter, at, part, flats[0].num_elements());
        if (count == 0) emit_empty(sink_, parameter.name + suffix, parameter.shape, pieces_of(ranks_[0]).at(0));
        for (size_t rank = 0; rank < num_ranks(); ++rank) {
          const uint64_t first = std::min(count, rank * part), end = std::min(count, first + part);
          flats[rank].emit(sink_, parameter.name + suffix, parameter.shape, first, at, end - first);
        }
        at += part;
      }
    }
    if (at != flats[0].num_elements())
      throw Defect("each rank has " + std::to_string(flats[0].num_elements()) +
                   " elements, its parts of the parameters take " + std::to_string(at));
  }

  static void expect_room(const Parameter& parameter, uint64_t at, uint64_t count, uint64_t available) {
    if (at > available || count > available - at)
      throw Defect("parameter " + shown(parameter.name) + " would be elements " + std::to_string(at) + " to " +
                   std::to_string(at + count) + " of " + std::to_string(available));
  }

  // Padding elements after each parameter, by group; empty if this version of DeepSpeed has none.
  std::vector<std::vector<uint64_t>> alignment_paddings() const {
    std::vector<std::vector<uint64_t>> out;
    const TorchFile file(source_, files_.optimizer[0]);
    const Pickle& pickle = file.pickle();
    const Value* paddings =
        pickle.find(pickle.get(file.root(), "optimizer_state_dict", Kind::kDict), "param_alignment_paddings");
    if (paddings == nullptr || paddings->kind != Kind::kList) return out;
    for (const ValueId group : paddings->items) {
      auto& numbers = out.emplace_back();
      for (const ValueId item : pickle.at(group).items)
        numbers.push_back(static_cast<uint64_t>(std::max<int64_t>(pickle.at(item).integer, 0)));
      if (numbers.size() != (out.size() <= groups_.size() ? groups_[out.size() - 1].size() : 0))
        file.fail("'param_alignment_paddings' does not fit the parameters");
    }
    if (out.size() != groups_.size()) file.fail("'param_alignment_paddings' does not fit the groups");
    return out;
  }

  // Frozen parameters: whole in stages 1 and 2, one part per rank in stage 3.
  void emit_frozen(const TorchFile& first) const {
    if (frozen_.empty()) return;
    std::map<std::string, Flat> flats;
    for (uint32_t rank = 0; rank < (stage() == 3 ? num_ranks() : 1); ++rank) {
      const auto opened = rank == 0 ? nullptr : open_model(rank);
      const TorchFile& model = opened ? *opened : first;
      const Value& fragments = model.pickle().get(model.root(), "frozen_param_fragments", Kind::kDict);
      for (size_t i = 0; i + 1 < fragments.items.size(); i += 2)
        flats[model.pickle().at(fragments.items[i]).text].add(
            piece_of(model, rank, model.pickle().at(fragments.items[i + 1]), "a frozen parameter"));
    }
    for (const Parameter& parameter : frozen_) {
      const auto it = flats.find(parameter.name);
      if (it == flats.end()) first.fail("the frozen parameter " + shown(parameter.name) + " is missing");
      expect_room(parameter, 0, num_elements(parameter.shape), it->second.num_elements());
      it->second.emit(sink_, parameter.name, parameter.shape, 0, 0, num_elements(parameter.shape));
    }
  }

  // Emits tensors of the model's file that the optimizer does not have: buffers, and frozen parameters that are not
  // listed. In stage 3 this file holds parameters too, as tensors without elements.
  void emit_untrained(const TorchFile& first) const {
    const Pickle& pickle = first.pickle();
    const Value* module = pickle.find(first.root(), "module");
    if (module == nullptr || module->kind != Kind::kDict) return;
    std::set<std::string_view> known;
    for (const auto& group : groups_)
      for (const Parameter& parameter : group) known.insert(parameter.name);
    for (const Parameter& parameter : frozen_) known.insert(parameter.name);
    if (const Value* shared = pickle.find(first.root(), "shared_params");
        shared != nullptr && shared->kind == Kind::kDict)
      for (size_t i = 0; i + 1 < shared->items.size(); i += 2) known.insert(pickle.at(shared->items[i]).text);
    for (size_t i = 0; i + 1 < module->items.size(); i += 2) {
      const std::string& name = pickle.at(module->items[i]).text;
      const Value& tensor = pickle.at(module->items[i + 1]);
      if (tensor.kind != Kind::kTensor || known.contains(name)) continue;
      Flat flat;
      flat.add(piece_of(first, 0, tensor, shown(name)));
      flat.emit(sink_, name, pickle.tensor(tensor).shape, 0, 0, flat.num_elements());
    }
  }

  void emit_metadata(const TorchFile& first) const {
    const Pickle& pickle = first.pickle();
    sink_.metadata("zero_stage", std::to_string(stage()));
    sink_.metadata("num_ranks", std::to_string(num_ranks()));
    if (const Value* version = pickle.find(first.root(), "ds_version");
        version != nullptr && version->kind == Kind::kText)
      sink_.metadata("deepspeed", version->text);
    if (const Value* steps = pickle.find(first.root(), "global_steps"); steps != nullptr && steps->kind == Kind::kInt)
      sink_.metadata("step", std::to_string(steps->integer));
    if (ranks_[0].step && *ranks_[0].step >= 0 && *ranks_[0].step < 9e15)
      sink_.metadata("optimizer_step", std::to_string(static_cast<int64_t>(*ranks_[0].step)));
    for (const auto& [key, pieces] : ranks_[0].states) sink_.metadata("optimizer_state", key);
    if (ranks_[0].states.empty())
      sink_.warning("optimizer states", "the optimizer's states have an unknown form and are left out");
    if (const auto scale = ranks_[0].dynamic_loss_scale) {
      char text[120];
      std::snprintf(text, sizeof text, "the dynamic loss scale, %g, is left out: runs here do not scale the loss",
                    *scale);
      sink_.warning("loss scale", text);
    }
    const Value* shared = pickle.find(first.root(), "shared_params");
    if (shared == nullptr || shared->kind != Kind::kDict) return;
    for (size_t i = 0; i + 1 < shared->items.size(); i += 2)
      sink_.metadata("tied " + pickle.at(shared->items[i]).text, pickle.at(shared->items[i + 1]).text);
  }

  const Source& source_;
  const Sink& sink_;
  const StepFiles files_;
  std::vector<RankState> ranks_;
  std::vector<std::vector<Parameter>> groups_;
  size_t num_parameters_ = 0;
  std::vector<Parameter> frozen_;
};

}  // namespace

void scan(const Source& source, const Sink& sink) { Checkpoint(source, sink).run(); }

}  // namespace zero_import

// Maps the tensors of a directory to parameters.
#include "host/save/model_directory.hpp"

#include <algorithm>

#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/save/base_reference.hpp"
#include "host/save/head_names.hpp"
#include "host/save/quantized_load.hpp"

namespace chassis {
namespace {

bool is_head(const Parameter& p) { return p.name == kScoreWeight; }

// Optimizer states are named "<parameter>.<role>". Any other name is a parameter, of this model or another.
bool is_state(const ParameterTable& parameters, const std::string& name) {
  return !parameters.find(name) && parameters.find(name.substr(0, name.rfind('.')));
}

// Whether the tensors of a directory have the names of a run's parameters.
bool has_parameter_names(const CheckpointReader& reader) {
  const CheckpointManifest* manifest = reader.manifest();
  return manifest && json_string_or(manifest->about, "names", "", reader.path()) == kParameterNames;
}

}  // namespace

DiskForms forms_of_files(const DiskLayout& mapping, const CheckpointReader& reader) {
  std::set<std::string> names;
  if (has_parameter_names(reader)) {
    for (const Json& name : reader.manifest()->about.value(kSpelling, Json::array()))
      if (name.is_string()) names.insert(name.get<std::string>());
  } else {
    for (const DiskTensor& tensor : reader.tensors()) names.insert(mapping.name_of(tensor.name));
  }
  return mapping.forms_in([&](const std::string& name) { return names.contains(name); });
}

ModelDirectory::ModelDirectory(const Session& session, const CheckpointReader& reader, bool is_adapter)
    : parameters_(session.parameters()) {
  if (is_adapter)
    read_adapter(session, reader);
  else
    read_model(session, reader);
}

void ModelDirectory::read_model(const Session& session, const CheckpointReader& reader) {
  const bool ours = has_parameter_names(reader);
  if (!ours) mapping_ = &session.disk_mapping();
  forms_ = forms_of_files(session.disk_mapping(), reader);
  const std::map<std::string, std::string> tied = tied_slots(session.program());
  for (const DiskTensor& tensor : reader.tensors()) {
    if (leaves_out(tensor.name)) {
      ignored_.insert(tensor.name);
      left_out_.push_back(tensor.name);
      continue;
    }
    const std::string name = ours ? tensor.name : mapping_->name_of(tensor.name);
    if (name.empty() || (ours ? is_state(parameters_, name) : is_literal(tensor, name, reader))) {
      ignored_.insert(tensor.name);
      if (const auto owner = tied.find(tensor.name); owner != tied.end())
        tied_copies_.emplace_back(&tensor, parameters_.find(owner->second)->descriptor);
    } else if (name == tensor.name || !in_file_.contains(name)) {
      in_file_[name] = tensor.name;
    }
    if (const Parameter* p = ours ? parameters_.find(name) : nullptr; p && p->added) content_ = Content::kAll;
  }
  if (!ours)
    if (const std::string head = read_head(reader); !head.empty()) {
      const std::string& known = mapping_->parts(kScoreWeight).front().disk_name;
      if (!in_file_.contains(known)) in_file_[known] = head;
    }
  refuse_components(session, reader, [&](const Parameter& p) { return parts(p.descriptor).front().disk_name; });
  if (!ours || !base_reference(reader.manifest()->about, reader.path())) return;
  content_ = Content::kTrained;
  // A session that only reads weights has no [freeze], which says what was trained.
  if (session.config().use() == ConfigUse::kWeights && session.adapter() == nullptr)
    for (const auto& [name, in_file] : in_file_) trained_.insert(name);
}

bool ModelDirectory::leaves_out(const std::string& in_file) const {
  if (mapping_ != nullptr) return mapping_->leaves_out(in_file);
  return is_left_out(parameters_.left_out(), in_file);
}

std::string ModelDirectory::read_head(const CheckpointReader& reader) {
  std::string found;
  for (const HeadNames& names : kHeadNames) {
    const DiskTensor* const weight = reader.find(std::string(names.weight));
    if (weight == nullptr) continue;
    const DiskTensor* const bias = reader.find(std::string(names.bias));
    if (parameters_.find(kScoreWeight) == nullptr) {
      if (names.weight == kScoreWeight) continue;  // loading lists it as unexpected
      counted_warning("heads of scores that are left out",
                      reader.path() + " has a head of scores, " + weight->name + ", which this run does not compute");
      for (const DiskTensor* const tensor : {weight, bias})
        if (tensor != nullptr) ignored_.insert(tensor->name);
      continue;
    }
    if (!found.empty()) continue;  // loading lists a second one as unexpected
    found = weight->name;
    if (bias == nullptr) continue;
    biases_.push_back(bias);
    ignored_.insert(bias->name);
  }
  return found;
}

void ModelDirectory::refuse_biases(CheckpointReader& reader) const {
  if (biases_.empty()) return;
  CheckpointReader::Values values(reader);
  for (const DiskTensor* const bias : biases_) {
    const std::vector<StoredPart> where = {StoredPart::whole(bias->name, bias->global_shape)};
    std::vector<float> all(static_cast<size_t>(numel(bias->global_shape)));
    values.read(where, Box::whole(bias->global_shape), all);
    const auto other = std::ranges::find_if(all, [](float x) { return x != 0; });
    if (other == all.end()) continue;
    Error error = storage_error("'" + reader.path() + "' has a head of scores with a bias, " + bias->name + " = " +
                                std::to_string(*other) +
                                ": heads have none here, as in the files of ...ForSequenceClassification");
    if (all.size() == 1)
      error.hint(
          "a bias adds the same to all scores and changes no comparison of them: set it to 0 in the file to use "
          "the head without it");
    throw error;
  }
}

void ModelDirectory::read_adapter(const Session& session, const CheckpointReader& reader) {
  content_ = Content::kAdapter;
  const AdapterNames names(session, reader.tensors());
  for (const auto& p : parameters_.all()) {
    if (!is_kept(*p)) continue;
    std::vector<StoredPart>& parts = adapter_[p->name] = names.parts(*p);
    if (p->added) continue;
    if (is_head(*p)) {
      const std::string head = read_head(reader);
      if (head.empty()) {
        counted_warning("adapters without a head of scores",
                        reader.path() + " has no " + parts.front().disk_name +
                            ": that of the model is used, or a new one if the model has none");
        adapter_.erase(p->name);
      } else {
        parts = {StoredPart::whole(head, p->descriptor.global_shape)};
      }
      continue;
    }
    // Older versions of PEFT do not write base_layer.
    const auto& plain = session.disk_mapping().parts(p->name);
    for (size_t i = 0; i < parts.size(); ++i)
      if (reader.find(parts[i].disk_name) == nullptr && reader.find(plain[i].disk_name) != nullptr) parts[i] = plain[i];
    // Since it wraps modules, PEFT (0.18) writes none of the biases that "lora_only" trains.
    const bool is_absent =
        std::ranges::none_of(parts, [&](const StoredPart& part) { return reader.find(part.disk_name) != nullptr; });
    if (p->role != CHASSIS_ROLE_BIAS || !is_absent) continue;
    counted_warning("biases that the adapter's file lacks",
                    reader.path() + " has no " + parts.front().disk_name + ": the model's own is used");
    adapter_.erase(p->name);
  }
  // In addition to a branch on the head or the embeddings, PEFT writes the base weight, which belongs to the model.
  constexpr std::string_view kBase = ".base_layer.";
  const std::map<std::string, std::string> tied = tied_slots(session.program());
  for (const DiskTensor& tensor : reader.tensors()) {
    const size_t at = tensor.name.rfind(kBase);
    if (at == std::string::npos) continue;
    const std::string plain = tensor.name.substr(0, at + 1) + tensor.name.substr(at + kBase.size());
    const auto owner = tied.find(plain);
    const Parameter* const p =
        parameters_.find(owner == tied.end() ? session.disk_mapping().name_of(plain) : owner->second);
    if (p == nullptr || is_kept(*p) || p->descriptor.global_shape != tensor.global_shape) continue;
    ignored_.insert(tensor.name);
    counted_warning("base weights in the file of an adapter",
                    reader.path() + " has a copy of " + plain + ", which is read from the model instead");
  }
  // PEFT writes a tied module under both names.
  for (const auto& [slot, owner] : tied) {
    const DiskTensor* const copy = reader.find(slot);
    const auto& where = adapter_.find(owner);
    if (copy == nullptr || where == adapter_.end() || reader.find(where->second.front().disk_name) == nullptr) continue;
    ignored_.insert(slot);
    tied_copies_.emplace_back(copy, parameters_.find(owner)->descriptor);
  }
}

bool ModelDirectory::has(const Parameter& p) const {
  if (content_ == Content::kModel) return !p.added;
  if (content_ == Content::kAdapter) return adapter_.contains(p.name);
  if (!trained_.empty()) return trained_.contains(p.name);
  return content_ == Content::kAll || is_kept(p);
}

std::vector<StoredPart> ModelDirectory::parts(const Descriptor& parameter) const {
  if (content_ == Content::kAdapter) return adapter_.at(parameter.fqn);
  if (mapping_ == nullptr) return {StoredPart::whole(parameter.fqn, parameter.global_shape)};
  std::vector<StoredPart> parts = mapping_->parts(parameter.fqn, forms_);
  for (StoredPart& part : parts)
    if (const auto found = in_file_.find(part.disk_name); found != in_file_.end()) part.disk_name = found->second;
  return parts;
}

LoadTensor ModelDirectory::load_tensor(Descriptor parameter) const {
  std::vector<StoredPart> where = parts(parameter);
  return {std::move(parameter), "", std::move(where)};
}

void ModelDirectory::compare_tied_copies(CheckpointReader& reader, bool with_values) const {
  for (const auto& [copy, owner] : tied_copies_) {
    const std::vector<StoredPart> where = parts(owner);
    const auto in_files = [&](const StoredPart& part) { return reader.find(part.disk_name) != nullptr; };
    if (!std::all_of(where.begin(), where.end(), in_files)) continue;  // missing ones are reported with all others
    const std::vector<StoredPart> copied = {StoredPart::whole(copy->name, copy->global_shape)};
    // Both tensors in the files have another shape than in the model: loading reports both shapes.
    const bool both_differ = where.size() == 1 && copy->global_shape != owner.global_shape &&
                             reader.find(where[0].disk_name)->global_shape == copy->global_shape;
    if (both_differ) continue;
    const bool same =
        copy->global_shape == owner.global_shape && is_float(copy->dtype) &&
        (!with_values || reader.checksum(copy->global_shape, copied) == reader.checksum(owner.global_shape, where));
    if (!same)
      throw storage_error("'" + reader.path() + "' does not fit the model: " + copy->name + " " +
                          text(copy->global_shape) + " differs from " + owner.fqn + " " + text(owner.global_shape) +
                          ", to which the model ties it")
          .hint("if they are two weights, set tie_word_embeddings to false in config.json; else remove " + copy->name +
                " from the files");
  }
}

std::function<bool(const std::string& name)> ModelDirectory::skip() const {
  return [this](const std::string& name) { return ignored_.contains(name); };
}

bool ModelDirectory::is_literal(const DiskTensor& tensor, const std::string& name,
                                const CheckpointReader& reader) const {
  const auto literal = mapping_->literals().find(name);
  if (literal == mapping_->literals().end()) return false;
  if (literal->second.shape != tensor.global_shape)
    throw storage_error("'" + reader.path() + "' does not fit the model: " + tensor.name + " is " +
                        text(tensor.global_shape) + " on disk, " + text(literal->second.shape) + " in the model");
  return true;
}

}  // namespace chassis

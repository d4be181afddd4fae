// Lists the tensors of checkpoints and exports, and opens the formats that read and write them.
#include "host/save/saved_tensors.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_set>

#include "host/base/file.hpp"
#include "host/base/log.hpp"
#include "host/base/printable.hpp"
#include "host/save/classifier_config.hpp"
#include "host/save/component_load.hpp"
#include "host/save/head_names.hpp"
#include "host/save/model_directory.hpp"
#include "host/save/quantized_load.hpp"
#include "host/save/quantized_weights.hpp"
#include "host/state/float_dtype.hpp"
#include "host/state/layout.hpp"
#include "host/state/owners.hpp"

namespace chassis {
namespace {

// The format of model directories if [export] names the format of adapters.
constexpr char kModelFormat[] = "safetensors";

Dtype export_dtype(Session& session) {
  const Settings& settings = session.settings();
  const Setting<DtypeChoice>& setting = settings.exports.dtype;
  if (setting != DtypeChoice::kAuto) return float_dtype(to_text(*setting), setting.key());
  if (exports_adapter(session)) return Dtype::f32;
  return float_dtype(session.model().stored_dtype(session.settings().model),
                     "the model's dtype, which export.dtype = \"auto\" follows,");
}

// The format that the manifest of a directory names; without a manifest, that of [export].
std::string format_of(Session& session, const std::string& path) {
  SourceDirectory directory(path);
  const std::string& exported = session.settings().exports.plugin;
  if (directory.find_file(kManifestName) < 0) return exported == kAdapterFormat ? kModelFormat : exported;
  return CheckpointManifest::read(directory).format;
}

std::vector<StoredPart> under_name(std::vector<StoredPart> parts, const std::string& name) {
  CHASSIS_CHECK(parts.size() == 1, name);
  parts.front().disk_name = name;
  return parts;
}

}  // namespace

std::unique_ptr<Instance> slot_format(Session& session, const PluginTable& slot) {
  return session.plugins().create(slot.key(), "format", slot.plugin);
}

uint64_t bucket_bytes(const Session& session) {
  return static_cast<uint64_t>(*session.settings().checkpoint.bucket_mib) << 20;
}

std::unique_ptr<CheckpointReader> open_directory(Session& session, const std::string& path) {
  PluginRegistry& registry = session.plugins().registry();
  const std::string expected = format_of(session, path);
  // Rationale: a format from outside the program's own folder reads files only if the configuration or a manifest
  // names it.
  std::vector<std::string> formats = {expected};
  std::string foreign;
  for (const std::string& id : registry.index().ids("format")) {
    if (id == expected || id == kAdapterFormat) continue;
    if (registry.index().is_installed_with_program(registry.index().at("format", id).path))
      formats.push_back(id);
    else
      foreign += (foreign.empty() ? "" : ", ") + printable(id);
  }
  std::optional<OtherFormat> first;
  for (const std::string& id : formats) {
    const bool has_slot = id == session.settings().exports.plugin;
    const auto instance = has_slot ? slot_format(session, session.settings().exports) : registry.open("format", id);
    const FormatPlugin format(*instance);
    if (format.is_write_only() || format.isolated()) continue;
    try {
      return std::make_unique<CheckpointReader>(path, format);
    } catch (const OtherFormat& other) {
      if (!first) first = other;
    }
  }
  const Settings::Model& model = session.settings().model;
  if (first && model.path.is_set() && path == *model.path && model.init == ModelInit::kPretrained &&
      first->hint_text().empty())
    first->hint("without weights, a run starts from random ones with model.init = \"random\"");
  if (first && path_kind(path + "/" + kAdapterConfigName) != PathKind::kAbsent)
    first->hint("it holds an adapter: set adapter.path to it, and model.path to its base model");
  if (first && !foreign.empty())
    first->hint((first->hint_text().empty() ? "" : first->hint_text() + "; ") +
                "formats of other folders read only what is named: set export.plugin to one of " + foreign);
  if (first) throw OtherFormat(*first);
  throw plugin_error("no installed format reads '" + path + "'");
}

std::unique_ptr<CheckpointReader> open_adapter(Session& session, const std::string& path) {
  const auto instance = session.plugins().registry().open("format", kAdapterFormat);
  return std::make_unique<CheckpointReader>(path, FormatPlugin(*instance));
}

bool saves_states(const Session& session) {
  return session.settings().checkpoint.contents != CheckpointContents::kModelOnly;
}

Which saved_parameters(const Session& session) {
  return session.settings().checkpoint.contents == CheckpointContents::kTrained ? Which::kKept : Which::kAll;
}

bool refers_to_base(const Session& session) {
  if (saved_parameters(session) != Which::kKept) return false;
  return std::ranges::any_of(session.parameters().all(), [](const auto& p) { return !is_kept(*p); });
}

std::vector<Descriptor> training_tensors(Session& session, bool with_states, Which which) {
  std::vector<Descriptor> tensors;
  for (const auto& p : session.parameters().all())
    if (which == Which::kAll || is_kept(*p)) tensors.push_back(p->descriptor);
  std::vector<Descriptor> scalars;
  if (with_states)
    for (const OptimizerState& state : session.optimizer().states())
      (state.shape == CHASSIS_STATE_SCALAR ? scalars : tensors).push_back(state.descriptor);
  balance_owners(tensors, session.mesh());
  // A rank that holds no element of a parameter does not step its scalars either; the first rank always holds some.
  for (Descriptor& scalar : scalars) {
    scalar.owner = OwnerRule::kFirst;
    tensors.push_back(std::move(scalar));
  }
  return tensors;
}

LocalTensors local_tensors(Session& session, bool with_states) {
  struct Held {
    Tensor tensor;
    bool is_of_blocks = false;  // its dims become those of the descriptor
  };
  auto by_name = std::make_shared<std::map<std::string, Held>>();
  for (const auto& p : session.parameters().all()) {
    if (!p->is_quantized()) (*by_name)[p->name] = {p->stored()};
    for (size_t i = 0; i < p->components.size(); ++i)
      (*by_name)[p->name + p->storage->components()[i].suffix] = {p->components[i].shard};
  }
  if (with_states)
    for (const OptimizerState& state : session.optimizer().states())
      (*by_name)[state.descriptor.fqn] = {state.tensor, state.shape == CHASSIS_STATE_PER_BLOCK};
  return [by_name, mesh = session.mesh()](const Descriptor& tensor, int rank) {
    const Held& held = by_name->at(tensor.fqn);
    return held.is_of_blocks ? as_described(held.tensor, tensor, mesh, rank) : held.tensor;
  };
}

LocalTensors exported_tensors(Session& session) {
  return [&session, parameters = local_tensors(session, false), tied = tied_slots(session.program())](
             const Descriptor& tensor, int rank) {
    const auto& literals = session.disk_mapping().literals();
    const auto literal = literals.find(tensor.fqn);
    if (const auto owner = tied.find(tensor.fqn); owner != tied.end())
      return parameters(session.parameters().find(owner->second)->descriptor, rank);
    if (literal == literals.end()) return parameters(tensor, rank);
    const auto& [dtype, shape, bytes] = literal->second;
    return Tensor::borrow(const_cast<std::byte*>(bytes.data()), {shape.begin(), shape.end()}, dtype);
  };
}

SavePlan plan_checkpoint(Session& session, const FormatPlugin& format, const SavePlanOptions& options) {
  if (format.is_write_only()) {
    throw config_error(session.settings().checkpoint.plugin, "checkpoint.plugin is '" + format.name() +
                                                                 "', which cannot be read: no run could resume from it")
        .hint("use it for [export]");
  }
  std::vector<SaveTensor> tensors;
  for (const Descriptor& descriptor : training_tensors(session, saves_states(session), saved_parameters(session)))
    for (Descriptor& stored : stored_tensors(session.parameters(), descriptor))
      tensors.push_back(SaveTensor::plain(std::move(stored)));
  return plan_save(std::move(tensors), session.mesh(), format, options);
}

SavePlan plan_export(Session& session, const FormatPlugin& format, QuantizedWeights* quantized,
                     const SavePlanOptions& options) {
  std::vector<SaveTensor> tensors;
  const DiskLayout& mapping = session.disk_mapping();
  if (exports_adapter(session)) {
    const AdapterNames names(session);
    const std::map<std::string, std::string> tied = tied_slots(session.program());
    for (Descriptor& descriptor : training_tensors(session, false, Which::kKept)) {
      std::vector<StoredPart> parts = names.parts(*session.parameters().find(descriptor.fqn));
      // PEFT requires a tied module under both names.
      for (const auto& [slot, owner] : tied) {
        if (owner != descriptor.fqn) continue;
        Descriptor copy = descriptor;
        copy.fqn = slot;
        tensors.push_back({std::move(copy), slot, export_dtype(session), under_name(parts, slot)});
      }
      std::string name = parts.front().disk_name;
      tensors.push_back({std::move(descriptor), std::move(name), export_dtype(session), std::move(parts)});
    }
    return plan_save(std::move(tensors), session.mesh(), format, options);
  }
  for (Descriptor& descriptor : training_tensors(session, false)) {
    const Parameter& p = *session.parameters().find(descriptor.fqn);
    if (p.added) continue;
    const std::vector<StoredPart>& parts = mapping.parts(descriptor.fqn, session.export_forms());
    if (p.is_quantized() && quantized != nullptr) {
      std::vector<std::string> names = slice_names(p, parts);
      if (names.empty()) names = slice_names(p, mapping.parts(descriptor.fqn));
      if (names.empty())
        throw storage_error("'" + p.name + "' is quantized, and the model's files join or transpose it as " +
                            parts.front().disk_name + ": only separate weights can be written this way")
            .hint("leave it out of the quantization, or quantize while loading, with [quant]");
      std::ranges::move(quantized->saved_tensors(p, names, export_dtype(session)), std::back_inserter(tensors));
      continue;
    }
    descriptor.components.clear();
    tensors.push_back({std::move(descriptor), parts.front().disk_name, export_dtype(session), parts});
  }
  for (const auto& [name, literal] : mapping.literals())
    tensors.push_back(SaveTensor::plain(Descriptor::plain(name, literal.dtype, literal.shape)));
  return plan_save(std::move(tensors), session.mesh(), format, options);
}

namespace {

// The model as config.json of a checkpoint or an export describes it.
Json model_config(Session& session, bool quantized, const ScoreHead* head) {
  Json config = parse_json(session.model().plugin().config(), "the model's config");
  if (!config.is_object())
    throw plugin_error("model '" + session.model().member() + "' gives a config that is not a JSON object");
  if (quantized)
    config["quantization_config"] =
        parse_json(session.quant()->plugin().config(), "quantization_config", ExitCode::kPlugin);
  if (head != nullptr) make_classifier(config, *head, session.model().architectures());
  return config;
}

}  // namespace

std::string checkpoint_config(Session& session, bool quantized, const ScoreHead* head) {
  const bool is_own = !quantized && head == nullptr;
  return is_own ? session.model().plugin().config() : model_config(session, quantized, head).dump(2) + "\n";
}

std::string export_config(Session& session, bool quantized, const ScoreHead* head) {
  Json config = model_config(session, quantized, head);
  const std::string_view name = float_dtype_name(export_dtype(session));
  for (const char* key : {"dtype", "torch_dtype"})
    if (config.contains(key) || std::string_view(key) == "torch_dtype") config[key] = name;
  return config.dump(2) + "\n";
}

void compare_with_model(Session& session, const SavePlan& plan) {
  const Settings::Model& model = session.settings().model;
  const bool was_quantized = session.quant() != nullptr && session.quant()->is_stored();
  if (!model.path.is_set() || model.init != ModelInit::kPretrained || exports_adapter(session) || was_quantized) return;
  std::vector<std::string> differences = compare_with_directory(plan, *open_directory(session, model.path));
  // A run with a head of scores writes it in place of the head that it leaves out.
  const auto is_head = [&](const std::string& difference) {
    const std::string name = difference.substr(0, difference.find(' '));
    return num_scores(session.program()) > 0 &&
           (session.disk_mapping().leaves_out(name) || std::ranges::any_of(kHeadNames, [&](const HeadNames& names) {
              return name == names.weight || name == names.bias;
            }));
  };
  for (const std::string& difference : differences)
    if (!is_head(difference)) log::counted_warning("export differs from the model it starts from", difference);
}

bool can_check_saving(Session& session) {
  constexpr size_t kMaxShards = 1 << 20;
  std::unordered_set<std::string> divisions;  // tensors that are divided alike are proven in the time of one
  for (const auto& p : session.parameters().all()) divisions.insert(Layout(p->descriptor, session.mesh()).key());
  for (const OptimizerState& state : session.optimizer().states())
    divisions.insert(Layout(state.descriptor, session.mesh()).key());
  return divisions.size() * static_cast<size_t>(session.mesh().world_size()) <= kMaxShards;
}

uint64_t check_saving(Session& session) {
  const Settings& settings = session.settings();
  const auto checkpoint = slot_format(session, settings.checkpoint), exported = slot_format(session, settings.exports);
  const SavePlanOptions options = {.rank = session.rank()};
  return std::max(plan_checkpoint(session, FormatPlugin(*checkpoint), options).largest_header(),
                  plan_export(session, FormatPlugin(*exported), nullptr, options).largest_header());
}

uint64_t staged_bytes(Session& session) {
  if (!can_check_saving(session)) {
    uint64_t bytes = 0;
    const auto add = [&](const Descriptor& d) {
      bytes += static_cast<uint64_t>(Layout(d, session.mesh()).local_bytes(session.rank()));
    };
    for (const auto& p : session.parameters().all())
      if (saved_parameters(session) == Which::kAll || is_kept(*p)) add(p->descriptor);
    if (saves_states(session))
      for (const OptimizerState& state : session.optimizer().states()) add(state.descriptor);
    return bytes;
  }
  const auto checkpoint = slot_format(session, session.settings().checkpoint);
  return plan_checkpoint(session, FormatPlugin(*checkpoint), {.rank = session.rank()}).bytes_of_rank(session.rank());
}

std::vector<std::string> spelling_of_model(Session& session) {
  const Settings::Model& model = session.settings().model;
  const DiskLayout& mapping = session.disk_mapping();
  if (!model.path.is_set() || model.init != ModelInit::kPretrained || !mapping.has_choice()) return {};
  return mapping.names_of(forms_of_files(mapping, *open_directory(session, model.path)));
}

void export_as_spelled(Session& session, const std::vector<std::string>& spelling) {
  session.export_as(session.disk_mapping().forms_in(
      [&](const std::string& name) { return std::ranges::find(spelling, name) != spelling.end(); }));
}

void compare_with_model(Session& session) {
  const Settings& settings = session.settings();
  if (!settings.model.path.is_set()) return;
  export_as_spelled(session, spelling_of_model(session));
  const auto exported = slot_format(session, settings.exports);
  const FormatPlugin format(*exported);
  compare_with_model(session, plan_export(session, format, nullptr, {.rank = session.rank()}));
}

}  // namespace chassis

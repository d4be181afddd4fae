// Reads the model's config, hands it to the model plugin, and reports the keys that the plugin ignores.
#include "host/session/run_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "host/base/file.hpp"
#include "host/base/hash.hpp"
#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/base/log_capture.hpp"
#include "host/base/printable.hpp"
#include "host/compile/objective_pass.hpp"
#include "host/compile/quant_plugin.hpp"
#include "host/config/paths.hpp"
#include "host/config/plugin_name.hpp"
#include "host/config/suggest.hpp"
#include "host/graph/op_table.hpp"
#include "host/session/fields.hpp"

namespace chassis {
namespace {

constexpr uint64_t kMaxModelConfigBytes = uint64_t{16} << 20;

// Adds the dotted paths of all keys in `table`.
void add_keys(const Json& table, const std::string& prefix, std::vector<std::string>& keys) {
  for (const auto& [name, value] : table.items()) {
    keys.push_back(prefix + name);
    if (value.is_object()) add_keys(value, prefix + name + ".", keys);
  }
}

// `warning` is the model's about a key of model.config that it ignores; `complete` is the config that the model would
// write.
void add_ignored_key(Config& config, const std::string& complete, const log::CapturedWarnings::Warning& warning) {
  std::string finding = warning.text;
  // The key is not ignored here: the run stops.
  if (constexpr std::string_view kEnd = " and ignored"; finding.ends_with(kEnd))
    finding.resize(finding.size() - kEnd.size());
  std::vector<std::string> written, known;
  const Setting<TomlValue>& described = config.settings().model.config;
  add_keys(to_json(*described), "", written);
  add_keys(parse_json(complete, "the model's config", ExitCode::kPlugin), "", known);
  for (const std::string& key : written) {
    if (!warning.key.ends_with("config key " + key)) continue;
    std::erase(known, key);  // the model may copy unknown keys
    const std::string near = nearest(key, known);
    return config.add_problem(described.key_of(key),
                              "model.config: " + finding + (near.empty() ? "" : " (did you mean '" + near + "'?)"));
  }
  config.add_problem(described.key(), "model.config: " + finding);
}

// The position of a key of model.config that the model refuses: the first from the command line, else the first.
SourcePosition position_of_refused_key(const Config& config, const Error& refusal) {
  const Setting<TomlValue>& described = config.settings().model.config;
  const TomlValue* refused = nullptr;
  for (const auto& [fact, key] : refusal.facts()) {
    const TomlValue* value = fact == CHASSIS_FACT_CONFIG_KEY ? find_value(*described, key) : nullptr;
    if (value == nullptr) continue;
    const bool is_typed = value->origin.kind == Origin::Kind::kOverride;
    if (is_typed || refused == nullptr) refused = value;
    if (is_typed) break;
  }
  if (refused == nullptr) return described.where();
  return refused->is_table() || refused->is_array() ? refused->key_where : refused->origin.where;
}

// A model is the same however its weights are stored; the plugin of [quant] reads this key.
std::string without_quantization(const std::string& text) {
  Json config = parse_json(text, "the model's config.json");
  if (config.is_object()) config.erase("quantization_config");
  return config.dump();
}

// Throws if the weights are quantized and there is no [quant].
void refuse_quantized(const Config& config, const std::string& text, RunPlugins& plugins) {
  if (config.settings().quant.plugin.is_set()) return;
  const Json json = parse_json(text, "the model's config.json");
  const auto found = json.is_object() ? json.find("quantization_config") : json.end();
  if (found == json.end() || !found->is_object()) return;
  const Setting<std::string>& path = config.settings().model.path;
  std::string what = printable(json_string_or(*found, "quant_method", "no quant_method", path.key()));
  for (const char* key : {"load_in_4bit", "load_in_8bit"})
    if (found->contains(key) && found->at(key) == true) what += std::string(", ") + key;
  std::string readers, refusals;
  for (const std::string& id : plugins.registry().index().ids("quant")) {
    try {
      const auto instance = plugins.registry().open("quant", id);
      QuantPlugin(*instance).configure(found->dump());
      readers += (readers.empty() ? "" : " or ") + ("plugin = \"" + printable(id) + "\"");
    } catch (const Error& error) {
      refusals += "; " + printable(id) + ": " + error.message();
    }
  }
  throw config_error(path, *path + "/config.json: the weights are quantized (quantization_config: " + what +
                               "), and there is no [quant]")
      .hint(!readers.empty()   ? "add [quant] with " + readers
            : refusals.empty() ? "no plugin of kind quant is installed"
                               : "no installed plugin of kind quant reads them" + refusals);
}

// Warns about sizes that the user did not set: the default of num_hidden_layers, for one, gives a model of another
// size. A size that equals a given size with the same last word, such as key-value heads and heads, counts as derived
// from it.
void count_preset_sizes(const Json& written, const std::string& complete, const std::string& model) {
  std::string preset;
  const Json known = parse_json(complete, "the model's config", ExitCode::kPlugin);
  for (const auto& [name, value] : known.items()) {
    if (!value.is_number_integer() || written.contains(name) || !(name.starts_with("num_") || name.ends_with("_size")))
      continue;
    const std::string last_word = name.substr(name.rfind('_'));
    bool is_derived = false;
    for (const auto& [other, size] : written.items()) is_derived |= size == value && other.ends_with(last_word);
    if (!is_derived) preset += (preset.empty() ? "" : ", ") + name + " = " + value.dump();
  }
  if (!preset.empty())
    counted_warning("sizes of the model by default",
                    "model.config does not set these sizes, so model '" + model + "' uses its defaults: " + preset);
}

// The fault of an output of the last block that is computed in float32; empty if there is none, or no such output.
std::string result_fault(const Program& program, const BlockType& last, const char* name, size_t num_dims,
                         const char* wanted) {
  const auto found = last.outputs.find(name);
  if (found == last.outputs.end()) return "";
  const GraphValue& value = last.values[found->second];
  const std::string which =
      fmt::format("the output \"{}\" of block '{}' is the value '{}'", name, last.name, value.name);
  if (value.dims.size() != num_dims)
    return fmt::format("{} with the dims {}, expected {}", which, program.dims_text(value.dims), wanted);
  if (value.type != GraphValueType::kFloat32)
    return which +
           " in the precision of the run, expected float32: an op of the plugin's own declares output_dtype = " +
           "CHASSIS_DTYPE_F32";
  return "";
}

}  // namespace

ModelSource find_model(const Settings::Model& model, const PluginRegistry& registry) {
  ModelSource source;
  if (model.plugin.is_set()) source.member = model.plugin;
  if (!model.path.is_set()) {
    source.config_text = to_json(*model.config).dump();
    return source;
  }
  const std::string path = *model.path + "/config.json";
  bool is_there = false, is_link = false;
  try {
    is_there = path_kind(path) != PathKind::kAbsent;
    is_link = path_kind_nofollow(path) == PathKind::kLink;
    if (is_there) source.config_text = read_file(path, kMaxModelConfigBytes);
  } catch (const Error& cause) {
    throw config_error(model.path, "model.path: " + cause.message()).hint(cause.hint_text());
  }
  if (!is_there) {
    std::error_code ignored;
    const std::string hint = hub_hint(*model.path);
    throw config_error(model.path, "model.path: " + (is_link ? path + " is a link whose target does not exist"
                                                             : "there is no " + path))
        .hint(hint.empty() ? "give a folder as saved by transformers' save_pretrained"
                           : hint + "; a relative path starts at " + std::filesystem::current_path(ignored).string());
  }
  const Json json = parse_json(source.config_text, path);
  if (!json.is_object()) throw Error(ExitCode::kConfig, SourcePosition{path}, "is not a JSON object");
  if (!source.member.empty()) return source;
  const auto named = json.find("architectures");
  if (named == json.end() || !named->is_array() || named->empty() || !named->front().is_string())
    throw Error(ExitCode::kConfig, SourcePosition{path},
                "names no architecture: 'architectures' is " +
                    (named == json.end() ? "missing" : printable(named->dump())) + ", expected a list of names")
        .hint("set model.plugin");
  source.member = registry.model_for_architecture(named->front().get<std::string>()).id;
  return source;
}

std::string program_fault(const Program& recorded) {
  for (const BlockType& block : recorded.blocks)
    for (const ParameterSlot& slot : block.slots)
      if (!std::isfinite(slot.init_std) || slot.init_std < 0)
        return fmt::format("parameter '{}' of block '{}' has the init_std {}, expected a number that is not negative",
                           slot.name, block.name, slot.init_std);
  if (!recorded.last_block()) return "";
  const BlockType& last = *recorded.last_block();
  if (last.outputs.contains(kLossOutput))
    return fmt::format(
        "its last block '{0}' outputs \"{1}\", but the host adds the loss that a run minimises: delete the line "
        "b.output(\"{1}\", …) of block '{0}'; a loss of the model's own is output as \"{2}\"",
        last.name, kLossOutput, kAuxLossOutput);
  if (!last.outputs.contains(kLogitsOutput) && !last.outputs.contains(kScoresOutput))
    return fmt::format(
        "its last block '{}' has no output \"{}\" [B, T, vocab], which generation and the loss of tokens read, and no "
        "\"{}\" [B, T, labels]",
        last.name, kLogitsOutput, kScoresOutput);
  if (const std::string fault = result_fault(recorded, last, kAuxLossOutput, 0, "a scalar"); !fault.empty())
    return fault;
  return result_fault(recorded, last, kScoresOutput, 3, "[B, T, labels]");
}

RunModel::RunModel(Config& config, RunPlugins& plugins, ModelSource source)
    : source_(std::move(source)),
      instance_(plugins.create(config.settings().model.key(), "model", source_.member)),
      plugin_(*instance_) {
  const Settings::Model& model = config.settings().model;
  const auto check_answers = [&] {
    try {
      parse_json(plugin_.config(), "", ExitCode::kPlugin);
    } catch (const Error& e) {
      throw plugin_error(instance_->label() + ": config() returns a text that is not JSON: " + e.message());
    }
    if (const int64_t most = plugin_.max_positions(); most < 0)
      throw plugin_error(instance_->label() + ": max_positions() returns " + std::to_string(most) +
                         ", expected a number of positions, or 0 for none");
  };
  if (model.path.is_set()) {
    try {
      plugin_.configure(config.settings().quant.plugin.is_set() ? without_quantization(source_.config_text)
                                                                : source_.config_text);
    } catch (const Error& e) {
      refuse_quantized(config, source_.config_text, plugins);
      throw Error(e.code(), model.path.where(), *model.path + "/config.json: " + e.message()).hint(e.hint_text());
    }
    check_answers();
    return;
  }
  // A config.json has many keys that do not matter here. Each key of [model] config was written for this run, so one
  // that the model ignores is an error.
  {
    const log::CapturedWarnings ignored;
    try {
      plugin_.configure(source_.config_text);
    } catch (const Error& e) {
      if (e.code() != ExitCode::kConfig || !e.where().file.empty()) throw;
      throw Error(e.code(), position_of_refused_key(config, e), e.message()).hint(e.hint_text());
    }
    check_answers();
    for (const auto& warning : ignored.warnings()) add_ignored_key(config, plugin_.config(), warning);
  }
  count_preset_sizes(to_json(*model.config), plugin_.config(), source_.member);
}

Recording RunModel::recording(const Settings::Model& model, ConfigUse use) const {
  const auto check = [this, use](const Program& program) {
    if (use == ConfigUse::kWeights) return;  // runs nothing
    if (const std::string fault = program_fault(program); !fault.empty())
      throw plugin_error("model '" + source_.member + "': " + fault);
    check_fields(program);
  };
  return {[this](const chassis_builder_t* builder) { return plugin_.record(builder); }, model.source().where(),
          model.path.is_set() ? *model.path + "/config.json" : "", check};
}

std::string RunModel::stored_dtype(const Settings::Model& model) const {
  const std::string where = model.path.is_set() ? *model.path + "/config.json" : model.config.key();
  const Json json = parse_json(source_.config_text, where);
  return json_string_or(json, "dtype", json_string_or(json, "torch_dtype", "float32", where), where);
}

int64_t num_table_positions(const Program& program) {
  int64_t fewest = 0;
  for (const BlockType& block : program.blocks) {
    const auto field = block.fields.find("positions");
    if (field == block.fields.end()) continue;
    std::set<ValueId> positions = {field->second};  // and what the host's passes compute from them
    for (const Op& op : block.ops) {
      if (op.inputs.size() != 1 || !positions.contains(op.inputs.front())) continue;
      if (op.spec().placement == OpPlacement::kEmbedding) {
        const int64_t rows = program.global_shape(block.slots[op.params.front()]).front();
        fewest = fewest == 0 ? rows : std::min(fewest, rows);
      } else if (op.params.empty()) {
        for (const ValueId output : op.outputs)
          if (block.values[output].type == GraphValueType::kInt32) positions.insert(output);
      }
    }
  }
  return fewest;
}

namespace {

void count_positions_beyond(const RunModel& model, int64_t num_positions, const std::string& what) {
  if (const int64_t most = model.plugin().max_positions(); most > 0 && num_positions > most)
    counted_warning("positions beyond the model's",
                    what + " = " + std::to_string(num_positions) + ", but the weights of model '" + model.member() +
                        "' were made for " + std::to_string(most) +
                        " positions (max_position_embeddings); beyond them results get worse");
}

}  // namespace

void check_seq_len(const RunModel& model, const Program& program, const Setting<int64_t>& seq_len) {
  if (const int64_t rows = num_table_positions(program); rows > 0 && seq_len > rows)
    throw config_error(seq_len, seq_len.key() + " = " + std::to_string(*seq_len) + ", but model '" + model.member() +
                                    "' has a table of " + std::to_string(rows) + " positions and can compute no more")
        .hint("set " + seq_len.key() + " to " + std::to_string(rows) + " or less");
  count_positions_beyond(model, seq_len, seq_len.key());
}

int64_t check_answer_length(const RunModel& model, const Program& program, int64_t num_prompt_tokens,
                            int64_t max_new_tokens) {
  const std::string what = "tokens of the prompt + generate.max_new_tokens";
  const int64_t rows = num_table_positions(program);
  if (rows > 0 && num_prompt_tokens > rows)
    throw config_error("the prompt has " + std::to_string(num_prompt_tokens) + " tokens, but model '" + model.member() +
                       "' has a table of " + std::to_string(rows) + " positions and can compute no more")
        .hint("shorten the prompt");
  const int64_t most = rows > 0 ? rows - num_prompt_tokens + 1 : max_new_tokens;  // the last token is not an input
  if (max_new_tokens > most)
    counted_warning("answers cut at the end of the model's positions",
                    what + " = " + std::to_string(num_prompt_tokens + max_new_tokens) + ", but model '" +
                        model.member() + "' has a table of " + std::to_string(rows) +
                        " positions: an answer has at most " + std::to_string(most) + " tokens");
  else
    count_positions_beyond(model, num_prompt_tokens + max_new_tokens, what);
  return std::min(max_new_tokens, most);
}

std::string model_hash(const RunModel& model, const ParameterTable& parameters) {
  Json shapes = Json::object();
  for (const auto& p : parameters.all())
    shapes[p->name] = std::vector<int64_t>(p->descriptor.global_shape.begin(), p->descriptor.global_shape.end());
  return sha256_hex(std::string(without_version(model.member())) + "\n" + shapes.dump());
}

}  // namespace chassis

#include "host/session/session.hpp"

#include <algorithm>

#include "host/base/file.hpp"
#include "host/base/hash.hpp"
#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/base/log_capture.hpp"
#include "host/base/pattern.hpp"
#include "host/base/printable.hpp"
#include "host/config/plugin_name.hpp"
#include "host/config/suggest.hpp"
#include "host/data/tokenizer_files.hpp"
#include "host/launch/gpus.hpp"
#include "host/plugin/search.hpp"
#include "host/service/device.hpp"
#include "host/service/memory.hpp"
#include "host/service/threads.hpp"
#include "host/session/fields.hpp"
#include "host/session/slow_phase.hpp"
#include "host/state/float_dtype.hpp"

namespace chassis {
namespace {

constexpr uint64_t kMaxModelConfigBytes = uint64_t{16} << 20;

Dtype dtype_from_setting(const std::string& setting, Device device) {
  if (setting == "auto") return device.type == Device::Type::kCuda ? Dtype::bf16 : Dtype::f32;
  return float_dtype(setting, "precision.compute");
}

// What a run of that use cannot do without: its refusals come before anything is allocated.
std::vector<Purpose> purposes_of(ConfigUse use) {
  switch (use) {
    case ConfigUse::kTraining:
      return {Purpose::kTraining};
    case ConfigUse::kEvaluation:
      return {Purpose::kLoss};
    case ConfigUse::kGeneration:
      return {Purpose::kLogits};
    case ConfigUse::kWeights:
      break;
  }
  return {};
}

std::string text_of_list(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

// LibTorch alone would start a thread for every core on every rank.
void share_cores(const World& world) {
  const std::string chosen = omp_num_threads();
  if (chosen.empty()) return set_threads(world.num_cores());
  if (world.rank() == 0 && world.launch().source == "torchrun" && chosen == "1" && world.num_cores() > 1)
    log::info("torchrun sets OMP_NUM_THREADS=1 where it is not set; run.threads = {} uses all cores of a rank",
              world.num_cores());
}

// Each rank of a machine has a GPU of its own, unless the launcher shows it no other.
std::string device_of_rank(const std::string& setting, int local_rank) {
  if (local_rank == 0 || num_visible_gpus() < 2) return setting;
  if (setting != "cuda" && !(setting == "auto" && load_cuda().empty())) return setting;
  return "cuda:" + std::to_string(local_rank);
}

// Adds the dotted paths of all keys in `table`.
void add_keys(const Json& table, const std::string& prefix, std::vector<std::string>& keys) {
  for (const auto& [name, value] : table.items()) {
    keys.push_back(prefix + name);
    if (value.is_object()) add_keys(value, prefix + name + ".", keys);
  }
}

// `finding` is a model's sentence on what it ignores of model.config, with the key in quotes; `complete` is the config
// that it would write itself.
void add_ignored_key(Config& config, const std::string& complete, std::string finding) {
  // It is not ignored here: the run stops.
  if (constexpr std::string_view kEnd = " and ignored"; finding.ends_with(kEnd))
    finding.resize(finding.size() - kEnd.size());
  std::vector<std::string> written, known;
  add_keys(config.json("model.config"), "", written);
  add_keys(parse_json(complete, "the model's config", ExitCode::kPlugin), "", known);
  for (const std::string& key : written) {
    if (finding.find("'" + key + "'") == std::string::npos) continue;
    std::erase(known, key);  // it may be carried over
    const std::string near = nearest(key, known);
    return config.add_problem("model.config." + key,
                              "model.config: " + finding + (near.empty() ? "" : " (did you mean '" + near + "'?)"));
  }
  config.add_problem("model.config", "model.config: " + finding);
}

// Sizes of the model that nobody wrote down: a forgotten num_hidden_layers is a model of another size. One that equals
// a written size of its kind, as key-value heads equal the others, follows from it.
void count_preset_sizes(const Json& written, const std::string& complete, const std::string& model) {
  std::string preset;
  const Json known = parse_json(complete, "the model's config", ExitCode::kPlugin);
  for (const auto& [name, value] : known.items()) {
    if (!value.is_number_integer() || written.contains(name) || !(name.starts_with("num_") || name.ends_with("_size")))
      continue;
    const std::string last_word = name.substr(name.rfind('_'));
    bool follows = false;
    for (const auto& [other, size] : written.items()) follows |= size == value && other.ends_with(last_word);
    if (!follows) preset += (preset.empty() ? "" : ", ") + name + " = " + value.dump();
  }
  if (!preset.empty())
    counted_warning("sizes of the model by default",
                    "model.config leaves out what model '" + model + "' then takes from its defaults: " + preset);
}

}  // namespace

Session::Session(Config config, const SessionOptions& options) : config_(std::move(config)) {
  install_memory_allocator();
  if (options.world) world_ = options.world;
  const SlowPhase phase("recording the program and checking what each unit runs on");
  load_plugins(options);
  const MeshPlace place{*world_, options.world_size, options.rank};
  mesh_ = make_mesh(config_, *plugins_, place);
  choose_device(options);
  communicator_ = make_communicator(config_, *plugins_, mesh_, place, resolve_.device);
  build_program(options);
  if (config_.use() == ConfigUse::kTraining) {
    const std::string name = config_.get_string("optimizer.plugin");
    optimizer_ = std::make_unique<OptimizerDriver>(create("optimizer", "optimizer", name), parameters(),
                                                   config_.get_double("optimizer.weight_decay"));
  }
  resolve_parallel();
}

Session::~Session() = default;

void Session::load_plugins(const SessionOptions& options) {
  LoadPolicy policy = load_policy(config_);
  if (options.as_on && options.as_on->type == Device::Type::kCuda)
    policy.cuda = [device = *options.as_on] { return cuda_facts(device); };
  else if (!options.without_device && config_.get_string("run.device") != "cpu")
    policy.cuda = [this]() -> std::optional<CudaFacts> {
      if (!load_cuda().empty()) return std::nullopt;
      return cuda_facts(device_from(config_.get_string("run.device")));
    };
  // All that is wrong is found before anything is thrown; what is broken in the host itself ends at once.
  const auto collect = [&](const std::string& key, const SourcePosition& where, const auto& action) {
    try {
      action();
    } catch (const Error& error) {
      if (error.code() == ExitCode::kInternal) throw;
      const bool placed = !error.where().file.empty() || where.file.empty();
      config_.add_problem(key, placed ? error : Error(error.code(), where, error.message()).hint(error.hint_text()));
    }
  };
  collect("", {}, [&] {
    PluginIndex index(
        plugin_folders(options.plugin_path, config_.get_list("plugins.path"), config_.position("plugins.path")));
    plugins_.emplace(config_, metrics_, std::move(index), std::move(policy));
  });
  if (!plugins_) config_.throw_if_problems();
  // Of other models the configuration itself says what is missing.
  if (config_.has("model.path") || (config_.has("model.plugin") && config_.has("model.config")))
    collect("model.plugin", {}, [&] { choose_model(); });
  bool can_configure = false;
  for (const PluginSlot& slot : config_.plugin_slots()) {
    const std::string id = slot.kind == "model" ? model_member_ : slot.plugin;
    const bool is_auto = (slot.kind == "comm" || slot.kind == "ops") && id == "auto";
    if (id.empty() || is_auto) continue;
    const size_t before = config_.num_problems();
    collect(slot.key + ".plugin", slot.where,
            [&] { config_.check_plugin_options(slot.key, id, registry().option_specs(slot.kind, id)); });
    if (slot.kind == "model") can_configure = config_.num_problems() == before;
  }
  collect("kernels", {}, [&] { find_candidates(options); });
  if (can_configure) collect(config_.has("model.path") ? "model.path" : "model.config", {}, [&] { configure_model(); });
  config_.finish();
}

void Session::choose_model() {
  if (config_.has("model.plugin")) model_member_ = config_.get_string("model.plugin");
  if (!config_.has("model.path")) {
    model_config_text_ = config_.json("model.config").dump();
    return;
  }
  const std::string path = config_.get_string("model.path") + "/config.json";
  const SourcePosition where = config_.position("model.path");
  bool is_there = false, is_link = false;
  try {
    is_there = path_kind(path) != PathKind::kAbsent;
    is_link = link_kind(path) == PathKind::kLink;
    if (is_there) model_config_text_ = read_file(path, kMaxModelConfigBytes);
  } catch (const Error& cause) {
    throw Error(ExitCode::kConfig, where, "model.path: " + cause.message()).hint(cause.hint_text());
  }
  if (!is_there)
    throw Error(ExitCode::kConfig, where,
                "model.path: " + (is_link ? path + " is a link to what is not there" : "there is no " + path))
        .hint("give a folder as saved by transformers' save_pretrained");
  const Json json = parse_json(model_config_text_, path);
  if (!json.is_object()) throw Error(ExitCode::kConfig, SourcePosition{path}, "is not a JSON object");
  if (!model_member_.empty()) return;
  const auto named = json.find("architectures");
  if (named == json.end() || !named->is_array() || named->empty() || !named->front().is_string())
    throw Error(ExitCode::kConfig, SourcePosition{path},
                "names no architecture: 'architectures' is " +
                    (named == json.end() ? "missing" : printable(named->dump())) + ", expected a list of names")
        .hint("set model.plugin");
  model_member_ = registry().model_for_architecture(named->front().get<std::string>()).id;
}

// What a model ignores of a config.json, which holds much that changes nothing, is counted. Of model.config every key
// was written for this run, so what the model ignores there is a mistake.
void Session::configure_model() {
  model_instance_ = create("model", "model", model_member_);
  model_.emplace(*model_instance_);
  if (config_.has("model.path")) {
    try {
      return model_->configure(model_config_text_);
    } catch (const Error& e) {
      throw Error(e.code(), config_.position("model.path"),
                  config_.get_string("model.path") + "/config.json: " + e.message())
          .hint(e.hint_text());
    }
  }
  {
    const log::CapturedWarnings ignored;
    model_->configure(model_config_text_);
    for (const std::string& finding : ignored.texts()) add_ignored_key(config_, model_config(), finding);
  }
  count_preset_sizes(config_.json("model.config"), model_config(), model_member_);
}

std::unique_ptr<Instance> Session::create(const std::string& slot_key, const std::string& kind, const std::string& id) {
  return plugins_->create(slot_key, kind, id);
}

Device Session::device_from(const std::string& setting) const {
  try {
    return chassis::choose_device(setting);
  } catch (const Error& error) {
    throw Error(error.code(), config_.position("run.device"), error.message()).hint(error.hint_text());
  }
}

void Session::choose_device(const SessionOptions& options) {
  if (const int64_t threads = config_.get_int("run.threads"))
    set_threads(static_cast<int>(threads));
  else if (world_->size() > 1)
    share_cores(*world_);
  const std::string setting = device_of_rank(config_.get_string("run.device"), world_->launch().local_rank);
  const bool cuda_by_name = options.as_configured && setting.starts_with("cuda");
  if (options.as_on)
    resolve_.device = *options.as_on;
  else if (options.without_device)
    resolve_.device = cuda_by_name ? Device{Device::Type::kCuda, 0} : Device{};
  else
    resolve_.device = device_from(setting);
  resolve_.compute = dtype_from_setting(config_.get_string("precision.compute"), resolve_.device);
  if (resolve_.compute == Dtype::bf16 && !options.without_device && !has_fast_bf16(resolve_.device))
    counted_warning("slow bf16",
                    "bf16 matrix products are up to 8 times slower than fp32 on this processor, which has "
                    "neither AMX nor AVX512-BF16; precision.compute = \"fp32\" is faster");
  resolve_.batch = config_.get_int("train.micro_batch_size");
  resolve_.time = config_.get_int(config_.has("train.seq_len") ? "train.seq_len" : "generate.max_new_tokens");
  // Beyond, the bytes of a layer are no number of 64 bits.
  constexpr int64_t kMostTokens = int64_t{1} << 34;
  if (resolve_.batch > kMostTokens / resolve_.time)
    throw Error(ExitCode::kConfig, config_.position("train.micro_batch_size"),
                "train.micro_batch_size × train.seq_len = " + std::to_string(resolve_.batch) + " × " +
                    std::to_string(resolve_.time) + " are more than the " + std::to_string(kMostTokens) +
                    " tokens that one forward pass may have")
        .hint("lower either; train.global_batch_size takes any number of micro-batches into a step");
}

void Session::build_program(const SessionOptions& options) {
  choose_providers();
  Recording recording{[this](const chassis_builder_2_t* builder) { return model_->record(builder); },
                      config_.position(config_.has("model.path") ? "model.path" : "model.config"),
                      config_.has("model.path") ? config_.get_string("model.path") + "/config.json" : "", check_fields};
  compiled_ = compile(recording, {.passes = options.passes,
                                  .freeze = [this](ParameterTable& parameters) { freeze(parameters); },
                                  .resolve = resolve_,
                                  .purposes = purposes_of(config_.use())});
  disk_mapping_ = model_->disk_mapping(parameters());
  executor_ = std::make_unique<Executor>(*compiled_);

  if (config_.has("tokenizer.plugin") && !config_.get_string("tokenizer.plugin").empty()) {
    require_tokenizer_of_model();
    tokenizer_ =
        std::make_unique<PluginTokenizer>(create("tokenizer", "tokenizer", config_.get_string("tokenizer.plugin")));
    if (tokenizer_->vocab_size() > vocab_size())
      throw Error(ExitCode::kConfig, config_.position("tokenizer.plugin"),
                  "tokenizer '" + config_.get_string("tokenizer.plugin") + "' has " +
                      std::to_string(tokenizer_->vocab_size()) + " ids, the model's vocabulary has " +
                      std::to_string(vocab_size()))
          .hint("set vocab_size of the model to at least " + std::to_string(tokenizer_->vocab_size()));
  }
}

void Session::resolve_parallel() {
  try {
    mesh_.stack->resolve(program(), parameters(), stack_facts(config_, mesh_, device()));
  } catch (const Error& error) {
    if (error.code() != ExitCode::kConfig || !error.where().file.empty()) throw;
    throw Error(error.code(), config_.position("parallel"), error.message()).hint(error.hint_text());
  }
  if (optimizer_) optimizer_->place();
  executor_->set_events(mesh_.stack.get());
}

void Session::allocate(Device device) {
  parameters().allocate(device);
  mesh_.stack->bind(*communicator_, device);
  if (optimizer_) optimizer_->allocate(device);
}

void Session::publish() { mesh_.stack->refresh(); }

std::vector<std::string> Session::other_tokenizer_files() const {
  if (!config_.has("model.path") || !config_.has("tokenizer.plugin") || config_.get_string("tokenizer.plugin").empty())
    return {};
  const std::string& model = config_.get_string("model.path");
  const Json options = config_.plugin_options("tokenizer");
  for (const auto& [name, value] : options.items())  // it is told to read them
    if (value.is_string() && !value.get<std::string>().empty() && lies_in(value.get<std::string>(), model)) return {};
  return tokenizer_files(model);
}

// Weights know the ids that they were trained on: with those of another tokenizer they read garbage.
void Session::require_tokenizer_of_model() const {
  bool reads_text = config_.use() == ConfigUse::kGeneration;
  for (const char* sets : {"data.train", "data.eval"})
    for (size_t i = 0; i < config_.count(sets); ++i)
      reads_text |= config_.get_string(std::string(sets) + "." + std::to_string(i) + ".format") == "text";
  if (!reads_text || config_.get_string("model.init") == "random") return;
  const std::vector<std::string> files = other_tokenizer_files();
  if (files.empty()) return;
  const std::string what = "tokenizer '" + config_.get_string("tokenizer.plugin") + "' is not the one that " +
                           config_.get_string("model.path") + " brings along (" + text_of_list(files) + ")";
  if (config_.get_bool("tokenizer.force"))
    return counted_warning("tokenizer.force", what + ", and is used all the same");
  throw Error(ExitCode::kConfig, config_.position("tokenizer.plugin"),
              what + ": to the model's weights its ids would mean other words")
      .hint(
          "tokenise the data with the model's own tokenizer and give format = \"tokens\"; tokenizer.force = true uses "
          "this one all the same");
}

void Session::freeze(ParameterTable& parameters) const {
  const auto patterns_of = [&](const std::string& key) {
    const std::vector<std::string> texts = config_.get_list(key);
    return std::vector<Pattern>(texts.begin(), texts.end());
  };
  const std::vector<Pattern> frozen = patterns_of("freeze.patterns"), trained = patterns_of("freeze.train_only");
  // Whether any of them is found in the name; counts each, since one that is never found is a mistake.
  const auto any_found = [&](const std::vector<Pattern>& patterns, const std::string& key, const std::string& name,
                             std::vector<size_t>& uses) {
    bool any = false;
    for (size_t i = 0; i < patterns.size(); ++i) {
      try {
        if (!patterns[i].found_in(name)) continue;
      } catch (const Error& e) {
        const std::string item = key + "." + std::to_string(i);
        throw Error(ExitCode::kConfig, config_.position(item), item + ": " + e.message()).hint(e.hint_text());
      }
      ++uses[i];
      any = true;
    }
    return any;
  };
  std::vector<size_t> uses(frozen.size()), train_uses(trained.size());
  for (const auto& p : parameters.all()) {
    if (any_found(frozen, "freeze.patterns", p->name, uses)) p->trainable = false;
    if (!trained.empty() && !any_found(trained, "freeze.train_only", p->name, train_uses)) p->trainable = false;
  }
  const auto refuse_unused = [&](const std::string& key, const std::vector<Pattern>& patterns,
                                 const std::vector<size_t>& counts) {
    for (size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] > 0) continue;
      const std::string item = key + "." + std::to_string(i);
      throw Error(ExitCode::kConfig, config_.position(item),
                  key + ": \"" + patterns[i].text() + "\" matches no parameter")
          .hint("names look like " + parameters.all().front()->name);
    }
  };
  refuse_unused("freeze.patterns", frozen, uses);
  refuse_unused("freeze.train_only", trained, train_uses);
  if (parameters.num_elements(true) == 0)
    throw Error(ExitCode::kConfig, config_.position("freeze"), "[freeze] leaves no parameter to train");
}

int64_t Session::vocab_size() const {
  const auto dim = program().find_dim("vocab");
  return dim ? program().dims[*dim].size : 0;
}

int64_t Session::max_positions() const { return model_->max_positions(); }

void Session::check_positions(int64_t num_positions, const std::string& what) const {
  if (const int64_t most = max_positions(); most > 0 && num_positions > most)
    counted_warning("positions beyond the model's",
                    what + " = " + std::to_string(num_positions) + ", but the weights of model '" + model_member_ +
                        "' were made for " + std::to_string(most) +
                        " positions (max_position_embeddings); beyond them results get worse");
}

std::string Session::stored_dtype() const {
  const std::string where =
      config_.has("model.path") ? config_.get_string("model.path") + "/config.json" : "model.config";
  const Json json = parse_json(model_config_text_, where);
  return json_string_or(json, "dtype", json_string_or(json, "torch_dtype", "float32", where), where);
}

std::string Session::model_config() const { return model_->config(); }

std::string Session::model_hash() const {
  Json shapes = Json::object();
  for (const auto& p : parameters().all())
    shapes[p->name] = std::vector<int64_t>(p->descriptor.global_shape.begin(), p->descriptor.global_shape.end());
  return sha256_hex(model_member_ + "\n" + shapes.dump());
}

double Session::flops_per_token() const {
  double products = 0.0;
  const double time = static_cast<double>(resolve_.time);
  for (const Chain& chain : program().chains)
    for (uint32_t type : chain.blocks)
      for (const Op& op : program().blocks[type].ops) {
        const BlockType& block = program().blocks[type];
        if (op.id == "linear") {
          const auto shape = program().global_shape(block.slots[op.params[0]]);
          products += static_cast<double>(shape[0]) * static_cast<double>(shape[1]);
        }
        if (op.id == "attention") {
          const auto& q = block.values[op.inputs[0]].dims;
          const auto& v = block.values[op.inputs[2]].dims;
          const double heads = static_cast<double>(program().dims[q[2]].size);
          const double dims = static_cast<double>(program().dims[q[3]].size + program().dims[v[3]].size);
          products += heads * dims * time * (op.attr_int("causal", 0) ? 0.5 : 1.0);
        }
      }
  return 6.0 * products;  // a product is two operations, and backward is two products for each of forward
}

}  // namespace chassis

// The tables and keys of the host. Defaults may name members of plugins; no other host code does.
#include "host/config/schema.hpp"

#include <algorithm>

#include "host/base/device_types.hpp"
#include "host/base/mesh_axes.hpp"

namespace chassis {
namespace {

constexpr double kNoMax = 9.2e18;  // an integer without an upper limit

OptionSpec flag(std::string name, bool preset, std::string doc) {
  return {.name = std::move(name),
          .type = OptionType::kBool,
          .default_json = preset ? "true" : "false",
          .doc = std::move(doc)};
}
OptionSpec integer(std::string name, std::string preset, double min, double max, std::string doc) {
  return {.name = std::move(name),
          .type = OptionType::kInt,
          .default_json = std::move(preset),
          .min = min,
          .max = max == kNoMax ? std::nullopt : std::optional(max),
          .doc = std::move(doc)};
}
OptionSpec number(std::string name, std::string preset, double min, std::optional<double> max, std::string doc) {
  return {.name = std::move(name),
          .type = OptionType::kFloat,
          .default_json = std::move(preset),
          .min = min,
          .max = max,
          .doc = std::move(doc)};
}
OptionSpec text(std::string name, std::string preset_json, std::string doc) {
  return {.name = std::move(name), .default_json = std::move(preset_json), .doc = std::move(doc)};
}
OptionSpec choice(std::string name, std::string preset, std::vector<std::string> choices, std::string doc) {
  return {.name = std::move(name),
          .default_json = preset.empty() ? "" : "\"" + preset + "\"",
          .choices = std::move(choices),
          .doc = std::move(doc)};
}
OptionSpec list(std::string name, std::string preset_json, std::string doc) {
  return {.name = std::move(name),
          .type = OptionType::kStringList,
          .default_json = std::move(preset_json),
          .doc = std::move(doc)};
}
OptionSpec integers(std::string name, std::string preset_json, double min, std::string doc) {
  return {.name = std::move(name),
          .type = OptionType::kIntList,
          .default_json = std::move(preset_json),
          .min = min,
          .doc = std::move(doc)};
}
OptionSpec table(std::string name, std::string preset_json, std::string doc) {
  return {.name = std::move(name),
          .type = OptionType::kTable,
          .default_json = std::move(preset_json),
          .doc = std::move(doc)};
}
OptionSpec patterns(std::string name, std::string doc) {
  OptionSpec spec = list(std::move(name), "[]", std::move(doc));
  spec.is_pattern = true;
  return spec;
}
OptionSpec path(OptionSpec spec) {
  spec.is_path = true;
  return spec;
}
OptionSpec model_directory(std::string doc) {
  OptionSpec spec = path(text("path", "", std::move(doc)));
  spec.may_be_hub = true;
  return spec;
}
OptionSpec required(OptionSpec spec) {
  spec.required = true;
  return spec;
}
OptionSpec plugin(std::string preset, std::string doc) {
  OptionSpec spec = text("plugin", preset.empty() ? "" : "\"" + preset + "\"", std::move(doc));
  spec.required = preset.empty();
  return spec;
}

TableSpec data_set(std::string name, std::string doc) {
  return {
      .name = std::move(name),
      .is_array = true,
      .doc = std::move(doc),
      .keys = {
          required(path(text("path", "", "a data file, a folder of such files, or a pattern such as \"*.jsonl\""))),
          choice("format", "text",
                 {"text", "alpaca", "sharegpt", "messages", "prompt_completion", "segments", "tokens", "preference"},
                 "text: documents, every token trained; tokens: input_ids and optional labels, aligned as in HF "
                 "and not shifted; the others need train.task = \"sft\""),
          choice("documents", "line", {"line", "paragraph", "file"}, "how a .txt file is split into documents"),
          table("columns", "{}", "other names of the keys of a row: { messages = \"dialog\" }"),
          table("tags", "{}",
                "other names inside a message (role, content) and of the roles (system, user, assistant, tool): "
                "{ role = \"from\", user = \"human\" }")}};
}

std::vector<std::string> device_choices() {
  std::vector<std::string> choices = device_names();
  choices.insert(choices.begin(), "auto");
  return choices;
}
bool is_accelerator(const DeviceSpec& device) { return device.accelerator != nullptr; }
bool has_bf16(const DeviceSpec& device) { return device.has_bf16; }

Schema make_schema() {
  Schema schema;
  auto& tables = schema.tables;
  tables.push_back(
      {.name = "",
       .doc = "the top level",
       .keys = {
           integer("schema_version", "1", 1, kNoMax, "version of the configuration format; this release reads 1"),
           list("extends", "[]", "files merged below this one, relative to it; later ones win, arrays are replaced")}});
  tables.push_back(
      {.name = "run",
       .doc = "what is run, and where its results go",
       .keys = {
           text("name", "\"run\"", "the name of the run in logs and metrics"),
           path(text("output_dir", "", "the run directory; default out/<run.name>")),
           integer("seed", "42", 0, kNoMax,
                   "random seed of initial weights, shuffling, dropout and sampling: `generate` answers alike until it "
                   "changes"),
           integer("max_steps", "0", 0, kNoMax, "optimizer steps; 0: unset, run.epochs decides"),
           number("epochs", "0", 0, std::nullopt, "passes over the training data; 0: unset, run.max_steps decides"),
           path(text("resume", "\"auto\"",
                     "\"auto\": from the newest checkpoint in output_dir if there is one; \"never\"; or the path of a "
                     "checkpoint")),
           flag("strict", false,
                "refuse to resume with settings or plugins that differ from those of the checkpoint; "
                "else each is a counted warning"),
           choice("device", "auto", device_choices(),
                  "auto: " + device_titles(is_accelerator, " or ") + " if there is a device"),
           choice("memory_check", "refuse", {"refuse", "warn"},
                  "if the plan of the run needs more memory than the machine has: refuse to start, or warn"),
           integer("threads", "0", 0, 4096, "CPU threads of this process; 0: all cores"),
           integer("replica_check_steps", "200", 0, kNoMax,
                   "steps between comparisons of the parameters that several ranks store alike, which also precede "
                   "every save; 0: never")}});
  tables.push_back(
      {.name = "plugins",
       .doc = "where plugins are found, and which files are trusted",
       .keys = {path(list("path", "[]", "folders searched before the others")),
                path(list("trust", "[]",
                          "folders whose plugins are loaded although another user or group owns them; "
                          "those of root, of yours and of the owner of the program need not be listed")),
                flag("locked", false, "refuse plugins whose hash is not in plugins.lock in run.output_dir"),
                table("pin", "{}", "plugin = \"sha256:…\": refuse the plugin if its file has another hash")}});
  tables.push_back({.name = "model",
                    .slot = SlotForm::kOne,
                    .kind = "model",
                    .doc = "what is trained",
                    .keys = {
                        model_directory("an HF model directory, whose config.json names the architecture, or "
                                        "hub:Org/Name@revision in the local Hugging Face cache"),
                        text("plugin", "", "the model's plugin; with model.path it is found by architecture"),
                        table("config", "", "without a path: the content of config.json"),
                        choice("init", "", {"pretrained", "random"},
                               "where weights come from; default pretrained with a path, random without"),
                    }});
  tables.push_back(
      {.name = "freeze",
       .doc = "which parameters are not trained",
       .keys = {patterns("patterns", "regular expressions (PCRE2); a parameter whose name contains a match is frozen"),
                list("groups", "[]", "groups named by the model's plugin, such as vision_tower"),
                patterns("train_only", "regular expressions (PCRE2); every parameter without a match is frozen")}});
  OptionSpec tokenizer =
      plugin("", "the tokenizer; needed wherever data is text. Default: the one that opens the files of path");
  tokenizer.required = false;
  tables.push_back({.name = "tokenizer",
                    .slot = SlotForm::kOne,
                    .kind = "tokenizer",
                    .doc = "how text becomes ids",
                    .keys = {tokenizer,
                             model_directory("a directory with tokenizer.json, or hub:Org/Name@revision; default "
                                             "model.path"),
                             flag("force", false,
                                  "use this one even if the directory of model.path has another; counted, "
                                  "and exports leave the other out")}});
  tables.push_back(
      {.name = "data",
       .doc = "how documents become batches",
       .keys = {
           choice("packing", "", {"best_fit", "concat_split", "none"},
                  "best_fit: whole documents, several per row; concat_split: rows filled with documents, which may "
                  "continue in the next row; none: one document per row. No attention across documents. Default "
                  "best_fit for sft, else concat_split"),
           flag("pad_to_seq_len", false,
                "with packing none: compute every row up to train.seq_len, not only up to the longest row of its "
                "micro-batch; results differ by rounding"),
           flag("shuffle", true, "visit training documents in an order drawn from run.seed"),
           choice("overflow", "", {"error", "truncate", "truncate_left_prompt", "drop"},
                  "what to do with a document longer than train.seq_len unless packing splits it; counted. Default "
                  "drop for sft, else error"),
           path(text("cache_dir", "\".cache/chassis\"",
                     "where tokenised data is cached: for each data set the tokens of its last 3 tokenizers or "
                     "templates, which a change of its files replaces")),
           flag("prefetch", true, "build the next batch on a separate thread; changes no result"),
           number("eval_fraction", "0.0", 0, 0.5,
                  "this part of each training set's documents, chosen by a hash of the document, is an evaluation set "
                  "instead"),
           number("max_drop_ratio", "0.05", 0, 1, "stop if more than this part of the rows cannot be used"),
           choice(
               "on_refused", "error", {"error", "skip"},
               "a conversation that its template refuses or does not show: an error, or left out and counted towards "
               "max_drop_ratio"),
           text("template", "\"auto\"",
                "how conversations become text: auto is the tokenizer's own template; chatml, llama3, … are built in; "
                "or the path of a .toml or .jinja file"),
           table("template_variables", "{}", "further variables of the template, such as { enable_thinking = false }"),
           text("template_date", "", "YYYY-MM-DD for templates that show the date; default the day of preparation"),
           text("default_system", "", "system message of conversations that have none"),
           list("roles_to_train", "[\"assistant\"]", "roles whose messages are trained"),
           flag("train_on_prompt", false, "train every token of a conversation"),
           flag("last_turn_only", false, "train only the last message of a trained role"),
           choice("reasoning", "template", {"template", "keep", "strip"},
                  "reasoning of assistant messages: as the template does it, kept in every turn, or left out")}});
  TableSpec train_set = data_set("data.train", "a training set");
  train_set.keys.push_back({.name = "weight",
                            .type = OptionType::kFloat,
                            .min = 0,
                            .doc = "share of the rows, relative to the other sets; set it for all sets or for none"});
  tables.push_back(train_set);
  TableSpec eval_set = data_set("data.eval", "an evaluation set");
  eval_set.keys.push_back(
      text("name", "", "name in metrics; default \"eval\", or the name of the file if there are several"));
  tables.push_back(eval_set);
  tables.push_back(
      {.name = "train",
       .doc = "the training step",
       .keys = {
           choice("task", "pretrain", {"pretrain", "sft", "reward"}, "the training task"),
           required(integer("seq_len", "", 1, 1 << 24, "tokens per row")),
           integer("micro_batch_size", "1", 1, 1 << 24, "rows in one forward pass of one rank"),
           integer(
               "global_batch_size", "", 1, 1 << 30,
               "rows in one optimizer step of all ranks; accumulation is derived; default one micro-batch per rank"),
           choice("nonfinite", "stop", {"stop", "skip"},
                  "a loss or gradient that is not finite: stop with exit code 6, or skip the step; it is never "
                  "applied"),
           integer("max_skipped_steps", "20", 0, kNoMax,
                   "with skip: stop the run after this many skipped steps in a row; 0: never")}});
  tables.push_back(
      {.name = "eval",
       .doc = "when [[data.eval]] is run",
       .keys = {integer("every_steps", "0", 0, kNoMax, "steps between evaluations; 0: only after the last step"),
                integer("max_batches", "0", 0, kNoMax, "batches per set and evaluation; 0: all"),
                text("keep_best", "\"\"",
                     "name of an evaluation set: the checkpoint with its lowest loss is kept, and `best` links to it"),
                integer("patience", "0", 0, kNoMax,
                        "stop after this many evaluations in a row without a lower loss of keep_best; 0: never")}});
  tables.push_back(
      {.name = "precision",
       .doc = "number formats; parameters and optimizer states are fp32",
       .keys = {
           choice("compute", "auto", {"auto", "fp32", "bf16", "fp16"},
                  "dtype of forward and backward; auto: bf16 on " + device_titles(has_bf16, " and ") + ", fp32 on CPU"),
           choice("reduce", "fp32", {"fp32", "bf16"},
                  "dtype in which gradients are sent to be summed over ranks; they are added in fp32")}});
  tables.push_back({.name = "recompute",
                    .doc = "activations: kept, or computed again in the backward pass",
                    .keys = {choice("mode", "auto", {"auto", "none", "selective", "full"},
                                    "selective: keep the outputs of matrix products and attention, compute cheap ops "
                                    "such as norms again; full: keep only the inputs of blocks; auto: the cheapest "
                                    "that fits the device, in the order none, selective in the first blocks, in all, "
                                    "full in the first blocks and selective in the others, full in all"),
                             integer("blocks", "", 1, 1 << 24,
                                     "with selective or full: only this many first blocks of a chain; default all")}});
  tables.push_back(
      {.name = "optimizer",
       .slot = SlotForm::kOne,
       .kind = "optimizer",
       .doc = "how gradients change parameters",
       .keys = {plugin("adamw", "the optimizer"), required(number("lr", "", 0, std::nullopt, "peak learning rate")),
                number("weight_decay", "0.0", 0, std::nullopt, "decoupled; not applied to parameters of one dimension"),
                number("max_grad_norm", "1.0", 0, std::nullopt, "gradients are scaled down to this norm; 0: never")}});
  tables.push_back(
      {.name = "schedule",
       .doc = "the learning rate over the run",
       .keys = {
           choice("name", "constant", {"constant", "linear", "cosine", "wsd"},
                  "after warm-up: constant; linear or cosine down to min_lr_ratio; wsd: constant, then linear decay in "
                  "the last decay_steps"),
           integer("warmup_steps", "0", 0, kNoMax, "step k of n runs at lr·k/n"),
           number("min_lr_ratio", "0.0", 0, 1, "final learning rate as a fraction of the peak"),
           integer("decay_steps", "0", 0, kNoMax, "wsd: length of the decay")}});
  TableSpec& mesh =
      tables.emplace_back(TableSpec{.name = "mesh", .doc = "how ranks are arranged; -1: the remaining ranks"});
  for (const AxisSpec& axis : kMeshAxes)
    mesh.keys.push_back(integer(std::string(axis.name), axis.takes_rest ? "-1" : "1",
                                axis.divides == Divides::kRows ? -1 : 1, 1 << 20, std::string(axis.doc)));
  tables.push_back({.name = "parallel",
                    .is_array = true,
                    .slot = SlotForm::kOne,
                    .kind = "parallel",
                    .doc = "a parallel strategy; several form a stack, applied in this order",
                    .keys = {plugin("", "the strategy")}});
  tables.push_back(
      {.name = "comm",
       .slot = SlotForm::kOne,
       .kind = "comm",
       .doc = "collectives between ranks",
       .keys = {plugin("auto", "auto: the first that supports the device; none with one rank"),
                integer("timeout_s", "600", 1, 1 << 20,
                        "seconds that ranks wait for each other in a collective before they give up"),
                integer("init_timeout_s", "300", 1, 1 << 20, "seconds that ranks wait for each other at the start")}});
  tables.push_back(
      {.name = "attention",
       .slot = SlotForm::kOne,
       .kind = "ops",
       .doc = "the provider of attention",
       .keys = {plugin("auto",
                       "the provider; nodes that it refuses go to [kernels]. auto: of those in the program's "
                       "own folder that claim a node, the cheapest by its own estimate")}});
  tables.push_back(
      {.name = "kernels",
       .slot = SlotForm::kList,
       .kind = "ops",
       .list_key = "plugins",
       .doc = "the providers of the other operations",
       .keys = {list("plugins", "[\"auto\"]",
                     "providers; the first that claims an operation gets it. auto: of those in the program's own "
                     "folder, the one with the longest pattern, then the cheapest by its own estimate")}});
  tables.push_back({.name = "quant",
                    .is_optional = true,
                    .slot = SlotForm::kOne,
                    .kind = "quant",
                    .doc = "how parameters are stored in fewer bits; they are not trained",
                    .keys = {plugin("", "the quantization")}});
  tables.push_back(
      {.name = "adapter",
       .is_optional = true,
       .slot = SlotForm::kOne,
       .kind = "adapter",
       .doc = "parameters added to the frozen ones; then only they are trained",
       .keys = {plugin("", "the adapter"),
                model_directory("continue from this adapter in PEFT's files: a directory with adapter_config.json, or "
                                "hub:Org/Name@revision")}});
  tables.push_back(
      {.name = "checkpoint",
       .slot = SlotForm::kOne,
       .kind = "format",
       .doc = "how a run is saved; the last step is always saved",
       .keys = {
           plugin("native", "the file format"),
           integer("every_steps", "500", 0, kNoMax, "steps between checkpoints; 0: not by steps"),
           number("every_minutes", "0.0", 0, std::nullopt, "minutes between checkpoints; 0: not by time"),
           integer("keep_last", "2", 0, kNoMax, "number of newest checkpoints to keep; 0: keep all"),
           integer("keep_every", "0", 0, kNoMax, "never remove checkpoints at multiples of this many steps; 0: none"),
           choice(
               "contents", "full", {"full", "trained", "model_only"},
               "full: all that a resumed run needs; trained, the default with [adapter]: the same without the frozen "
               "parameters, which are read from model.path again; model_only: only parameters, which cannot be "
               "resumed"),
           choice("async", "false", {"false", "true", "staged"},
                  "true: continue while a checkpoint is written, until the next change of parameters; staged: copy "
                  "to host memory first, and never wait for the write"),
           choice("on_error", "stop", {"stop", "warn"}, "if a save fails: stop, or continue and count it"),
           integer("bucket_mib", "16", 1, 65536, "size of each of the two buffers through which a save streams"),
           flag("self_test", false, "before step 1, also write a small checkpoint, read it back and compare")}});
  tables.push_back(
      {.name = "export",
       .slot = SlotForm::kOne,
       .kind = "format",
       .doc = "how the model is exported",
       .keys = {plugin("safetensors", "the file format"),
                choice("when", "last", {"last", "every", "never"},
                       "last: after the last step, into final/; every: also with each checkpoint"),
                choice("dtype", "auto", {"auto", "fp32", "bf16", "fp16"},
                       "auto: what the model directory says; fp32 for a new model"),
                flag("merge", false, "with [adapter]: export the model with the adapter merged into it")}});
  tables.push_back(
      {.name = "generate",
       .doc = "settings of `chassis generate` and of [sample]; where a key is left out, "
              "generation_config.json in model.path decides",
       .keys = {
           integer("max_new_tokens", "", 1, 1 << 24, "maximum number of new tokens; default 128"),
           number("temperature", "", 0, 100, "sampling temperature; 0: greedy, the default"),
           number("top_p", "", 0, 1, "sample from the smallest set of tokens with this total probability; default 1"),
           integer("top_k", "", 0, 1 << 24, "sample from this many most probable tokens; 0: all, the default"),
           number("min_p", "", 0, 1,
                  "leave out tokens less probable than this fraction of the most probable one; default 0"),
           number("repetition_penalty", "", 0.01, 100,
                  "divides positive and multiplies negative scores of tokens that occurred (CTRL); default 1"),
           list("stop", "[]", "texts that end an answer; they are not shown")}});
  tables.push_back(
      {.name = "sample",
       .doc = "answers of the model during training, in the log and in samples.jsonl",
       .keys = {list("prompts", "[]", "prompts; conversations begin with them if train.task is sft"),
                integer("every_steps", "0", 0, kNoMax, "steps between samples; 0: only after the last step"),
                integer("max_new_tokens", "64", 1, 1 << 24, "maximum number of new tokens of each")}});
  tables.push_back(
      {.name = "log",
       .slot = SlotForm::kList,
       .kind = "sink",
       .list_key = "sinks",
       .built_in = {"console", "jsonl"},
       .doc = "metrics and progress of a run",
       .keys = {
           integer(
               "every_steps", "1", 1, kNoMax,
               "steps between lines on the console, each the mean since the line before; metrics.jsonl has every step"),
           list("sinks", "[\"console\", \"jsonl\"]",
                "where metrics go: console, jsonl (metrics.jsonl in run.output_dir), or plugins, such as tensorboard; "
                "[log.NAME] has the options of one"),
           integers("trace", "[]", 1,
                    "[first, last]: the steps of which each rank writes a trace, RUN/trace/rank-N.json; [] is none")}});
  return schema;
}

constexpr Unavailable kUnavailable[] = {
    {"train.task", "reward", "use \"pretrain\" or \"sft\""},
    {"precision.compute", "fp16", "use \"auto\", \"fp32\" or \"bf16\""},
    {"freeze.groups", "", "models define no groups yet; use freeze.patterns"},
};

}  // namespace

std::span<const Unavailable> unavailable() { return kUnavailable; }

bool is_unavailable(std::string_view key) {
  return std::any_of(std::begin(kUnavailable), std::end(kUnavailable), [&](const Unavailable& entry) {
    return entry.value.empty() && (entry.key == key || (key.starts_with(entry.key) && key[entry.key.size()] == '.'));
  });
}

std::vector<std::string> offered_choices(std::string_view key, const OptionSpec& spec) {
  std::vector<std::string> offered = spec.choices;
  for (const Unavailable& entry : kUnavailable)
    if (entry.key == key && !entry.value.empty()) std::erase(offered, entry.value);
  return offered;
}

std::vector<std::string> offered_keys(const std::string& table, const std::vector<OptionSpec>& specs) {
  std::vector<std::string> names;
  for (const OptionSpec& spec : specs)
    if (!is_unavailable(joined_key(table, spec.name))) names.push_back(spec.name);
  return names;
}

std::string joined_key(const std::string& table, const std::string& key) {
  return table.empty() ? key : table + "." + key;
}

const OptionSpec* TableSpec::find(std::string_view key) const {
  const auto it = std::find_if(keys.begin(), keys.end(), [&](const OptionSpec& spec) { return spec.name == key; });
  return it == keys.end() ? nullptr : &*it;
}

const TableSpec* Schema::find(std::string_view table) const {
  const auto it = std::find_if(tables.begin(), tables.end(), [&](const TableSpec& spec) { return spec.name == table; });
  return it == tables.end() ? nullptr : &*it;
}

std::string without_indexes(const std::string& key) {
  std::string out;
  for (size_t start = 0; start <= key.size();) {
    const size_t end = std::min(key.find('.', start), key.size());
    const std::string part = key.substr(start, end - start);
    if (part.find_first_not_of("0123456789") != std::string::npos) out += (out.empty() ? "" : ".") + part;
    start = end + 1;
  }
  return out;
}

std::string key_elsewhere(const Schema& schema, const std::string& key) {
  std::string found;
  for (const TableSpec& table : schema.tables) {
    if (table.find(key) == nullptr || table.name.empty() || is_unavailable(table.name + "." + key)) continue;
    if (!found.empty()) return "";
    found = table.name + "." + key;
  }
  return found;
}

bool is_needed(std::string_view key, ConfigUse use) {
  const bool reads_data = use == ConfigUse::kTraining || use == ConfigUse::kData;
  if (key == "train.seq_len") return reads_data || use == ConfigUse::kEvaluation;
  if (key == "data.train") return reads_data;
  if (key == "data.eval") return use == ConfigUse::kEvaluation;
  if (key == "tokenizer.plugin") return use == ConfigUse::kGeneration;
  for (const char* training : {"run.max_steps", "optimizer.lr"})
    if (key == training) return use == ConfigUse::kTraining;
  return true;
}

const Schema& host_schema() {
  static const Schema schema = make_schema();
  return schema;
}

}  // namespace chassis

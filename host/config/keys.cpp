// The keys of the configuration, one row each, in the order in which documentation shows them. Defaults may name
// members of plugins; no other host code does.
#include "host/config/keys.hpp"

#include <functional>
#include <optional>
#include <utility>

#include "host/base/device_types.hpp"
#include "host/base/mesh_axes.hpp"
#include "host/config/key_rows.hpp"

namespace chassis {
namespace rows {
namespace {

constexpr std::nullopt_t kNoMax = std::nullopt;

std::vector<std::string> device_choices() {
  std::vector<std::string> choices = device_names();
  choices.insert(choices.begin(), "auto");
  return choices;
}
bool is_accelerator(const DeviceSpec& device) { return device.accelerator != nullptr; }
bool has_bf16(const DeviceSpec& device) { return device.has_bf16; }

TableRows top_level_table() {
  using T = Settings;
  return table_rows<T>({.name = "", .doc = "the top level"}, std::identity(),
                       {integer("schema_version", &T::schema_version, "1", 1, kNoMax,
                                "version of the configuration format; this release reads 1"),
                        list("extends", &T::extends, "[]",
                             "files merged below this one, relative to it; later ones win, arrays are replaced")});
}

TableRows run_table() {
  using T = Settings::Run;
  return table_rows<T>(
      {.name = "run", .doc = "what is run, and where its results go"}, &Settings::run,
      {text("name", &T::name, "\"run\"", "the name of the run in logs and metrics"),
       path(text("output_dir", &T::output_dir, "", "the run directory; default out/<run.name>")),
       integer("seed", &T::seed, "42", 0, kNoMax,
               "random seed of initial weights, shuffling, dropout and sampling: `generate` gives the same answers "
               "until it changes"),
       integer("max_steps", &T::max_steps, "0", 0, kNoMax, "optimizer steps; 0: unset, run.epochs decides"),
       number("epochs", &T::epochs, "0", 0, std::nullopt,
              "passes over the training data; 0: unset, run.max_steps decides"),
       path(key_row<T, ResumeFrom>(
           "resume", &T::resume, "\"auto\"",
           "\"auto\": from the newest checkpoint in output_dir if there is one; \"never\"; or the path of a "
           "checkpoint")),
       flag("strict", &T::strict, false,
            "refuse to resume with settings or plugins that differ from those of the checkpoint; "
            "otherwise each is a counted warning"),
       one_of("device", &T::device, "auto", device_choices(),
              "auto: " + device_titles(is_accelerator, " or ") + " if there is a device"),
       choice("memory_check", &T::memory_check, MemoryCheck::kRefuse,
              "if the plan of the run needs more memory than the machine has: refuse to start, or warn"),
       integer("threads", &T::threads, "0", 0, 4096, "CPU threads of this process; 0: all cores"),
       hot(integer("replica_check_steps", &T::replica_check_steps, "200", 0, kNoMax,
                   "steps between comparisons of the parameters of which several ranks store copies; they are also "
                   "compared before every save; 0: never"))});
}

TableRows plugins_table() {
  using T = Settings::Plugins;
  return table_rows<T>(
      {.name = "plugins", .doc = "where plugins are found, and which files are trusted"}, &Settings::plugins,
      {path(list("path", &T::path, "[]", "folders searched before the others")),
       path(list("trust", &T::trust, "[]",
                 "folders whose plugins are loaded although another user or group owns them; "
                 "folders of your own, of root and of the owner of the program need not be listed")),
       flag("locked", &T::locked, false, "refuse plugins whose hash is not in plugins.lock in run.output_dir"),
       table("pin", &T::pin, "{}", "plugin = \"sha256:…\": refuse the plugin if its file has another hash")});
}

TableRows model_table() {
  using T = Settings::Model;
  return table_rows<T>(
      {.name = "model", .slot = SlotForm::kOne, .kind = "model", .doc = "what is trained"}, &Settings::model,
      {
          model_directory(&T::path,
                          "an HF model directory, whose config.json names the architecture, or "
                          "hub:Org/Name@revision in the local Hugging Face cache"),
          text("plugin", &T::plugin, "", "the model's plugin; with model.path it is found by architecture"),
          table("config", &T::config, "", "without a path: the content of config.json"),
          choice("init", &T::init, std::nullopt,
                 "where weights come from; default: pretrained with a path, random without"),
          number("router_aux_weight", &T::router_aux_weight, "", 0, std::nullopt,
                 "weight of the auxiliary loss that balances experts; default: router_aux_loss_coef of config.json if "
                 "output_router_logits is true there, else 0"),
          number("router_z_weight", &T::router_z_weight, "0.0", 0, std::nullopt,
                 "weight of the z-loss, the mean square of a router's log Σ exp; 0: none"),
      });
}

TableRows freeze_table() {
  using T = Settings::Freeze;
  return table_rows<T>({.name = "freeze", .doc = "which parameters are not trained"}, &Settings::freeze,
                       {patterns("patterns", &T::patterns,
                                 "regular expressions (PCRE2); a parameter whose name contains a match is frozen"),
                        list("groups", &T::groups, "[]", "groups named by the model's plugin, such as vision_tower"),
                        patterns("train_only", &T::train_only,
                                 "regular expressions (PCRE2); every parameter without a match is frozen")});
}

TableRows tokenizer_table() {
  using T = Settings::Tokenizer;
  return table_rows<T>(
      {.name = "tokenizer", .slot = SlotForm::kOne, .kind = "tokenizer", .doc = "how text becomes ids"},
      &Settings::tokenizer,
      {text("plugin", &T::plugin, "",
            "the tokenizer; needed wherever data is text. Default: the one that opens the files of path"),
       model_directory(&T::path,
                       "a directory with tokenizer.json, or hub:Org/Name@revision; default "
                       "model.path"),
       flag("force", &T::force, false,
            "use this one even if the directory of model.path has another; counted, "
            "and exports leave the other out")});
}

TableRows data_table() {
  using T = Settings::Data;
  return table_rows<T>(
      {.name = "data", .doc = "how documents become batches"}, &Settings::data,
      {choice("packing", &T::packing, std::nullopt,
              "best_fit: whole documents, several per row; concat_split: rows filled with documents, which may "
              "continue in the next row; none: one document per row. No attention across documents. Default "
              "concat_split for pretrain, else best_fit"),
       flag("pad_to_seq_len", &T::pad_to_seq_len, false,
            "with packing none: compute every row up to train.seq_len, not only up to the longest row of its "
            "micro-batch; results differ by rounding"),
       flag("shuffle", &T::shuffle, true, "visit training documents in an order drawn from run.seed"),
       choice("overflow", &T::overflow, std::nullopt,
              "what to do with a document longer than train.seq_len unless packing splits it; counted. Default "
              "error for pretrain, else drop"),
       path(text("cache_dir", &T::cache_dir, "\".cache/chassis\"",
                 "where tokenised data is cached: for each data set, the tokens of its last 3 tokenizers or templates, "
                 "which are replaced when its files change")),
       flag("prefetch", &T::prefetch, true, "build the next batch on a separate thread; does not change results"),
       number("eval_fraction", &T::eval_fraction, "0.0", 0, 0.5,
              "this fraction of each training set's documents, chosen by a hash of the document, is an evaluation set "
              "instead"),
       number("max_drop_ratio", &T::max_drop_ratio, "0.05", 0, 1,
              "stop if more than this fraction of the rows cannot be used"),
       choice("on_refused", &T::on_refused, OnRefused::kError,
              "a conversation that its template refuses or does not show: an error, or left out and counted towards "
              "max_drop_ratio"),
       text("template", &T::template_name, "\"auto\"",
            "how conversations become text: auto is the tokenizer's own template; chatml, llama3, … are built in; "
            "or the path of a .toml or .jinja file"),
       table("template_variables", &T::template_variables, "{}",
             "further variables of the template, such as { enable_thinking = false }"),
       text("template_date", &T::template_date, "",
            "YYYY-MM-DD for templates that show the date; default the day of preparation"),
       text("default_system", &T::default_system, "", "system message of conversations that have none"),
       list("roles_to_train", &T::roles_to_train, "[\"assistant\"]", "roles whose messages are trained"),
       flag("train_on_prompt", &T::train_on_prompt, false, "train every token of a conversation"),
       flag("last_turn_only", &T::last_turn_only, false, "train only the last message of a trained role"),
       choice("reasoning", &T::reasoning, Reasoning::kTemplate,
              "reasoning of assistant messages: as the template does it, kept in every turn, or left out"),
       list("classes", &T::classes, "[]",
            "for classify: names of the classes, in the order of their indices; then labels may be names")});
}

// The keys of training and evaluation sets. `own` are those of one of the two.
template <class T>
std::vector<KeyRow<T>> data_set_keys(KeyRow<T> own) {
  using D = Settings::DataSet;
  return {
      required(
          path(text("path", &D::path, "", "a data file, a folder of such files, or a pattern such as \"*.jsonl\""))),
      choice("format", &D::format, DataFormat::kText,
             "text: documents, every token trained; tokens: input_ids and optional labels, aligned as in HF "
             "and not shifted; alpaca, sharegpt, messages, prompt_completion, segments: answers, for sft; preference: "
             "chosen and rejected answers; labelled: answers that are good or bad; classification: texts with labels; "
             "rollouts: answers with rewards"),
      choice("documents", &D::documents, DocumentSplit::kLine, "how a .txt file is split into documents"),
      flag("split_pairs", &D::split_pairs, false,
           "for preference: each pair becomes two labelled answers, the chosen one good and the rejected one bad, for "
           "an objective that reads those"),
      table("columns", &D::columns, "{}", "other names for the keys of a row: { messages = \"dialog\" }"),
      table("tags", &D::tags, "{}",
            "other names for the keys of a message (role, content) and for the roles (system, user, assistant, tool): "
            "{ role = \"from\", user = \"human\" }"),
      std::move(own)};
}

TableRows data_train_table() {
  using T = Settings::TrainSet;
  return table_rows<T>(
      {.name = "data.train", .doc = "a training set"},
      [](Settings& settings) -> SettingTables<T>& { return settings.data.train; },
      data_set_keys<T>(number("weight", &T::weight, "", 0, std::nullopt,
                              "share of the rows, relative to the other sets; set it for all sets or for none")));
}

TableRows data_eval_table() {
  using T = Settings::EvalSet;
  return table_rows<T>(
      {.name = "data.eval", .doc = "an evaluation set"},
      [](Settings& settings) -> SettingTables<T>& { return settings.data.eval; },
      data_set_keys<T>(text("name", &T::name, "",
                            "name in metrics; default \"eval\", or the name of the file if there are several")));
}

TableRows train_table() {
  using T = Settings::Train;
  return table_rows<T>(
      {.name = "train", .doc = "the training step"}, &Settings::train,
      {choice("task", &T::task, Task::kPretrain,
              "pretrain: next tokens of documents; sft: those of answers; preference: answers that are preferred or "
              "labelled; reward: a score that prefers them; classify: classes or values of texts; policy: answers with "
              "rewards"),
       required(integer("seq_len", &T::seq_len, "", 1, 1 << 24, "tokens per row")),
       integer("micro_batch_size", &T::micro_batch_size, "1", 1, 1 << 24, "rows in one forward pass of one rank"),
       integer("global_batch_size", &T::global_batch_size, "", 1, 1 << 30,
               "rows in one optimizer step of all ranks; accumulation is derived; default one micro-batch per rank"),
       hot(choice("nonfinite", &T::nonfinite, NonFinite::kStop,
                  "a loss or gradient that is not finite: stop with exit code 6, or skip the step; it is never "
                  "applied")),
       hot(integer("max_skipped_steps", &T::max_skipped_steps, "20", 0, kNoMax,
                   "with skip: stop the run after this many skipped steps in a row; 0: never"))});
}

TableRows eval_table() {
  using T = Settings::Eval;
  return table_rows<T>(
      {.name = "eval", .doc = "when [[data.eval]] and [[eval.generate]] are run"}, &Settings::eval,
      {hot(integer("every_steps", &T::every_steps, "0", 0, kNoMax,
                   "steps between evaluations; 0: only after the last step")),
       hot(integer("max_batches", &T::max_batches, "0", 0, kNoMax, "batches per set and evaluation; 0: all")),
       text("keep_best", &T::keep_best, "\"\"",
            "name of an evaluation set: the checkpoint with its lowest loss, or with the highest score of a set of "
            "[[eval.generate]], is kept, and `best` links to it"),
       text("metric", &T::metric, "\"loss\"",
            "what keep_best compares: loss, or a metric of the objective such as rewards/accuracies"),
       integer("patience", &T::patience, "0", 0, kNoMax,
               "stop after this many evaluations in a row without a lower loss, or a higher score, of keep_best; 0: "
               "never")});
}

TableRows eval_generate_table() {
  using T = Settings::GenerationSet;
  return table_rows<T>(
      {.name = "eval.generate",
       .doc = "an evaluation set whose prompts the model answers, and whose answers are scored"},
      [](Settings& settings) -> SettingTables<T>& { return settings.eval.generate; },
      {text("name", &T::name, "", "name in metrics, and of a folder of answers; default the name of the file"),
       required(
           path(text("path", &T::path, "",
                     "a .jsonl file with rows {\"prompt\": …} or {\"messages\": […]}, and \"expected\": a text, or a "
                     "list of texts of which any counts"))),
       choice("score", &T::score, AnswerScore::kExact,
              "when an answer passes. exact: it is an expected text, apart from white space at both ends; contains: an "
              "expected text is part of it; regex: pattern is found in it; command: a program exits with 0"),
       pattern("pattern", &T::pattern,
               "with regex: the expression (PCRE2). If it has a group, the text of the group must be an expected one"),
       list("command", &T::command, "[]",
            "with command: a program and its arguments. It reads one line from standard input, the row of the prompt "
            "with \"answer\""),
       number("command_timeout_s", &T::command_timeout_s, "30.0", 0.1, 86400,
              "seconds after which the program is killed; the answer has then not passed"),
       integer("max_new_tokens", &T::max_new_tokens, "128", 1, 1 << 24, "maximum number of new tokens for each prompt"),
       integer("max_rows", &T::max_rows, "0", 0, kNoMax, "rows of the file that are used, from its start; 0: all")});
}

TableRows precision_table() {
  using T = Settings::Precision;
  return table_rows<T>(
      {.name = "precision", .doc = "number formats; parameters and optimizer states are fp32"}, &Settings::precision,
      {choice("compute", &T::compute, DtypeChoice::kAuto,
              "dtype of forward and backward; auto: bf16 on " + device_titles(has_bf16, " and ") + ", fp32 on CPU"),
       choice("reduce", &T::reduce, ReduceDtype::kFp32,
              "dtype in which gradients are sent to be summed over ranks; they are added in fp32")});
}

TableRows recompute_table() {
  using T = Settings::Recompute;
  return table_rows<T>(
      {.name = "recompute",
       .change = Change::kSwap,
       .doc = "activations: kept, or computed again in the backward pass"},
      &Settings::recompute,
      {choice("mode", &T::mode, RecomputeMode::kAuto,
              "selective: keep the outputs of matrix products and attention, compute cheap ops "
              "such as norms again; full: keep only the inputs of blocks; auto: the cheapest "
              "that fits the device, in the order none, selective in the first blocks, in all, "
              "full in the first blocks and selective in the others, full in all"),
       integer("blocks", &T::blocks, "", 1, 1 << 24,
               "with selective or full: apply it to this many blocks only, from the start of a chain; default all")});
}

TableRows optimizer_table() {
  using T = Settings::Optimizer;
  return table_rows<T>(
      {.name = "optimizer",
       .slot = SlotForm::kOne,
       .kind = "optimizer",
       .change = Change::kSwap,
       .doc = "how gradients change parameters"},
      &Settings::optimizer,
      {plugin("adamw", "the optimizer"), hot(required(number("lr", &T::lr, "", 0, std::nullopt, "peak learning rate"))),
       number("weight_decay", &T::weight_decay, "0.0", 0, std::nullopt,
              "decoupled; not applied to parameters of one dimension"),
       hot(number("max_grad_norm", &T::max_grad_norm, "1.0", 0, std::nullopt,
                  "gradients are scaled down to this norm; 0: never"))});
}

TableRows objective_table() {
  return table_rows<PluginTable>({.name = "objective",
                                  .slot = SlotForm::kOne,
                                  .kind = "objective",
                                  .doc = "what the run minimises if it is not the cross entropy of tokens"},
                                 &Settings::objective,
                                 {text("plugin", &PluginTable::plugin, "",
                                       "the objective; default dpo, reward, classify or policy, by train.task")});
}

TableRows reference_table() {
  using T = Settings::Reference;
  return table_rows<T>(
      {.name = "reference", .doc = "the model before training, for objectives that compare with it"},
      &Settings::reference,
      {choice("mode", &T::mode, ReferenceMode::kOnline,
              "online: computed in each step, with a frozen copy of what is trained; precompute: computed once for all "
              "data before the first step, and kept in data.cache_dir"),
       path(text("path", &T::path, "",
                 "another model or adapter of the same architecture; default the one that training starts from"))});
}

TableRows schedule_table() {
  using T = Settings::Schedule;
  return table_rows<T>(
      {.name = "schedule", .change = Change::kHot, .doc = "the learning rate over the run"}, &Settings::schedule,
      {choice("name", &T::name, Curve::kConstant,
              "after warm-up: constant; linear or cosine down to min_lr_ratio; wsd: constant, then linear decay in "
              "the last decay_steps"),
       integer("warmup_steps", &T::warmup_steps, "0", 0, kNoMax, "step k of n runs at lr·k/n"),
       number("min_lr_ratio", &T::min_lr_ratio, "0.0", 0, 1, "final learning rate as a fraction of the peak"),
       integer("decay_steps", &T::decay_steps, "0", 0, kNoMax, "wsd: length of the decay")});
}

TableRows mesh_table() {
  using T = Settings::Mesh;
  std::vector<KeyRow<T>> keys;
  for (size_t i = 0; i < kMeshAxes.size(); ++i) {
    const AxisSpec& axis = kMeshAxes[i];
    const auto size = [i](T& mesh) -> Setting<int64_t>& { return mesh.sizes[i]; };
    keys.push_back(
        within(key_row<T, int64_t>(std::string(axis.name), size, axis.takes_rest ? "-1" : "1", std::string(axis.doc)),
               axis.may_take_rest() ? -1 : 1, 1 << 20));
  }
  return table_rows<T>(
      {.name = "mesh", .change = Change::kSwap, .doc = "how ranks are arranged; -1: the remaining ranks"},
      &Settings::mesh, std::move(keys));
}

TableRows parallel_table() {
  return table_rows<PluginTable>({.name = "parallel",
                                  .slot = SlotForm::kOne,
                                  .kind = "parallel",
                                  .change = Change::kSwap,
                                  .doc = "a parallel strategy; several form a stack, applied in this order"},
                                 &Settings::parallel, {plugin("", "the strategy")});
}

TableRows comm_table() {
  using T = Settings::Comm;
  return table_rows<T>({.name = "comm",
                        .slot = SlotForm::kOne,
                        .kind = "comm",
                        .change = Change::kSwap,
                        .doc = "collectives between ranks"},
                       &Settings::comm,
                       {plugin("auto", "auto: the first that supports the device; none with one rank"),
                        integer("timeout_s", &T::timeout_s, "600", 1, 1 << 20,
                                "seconds that ranks wait for each other in a collective before they give up"),
                        integer("init_timeout_s", &T::init_timeout_s, "300", 1, 1 << 20,
                                "seconds that ranks wait for each other at the start")});
}

TableRows attention_table() {
  return table_rows<PluginTable>(
      {.name = "attention",
       .slot = SlotForm::kOne,
       .kind = "ops",
       .change = Change::kSwap,
       .doc = "the provider of attention"},
      &Settings::attention,
      {plugin("auto",
              "the provider; nodes that it refuses go to [kernels]. auto: of those in the program's "
              "own folder that claim a node, the cheapest by its own estimate")});
}

TableRows kernels_table() {
  using T = Settings::Kernels;
  return table_rows<T>(
      {.name = "kernels",
       .slot = SlotForm::kList,
       .kind = "ops",
       .list_key = "plugins",
       .change = Change::kSwap,
       .doc = "the providers of the other operations"},
      &Settings::kernels,
      {list("plugins", &T::plugins, "[\"auto\"]",
            "providers; the first that claims an operation gets it. auto: of those in the program's own "
            "folder, the one with the longest pattern, then the cheapest by its own estimate")});
}

TableRows quant_table() {
  return table_rows<PluginTable>({.name = "quant",
                                  .is_optional = true,
                                  .slot = SlotForm::kOne,
                                  .kind = "quant",
                                  .doc = "how parameters are stored in fewer bits; they are not trained"},
                                 &Settings::quant, {plugin("", "the quantization")});
}

TableRows adapter_table() {
  using T = Settings::Adapter;
  return table_rows<T>(
      {.name = "adapter",
       .is_optional = true,
       .slot = SlotForm::kOne,
       .kind = "adapter",
       .doc = "parameters added to the frozen ones; then only they are trained"},
      &Settings::adapter,
      {plugin("", "the adapter"),
       model_directory(&T::path,
                       "continue from this adapter in PEFT's format: a directory with adapter_config.json, or "
                       "hub:Org/Name@revision")});
}

TableRows checkpoint_table() {
  using T = Settings::Checkpoint;
  return table_rows<T>(
      {.name = "checkpoint",
       .slot = SlotForm::kOne,
       .kind = "format",
       .doc = "how a run is saved; the last step is always saved"},
      &Settings::checkpoint,
      {swapped<T>(plugin("native", "the file format")),
       hot(integer("every_steps", &T::every_steps, "500", 0, kNoMax, "steps between checkpoints; 0: not by steps")),
       hot(number("every_minutes", &T::every_minutes, "0.0", 0, std::nullopt,
                  "minutes between checkpoints; 0: not by time")),
       hot(integer("keep_last", &T::keep_last, "2", 0, kNoMax, "number of newest checkpoints to keep; 0: keep all")),
       hot(integer("keep_every", &T::keep_every, "0", 0, kNoMax,
                   "never remove checkpoints at multiples of this many steps; 0: none")),
       choice("contents", &T::contents, CheckpointContents::kFull,
              "full: all that a resumed run needs; trained, the default with [adapter]: the same without the frozen "
              "parameters, which are read from model.path again; model_only: only parameters, which cannot be "
              "resumed"),
       choice("async", &T::async, AsyncSave::kOff,
              "true: continue while a checkpoint is written, until the next change of parameters; staged: copy "
              "to host memory first, and never wait for the write"),
       hot(choice("on_error", &T::on_error, OnSaveError::kStop, "if a save fails: stop, or continue and count it")),
       integer("bucket_mib", &T::bucket_mib, "16", 1, 65536,
               "size of each of the two buffers through which a save streams"),
       flag("self_test", &T::self_test, false,
            "before step 1, also write a small checkpoint, read it back and compare")});
}

TableRows export_table() {
  using T = Settings::Export;
  return table_rows<T>(
      {.name = "export", .slot = SlotForm::kOne, .kind = "format", .doc = "how the model is exported"},
      &Settings::exports,
      {plugin("safetensors", "the file format"),
       choice("when", &T::when, ExportWhen::kLast,
              "last: after the last step, into final/; every: also with each checkpoint"),
       choice("dtype", &T::dtype, DtypeChoice::kAuto, "auto: what the model directory says; fp32 for a new model"),
       flag("merge", &T::merge, false, "with [adapter]: export the model with the adapter merged into it")});
}

TableRows generate_table() {
  using T = Settings::Generate;
  return table_rows<T>(
      {.name = "generate",
       .doc = "settings of `chassis generate`, of [sample] and of [[eval.generate]]; where a key is left out, "
              "generation_config.json in model.path decides"},
      &Settings::generate,
      {integer("max_new_tokens", &T::max_new_tokens, "", 1, 1 << 24, "maximum number of new tokens; default 128"),
       number("temperature", &T::temperature, "", 0, 100, "sampling temperature; 0: greedy, the default"),
       number("top_p", &T::top_p, "", 0, 1,
              "sample from the smallest set of tokens with this total probability; default 1"),
       integer("top_k", &T::top_k, "", 0, 1 << 24, "sample from this many most probable tokens; 0: all, the default"),
       number("min_p", &T::min_p, "", 0, 1,
              "leave out tokens less probable than this fraction of the most probable one; default 0"),
       number("repetition_penalty", &T::repetition_penalty, "", 0.01, 100,
              "divides positive and multiplies negative scores of tokens that occurred (CTRL); default 1"),
       list("stop", &T::stop, "[]", "texts that end an answer; they are not shown"),
       integer("batch_size", &T::batch_size, "8", 1, 1 << 16,
               "how many prompts are answered at once; a prompt's answer does not depend on it"),
       flag("full_cache", &T::full_cache, std::nullopt,
            "cache all keys and values, also where they can be computed from fewer numbers, as in attention through "
            "latents: more memory, less work for each token; default: true on the CPU, false on other devices")});
}

TableRows sample_table() {
  using T = Settings::Sample;
  return table_rows<T>(
      {.name = "sample", .doc = "answers of the model during training, in the log and in samples.jsonl"},
      &Settings::sample,
      {list("prompts", &T::prompts, "[]", "prompts; conversations begin with them if train.task is sft"),
       integer("every_steps", &T::every_steps, "0", 0, kNoMax, "steps between samples; 0: only after the last step"),
       integer("max_new_tokens", &T::max_new_tokens, "64", 1, 1 << 24,
               "maximum number of new tokens for each prompt")});
}

TableRows log_table() {
  using T = Settings::Log;
  return table_rows<T>(
      {.name = "log",
       .slot = SlotForm::kList,
       .kind = "sink",
       .list_key = "sinks",
       .built_in = {"console", "jsonl"},
       .doc = "metrics and progress of a run"},
      &Settings::log,
      {integer(
           "every_steps", &T::every_steps, "1", 1, kNoMax,
           "steps between lines on the console, each the mean since the previous line; metrics.jsonl has every step"),
       list("sinks", &T::sinks, "[\"console\", \"jsonl\"]",
            "where metrics go: console, jsonl (metrics.jsonl in run.output_dir), or plugins, such as tensorboard; "
            "[log.NAME] has the options of one"),
       integers("trace", &T::trace, "[]", 1,
                "[first, last]: the steps of which each rank writes a trace, RUN/trace/rank-N.json; []: none")});
}

TableRows swap_table() {
  using T = Settings::Swap;
  return table_rows<T>(
      {.name = "swap", .doc = "a change while the run trains, planned before it starts; `chassis ctl` asks for others"},
      [](Settings& settings) -> SettingTables<T>& { return settings.swap; },
      {required(integer("at_step", &T::at_step, "", 1, kNoMax, "the change comes after this step")),
       required(table("set", &T::set, "",
                      "the keys that change, with their new values: { \"attention.plugin\" = \"sdpa\" }"))});
}

const std::vector<TableRows>& all_tables() {
  static const std::vector<TableRows> tables = {
      top_level_table(),  run_table(),           plugins_table(),    model_table(),     freeze_table(),
      tokenizer_table(),  data_table(),          data_train_table(), data_eval_table(), train_table(),
      eval_table(),       eval_generate_table(), precision_table(),  recompute_table(), objective_table(),
      reference_table(),  optimizer_table(),     schedule_table(),   mesh_table(),      parallel_table(),
      comm_table(),       attention_table(),     kernels_table(),    quant_table(),     adapter_table(),
      checkpoint_table(), export_table(),        generate_table(),   sample_table(),    log_table(),
      swap_table()};
  return tables;
}

}  // namespace
}  // namespace rows

const Schema& host_schema() {
  static const Schema schema = [] {
    Schema all;
    for (const rows::TableRows& table : rows::all_tables()) all.tables.push_back(table.spec);
    return all;
  }();
  return schema;
}

std::unique_ptr<const Settings> read_settings(const TomlValue& root, const std::string& file,
                                              std::shared_ptr<const Error> findings, std::vector<ReadKey>* read) {
  auto settings = std::make_unique<Settings>();
  const SettingsReader::Source source{root, file, std::move(findings), read};
  const SettingsReader in(source);
  for (const rows::TableRows& table : rows::all_tables()) table.read(in, *settings);
  return settings;
}

}  // namespace chassis

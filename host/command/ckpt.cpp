// `chassis ckpt`: lists, verifies, compares, exports, merges, quantizes and deletes checkpoints.
#include <cstdio>
#include <utility>

#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/base/output.hpp"
#include "host/base/printable.hpp"
#include "host/base/progress.hpp"
#include "host/base/units.hpp"
#include "host/checkpoint/inspect.hpp"
#include "host/command/command.hpp"
#include "host/command/json_document.hpp"
#include "host/config/choices.hpp"
#include "host/save/adapter_files.hpp"
#include "host/save/export.hpp"
#include "host/save/merge.hpp"
#include "host/save/quantize.hpp"
#include "host/save/weights.hpp"

namespace chassis {
namespace {

// The folder of checkpoints in `path`: a run directory, its checkpoints folder, or any folder with checkpoints. Throws
// if there are none.
std::string checkpoint_root(const std::string& path) {
  const std::string root = checkpoints_folder(path);
  if (list_checkpoints(root).empty()) throw no_checkpoint(path);
  return root;
}

// The checkpoint itself, or the newest one of a run.
std::string one_checkpoint(const std::string& path) {
  return is_checkpoint(path) ? path : newest_checkpoint(checkpoint_root(path))->path;
}

// The same, or a model directory without a manifest, such as one that save_pretrained wrote.
std::string one_model(const std::string& path) {
  const bool is_model = path_kind(path + "/config.json") != PathKind::kAbsent;
  return is_model && !is_run_directory(path) ? path : one_checkpoint(path);
}

int print(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) std::fprintf(output(), "%s\n", printable_message(line).c_str());
  return 0;
}

int list(const std::string& path, bool as_json) {
  const auto found = list_checkpoints(checkpoint_root(path));
  if (!as_json) return print(checkpoint_table(found));
  print_document("ckpt_ls", {{"checkpoints", checkpoint_table_json(found)}});
  return 0;
}

int info(const std::string& path, bool with_tensors, bool as_json) {
  if (!as_json) return print(describe_checkpoint(path, with_tensors));
  print_document("ckpt_info", checkpoint_json(path, with_tensors));
  return 0;
}

struct Verified {
  enum class State { kOk, kDamaged, kUnreadable, kSetAside, kGone };
  State state = State::kOk;
  std::string path;
  std::string why;      // the defect, if the contents were not read
  VerifyResult result;  // if the contents were read

  bool is_bad() const { return state == State::kDamaged || state == State::kUnreadable; }
};

Verified verify_one(const std::string& path) {
  ProgressBar bar("verifying " + path);
  VerifyResult result = verify_checkpoint(path, BucketPair(BucketPair::kUsualBytes),
                                          [&bar](uint64_t done, uint64_t total) { bar.update(done, total, "files"); });
  return {result.ok() ? Verified::State::kOk : Verified::State::kDamaged, path, "", std::move(result)};
}

// A run may delete the checkpoint meanwhile, because of checkpoint.keep_last.
Verified verify_unless_gone(const std::string& path) {
  const auto is_gone = [&] { return path_kind_nofollow(path) == PathKind::kAbsent; };
  Verified verified;
  try {
    verified = verify_one(path);
  } catch (const Error&) {
    if (!is_gone()) throw;
  }
  if (verified.result.num_files > 0 && (verified.result.ok() || !is_gone())) return verified;
  return {Verified::State::kGone, path, "", {}};
}

Verified verify(const CheckpointInfo& info) {
  if (info.set_aside) return {Verified::State::kSetAside, info.path, "", {}};
  if (!info.defect.empty()) return {Verified::State::kDamaged, info.path, info.defect, {}};
  if (!info.unreadable.empty()) return {Verified::State::kUnreadable, info.path, info.unreadable, {}};
  return verify_unless_gone(info.path);
}

void print(const Verified& verified) {
  constexpr const char* kWords[] = {"ok", "DAMAGED", "UNREADABLE", "set aside", "gone"};
  const VerifyResult& result = verified.result;
  const bool was_read = verified.state <= Verified::State::kDamaged && verified.why.empty();
  print(result.defects);
  std::fprintf(output(), "%s %s", kWords[static_cast<size_t>(verified.state)], printable(verified.path, 4096).c_str());
  if (was_read)
    std::fprintf(output(), ": %llu tensors, %s in %llu files", static_cast<unsigned long long>(result.num_tensors),
                 bytes_text(result.num_bytes).c_str(), static_cast<unsigned long long>(result.num_files));
  if (!verified.why.empty()) std::fprintf(output(), ": %s", printable(verified.why, 4096).c_str());
  std::fputs(verified.state == Verified::State::kGone ? ": deleted while it was verified\n" : "\n", output());
}

Json verified_json(const Verified& verified) {
  constexpr const char* kWords[] = {"ok", "damaged", "unreadable", "set_aside", "gone"};
  std::vector<std::string> defects = verified.result.defects;
  if (!verified.why.empty()) defects.push_back(verified.why);
  return {{"path", verified.path},
          {"state", kWords[static_cast<size_t>(verified.state)]},
          {"tensors", verified.result.num_tensors},
          {"bytes", verified.result.num_bytes},
          {"files", verified.result.num_files},
          {"defects", defects}};
}

int verify(const std::string& path, bool as_json) {
  bool is_ok = true;
  Json all = Json::array();
  const auto report = [&](const Verified& verified) {
    is_ok &= !verified.is_bad();
    if (as_json)
      all.push_back(verified_json(verified));
    else
      print(verified);
  };
  if (is_checkpoint(path)) {
    report(verify_one(path));
  } else {
    for (const CheckpointInfo& info : list_checkpoints(checkpoint_root(path))) report(verify(info));
  }
  if (as_json) print_document("ckpt_verify", {{"ok", is_ok}, {"checkpoints", std::move(all)}});
  return is_ok ? 0 : static_cast<int>(ExitCode::kStorage);
}

// Returns 0 if they are the same and 1 if not, as diff does.
int diff(const std::string& a, const std::string& b, bool as_json) {
  const CheckpointDiff diff = diff_checkpoints(one_checkpoint(a), one_checkpoint(b));
  const int code = diff.tensors.empty() ? 0 : 1;
  if (as_json) {
    print_document("ckpt_diff", diff_json(diff));
    return code;
  }
  std::vector<std::string> lines = {"- " + diff.first.title(), "+ " + diff.second.title()};
  for (const TensorDifference& tensor : diff.tensors) lines.push_back(tensor.line());
  print(lines);
  if (diff.tensors.empty())
    std::fprintf(output(), "the same tensors\n");
  else
    std::fprintf(output(), "tensors that differ: %zu\n", diff.tensors.size());
  return code;
}

// Throws if a run in progress holds the directory's lock. Verifies checkpoints that stay before deleting others.
int prune(const std::string& path, int64_t keep_last, int64_t keep_every, bool as_json) {
  const std::string root = checkpoint_root(path);
  const BucketPair buckets(BucketPair::kUsualBytes);
  const auto defect_of = [&](const CheckpointInfo& info) {
    const VerifyResult result = verify_checkpoint(info.path, buckets);
    return result.ok() ? std::string() : result.defects.front();
  };
  const std::vector<std::string> deleted = CheckpointRoot(root).prune(keep_last, keep_every, defect_of);
  if (as_json) {
    print_document("ckpt_prune",
                   {{"deleted", deleted}, {"checkpoints", checkpoint_table_json(list_checkpoints(root))}});
    return 0;
  }
  for (const std::string& name : deleted) std::fprintf(output(), "deleted %s\n", name.c_str());
  if (deleted.empty()) std::fprintf(output(), "nothing to delete\n");
  return list(root, /*as_json=*/false);
}

int print_saved(const char* verb, const SaveResult& saved, bool as_json) {
  if (as_json)
    print_document(verb, saved.json());
  else
    std::fprintf(output(), "%s\n", saved.line().c_str());
  return 0;
}

struct CkptArguments {
  std::string path, other;
  bool tensors = false, as_json = false;
  int64_t keep_last = 0, keep_every = 0;
  ExportRequest request;
  std::string adapter, quant;
  bool keep_quantized = false;
  std::vector<std::string> options;
};

constexpr const char* kQuantDoc = "the quant plugin; default: the only installed one";

void add_dtype_and_format(CLI::App& verb, ExportRequest& request, const std::string& dtype_doc) {
  const std::vector<std::string> names(kChoiceNames<DtypeChoice>.begin(), kChoiceNames<DtypeChoice>.end());
  verb.add_option("--dtype", request.dtype, dtype_doc)->check(CLI::IsMember(names));
  verb.add_option("--format", request.format, "a format plugin; default: that of [export]");
}

void add_out(CLI::App& verb, ExportRequest& request, const char* name) {
  verb.add_option(name, request.directory, "created if missing; replaced only if this program wrote it")
      ->type_name("FOLDER")
      ->required();
}

void add_export_options(CLI::App& verb, CkptArguments& given) {
  add_out(verb, given.request, "directory");
  add_dtype_and_format(verb, given.request, "auto: what the model's config says");
  verb.add_option("--base", given.request.base,
                  "a model directory whose tokenizer files are copied; default: those in the checkpoint")
      ->type_name("FOLDER");
  add_plugin_path(verb, given.request.plugin_path);
  verb.add_option("--quant", given.quant, kQuantDoc);
}

int export_one(const CkptArguments& given) {
  ExportRequest request = given.request;
  request.quant = given.quant;
  request.checkpoint = one_model(given.path);
  return print_saved("ckpt_export", export_checkpoint(request), given.as_json);
}

void add_merge_options(CLI::App& verb, CkptArguments& given) {
  add_out(verb, given.request, "--out");
  verb.add_option("--base", given.request.base, "the base model's directory; default: what PATH names")
      ->type_name("FOLDER");
  add_dtype_and_format(verb, given.request, "auto: what the model's config says");
  verb.add_option("--adapter", given.adapter, "the adapter plugin; default: peft_type in adapter_config.json");
  add_plugin_path(verb, given.request.plugin_path);
  verb.add_option("--quant", given.quant, kQuantDoc);
  verb.add_flag("--keep-quantized", given.keep_quantized,
                "of a quantized model: quantize the merged weights again, instead of writing values");
}

int merge_one(const CkptArguments& given) {
  const ExportRequest& request = given.request;
  const bool is_adapter = is_adapter_directory(given.path);
  const MergeRequest merge{.trained = is_adapter ? given.path : one_checkpoint(given.path),
                           .base = request.base,
                           .directory = request.directory,
                           .dtype = request.dtype,
                           .format = request.format,
                           .adapter = given.adapter,
                           .quant = given.quant,
                           .keep_quantized = given.keep_quantized,
                           .plugin_path = request.plugin_path};
  return print_saved("ckpt_merge", merge_checkpoint(merge), given.as_json);
}

void add_quantize_options(CLI::App& verb, CkptArguments& given) {
  add_out(verb, given.request, "--out");
  verb.add_option("--quant", given.quant, kQuantDoc);
  add_dtype_and_format(verb, given.request, "of the other weights; auto: what the model's config says");
  verb.add_option("options", given.options, "quant.KEY=VALUE: options of the plugin, as in [quant]")
      ->type_name("quant.KEY=VALUE");
  add_plugin_path(verb, given.request.plugin_path);
}

int quantize_one(const CkptArguments& given) {
  const ExportRequest& request = given.request;
  const QuantizeRequest quantize{.model = given.path,
                                 .directory = request.directory,
                                 .dtype = request.dtype,
                                 .format = request.format,
                                 .quant = given.quant,
                                 .options = given.options,
                                 .plugin_path = request.plugin_path};
  return print_saved("ckpt_quantize", quantize_model(quantize), given.as_json);
}

void add_prune_options(CLI::App& verb, CkptArguments& given) {
  verb.add_option("--keep-last", given.keep_last, "number of newest checkpoints to keep")
      ->required()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  verb.add_option("--keep-every", given.keep_every, "also keep checkpoints at multiples of this many steps")
      ->check(CLI::NonNegativeNumber);
}

}  // namespace

Verb add_ckpt(CLI::App& app) {
  app.require_subcommand(1);
  auto given = std::make_shared<CkptArguments>();
  const auto verb = [&](const char* name, const char* doc, const char* path_doc) {
    CLI::App* sub = app.add_subcommand(name, doc);
    sub->add_option("path", given->path, path_doc)->required()->type_name("PATH");
    add_json(*sub, given->as_json);
    return sub;
  };
  constexpr const char* kRunOrOne = "a checkpoint, or a run directory for its newest";

  CLI::App* list_verb = verb("ls", "list the checkpoints of a run, with sizes and validity", "a run directory");
  CLI::App* info_verb = verb("info", "describe a checkpoint", kRunOrOne);
  info_verb->add_flag("--tensors", given->tensors, "list every tensor, with shape and checksum");
  CLI::App* verify_verb =
      verb("verify", "read every byte and compare all checksums", "a run directory or a checkpoint");
  CLI::App* diff_verb =
      verb("diff", "compare the tensors of two checkpoints by name, shape and checksum; exit code 1 if they differ",
           kRunOrOne);
  diff_verb->add_option("other", given->other, kRunOrOne)->required()->type_name("PATH");
  CLI::App* export_verb = verb("export", "write a checkpoint as a model directory",
                               "a checkpoint, a run directory for its newest, or a model directory");
  add_export_options(*export_verb, *given);
  CLI::App* merge_verb = verb("merge", "write the model with what was trained on it: an adapter, or some parameters",
                              "a checkpoint, a run directory for its newest, or an adapter in PEFT's format");
  add_merge_options(*merge_verb, *given);
  CLI::App* quantize_verb = verb("quantize", "write a model with its linears in fewer bits", "a model directory");
  add_quantize_options(*quantize_verb, *given);
  CLI::App* prune_verb = verb("prune",
                              "delete older checkpoints of a run after verifying those that stay; never the latest, "
                              "and nothing that this program did not write",
                              "a run directory");
  add_prune_options(*prune_verb, *given);

  const auto import = add_ckpt_import(app);

  return [=]() -> int {
    if (const auto exit_code = import()) return *exit_code;
    if (list_verb->parsed()) return list(given->path, given->as_json);
    if (info_verb->parsed()) return info(one_checkpoint(given->path), given->tensors, given->as_json);
    if (verify_verb->parsed()) return verify(given->path, given->as_json);
    if (diff_verb->parsed()) return diff(given->path, given->other, given->as_json);
    if (prune_verb->parsed()) return prune(given->path, given->keep_last, given->keep_every, given->as_json);
    if (merge_verb->parsed()) return merge_one(*given);
    if (quantize_verb->parsed()) return quantize_one(*given);
    return export_one(*given);
  };
}

}  // namespace chassis

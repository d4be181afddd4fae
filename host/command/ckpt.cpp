// `chassis ckpt`: lists, verifies, compares, exports, merges, quantizes and deletes checkpoints.
#include <cstdio>

#include "host/base/file.hpp"
#include "host/base/output.hpp"
#include "host/base/printable.hpp"
#include "host/base/units.hpp"
#include "host/checkpoint/inspect.hpp"
#include "host/command/command.hpp"
#include "host/save/adapter_files.hpp"
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

// A checkpoint, or the newest of a run.
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

int list(const std::string& path) { return print(checkpoint_table(list_checkpoints(checkpoint_root(path)))); }

int report(const std::string& path, const VerifyResult& result) {
  print(result.defects);
  std::fprintf(output(), "%s %s: %llu tensors, %s in %llu files\n", result.ok() ? "ok" : "DAMAGED",
               printable(path, 4096).c_str(), static_cast<unsigned long long>(result.num_tensors),
               bytes_text(result.num_bytes).c_str(), static_cast<unsigned long long>(result.num_files));
  return result.ok() ? 0 : static_cast<int>(ExitCode::kStorage);
}

// A run may delete the checkpoint at the same time, as checkpoint.keep_last says.
int verify_unless_gone(const std::string& path) {
  const auto is_gone = [&] { return path_kind_nofollow(path) == PathKind::kAbsent; };
  VerifyResult result;
  try {
    result = verify_checkpoint(path, BucketPair(BucketPair::kUsualBytes));
  } catch (const Error&) {
    if (!is_gone()) throw;
  }
  if (result.num_files > 0 && (result.ok() || !is_gone())) return report(path, result);
  std::fprintf(output(), "gone %s: deleted while it was verified\n", printable(path, 4096).c_str());
  return 0;
}

int verify(const std::string& path) {
  if (is_checkpoint(path)) return report(path, verify_checkpoint(path, BucketPair(BucketPair::kUsualBytes)));
  int code = 0;
  const auto found = list_checkpoints(checkpoint_root(path));
  for (const CheckpointInfo& info : found) {
    if (info.set_aside) {
      std::fprintf(output(), "set aside %s\n", printable(info.path, 4096).c_str());
      continue;
    }
    if (const std::string& why = info.defect.empty() ? info.unreadable : info.defect; !why.empty()) {
      std::fprintf(output(), "%s %s: %s\n", info.defect.empty() ? "UNREADABLE" : "DAMAGED",
                   printable(info.path, 4096).c_str(), printable(why, 4096).c_str());
      code = static_cast<int>(ExitCode::kStorage);
      continue;
    }
    if (const int one = verify_unless_gone(info.path)) code = one;
  }
  return code;
}

// Returns 0 if they are the same and 1 if not, as diff does.
int diff(const std::string& a, const std::string& b) {
  const std::string path_a = one_checkpoint(a), path_b = one_checkpoint(b);
  const std::vector<std::string> lines = diff_checkpoints(path_a, path_b);
  print({"- " + checkpoint_title(path_a), "+ " + checkpoint_title(path_b)});
  print(lines);
  if (lines.empty())
    std::fprintf(output(), "the same tensors\n");
  else
    std::fprintf(output(), "tensors that differ: %zu\n", lines.size());
  return lines.empty() ? 0 : 1;
}

// The lock of the directory refuses a run in progress. Checkpoints that stay are verified before others are deleted.
int prune(const std::string& path, int64_t keep_last, int64_t keep_every) {
  const std::string root = checkpoint_root(path);
  const BucketPair buckets(BucketPair::kUsualBytes);
  const auto defect_of = [&](const CheckpointInfo& info) {
    const VerifyResult result = verify_checkpoint(info.path, buckets);
    return result.ok() ? std::string() : result.defects.front();
  };
  const std::vector<std::string> deleted = CheckpointRoot(root).prune(keep_last, keep_every, defect_of);
  for (const std::string& name : deleted) std::fprintf(output(), "deleted %s\n", name.c_str());
  if (deleted.empty()) std::fprintf(output(), "nothing to delete\n");
  return list(root);
}

}  // namespace

Verb add_ckpt(CLI::App& app) {
  app.require_subcommand(1);
  struct Arguments {
    std::string path, other;
    bool tensors = false;
    int64_t keep_last = 0, keep_every = 0;
    ExportRequest request;
    std::string adapter, quant;
    bool keep_quantized = false;
    std::vector<std::string> options;
  };
  auto given = std::make_shared<Arguments>();
  const auto verb = [&](const char* name, const char* doc, const char* path_doc) {
    CLI::App* sub = app.add_subcommand(name, doc);
    sub->add_option("path", given->path, path_doc)->required();
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
  diff_verb->add_option("other", given->other, kRunOrOne)->required();
  CLI::App* export_verb = verb("export", "write a checkpoint as a model directory",
                               "a checkpoint, a run directory for its newest, or a model directory");
  export_verb
      ->add_option("directory", given->request.directory, "created if missing; replaced only if this program wrote it")
      ->required();
  export_verb->add_option("--dtype", given->request.dtype, "auto: what the model's config says")
      ->check(CLI::IsMember({"auto", "fp32", "bf16", "fp16"}));
  export_verb->add_option("--format", given->request.format, "a format plugin; default: that of [export]");
  export_verb->add_option("--base", given->request.base,
                          "a model directory whose tokenizer files are copied; default: those in the checkpoint");
  add_plugin_path(*export_verb, given->request.plugin_path);
  CLI::App* merge_verb = verb("merge", "write the model with what was trained on it: an adapter, or some parameters",
                              "a checkpoint, a run directory for its newest, or an adapter in PEFT's files");
  merge_verb
      ->add_option("--out", given->request.directory, "created if missing; replaced only if this program wrote it")
      ->required();
  merge_verb->add_option("--base", given->request.base, "the model directory beneath; default: what PATH names");
  merge_verb->add_option("--dtype", given->request.dtype, "auto: what the model's config says")
      ->check(CLI::IsMember({"auto", "fp32", "bf16", "fp16"}));
  merge_verb->add_option("--format", given->request.format, "a format plugin; default: that of [export]");
  merge_verb->add_option("--adapter", given->adapter, "the adapter plugin; default: peft_type in adapter_config.json");
  add_plugin_path(*merge_verb, given->request.plugin_path);
  constexpr const char* kQuantDoc = "the quant plugin; default: the only installed one";
  for (CLI::App* app : {export_verb, merge_verb}) app->add_option("--quant", given->quant, kQuantDoc);
  merge_verb->add_flag("--keep-quantized", given->keep_quantized,
                       "of a quantized model: quantize the merged weights again, instead of writing values");
  CLI::App* quantize_verb = verb("quantize", "write a model with its linears in fewer bits", "a model directory");
  quantize_verb
      ->add_option("--out", given->request.directory, "created if missing; replaced only if this program wrote it")
      ->required();
  quantize_verb->add_option("--quant", given->quant, kQuantDoc);
  quantize_verb->add_option("--dtype", given->request.dtype, "of the other weights; auto: what the model's config says")
      ->check(CLI::IsMember({"auto", "fp32", "bf16", "fp16"}));
  quantize_verb->add_option("--format", given->request.format, "a format plugin; default: that of [export]");
  quantize_verb->add_option("options", given->options, "quant.KEY=VALUE: options of the plugin, as in [quant]");
  add_plugin_path(*quantize_verb, given->request.plugin_path);
  CLI::App* prune_verb = verb(
      "prune",
      "delete older checkpoints of a run after those that stay are verified; never the latest, and nothing that this "
      "program did not write",
      "a run directory");
  prune_verb->add_option("--keep-last", given->keep_last, "number of newest checkpoints to keep")
      ->required()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  prune_verb->add_option("--keep-every", given->keep_every, "also keep checkpoints at multiples of this many steps")
      ->check(CLI::NonNegativeNumber);

  const auto import = add_ckpt_import(app);

  return [=]() -> int {
    if (const auto exit_code = import()) return *exit_code;
    if (list_verb->parsed()) return list(given->path);
    if (info_verb->parsed()) return print(describe_checkpoint(one_checkpoint(given->path), given->tensors));
    if (verify_verb->parsed()) return verify(given->path);
    if (diff_verb->parsed()) return diff(given->path, given->other);
    if (prune_verb->parsed()) return prune(given->path, given->keep_last, given->keep_every);
    if (merge_verb->parsed()) {
      const ExportRequest& request = given->request;
      const bool is_adapter = is_adapter_directory(given->path);
      const MergeRequest merge{.trained = is_adapter ? given->path : one_checkpoint(given->path),
                               .base = request.base,
                               .directory = request.directory,
                               .dtype = request.dtype,
                               .format = request.format,
                               .adapter = given->adapter,
                               .quant = given->quant,
                               .keep_quantized = given->keep_quantized,
                               .plugin_path = request.plugin_path};
      std::fprintf(output(), "%s\n", merge_checkpoint(merge).line().c_str());
      return 0;
    }
    if (quantize_verb->parsed()) {
      const ExportRequest& request = given->request;
      const QuantizeRequest quantize{.model = given->path,
                                     .directory = request.directory,
                                     .dtype = request.dtype,
                                     .format = request.format,
                                     .quant = given->quant,
                                     .options = given->options,
                                     .plugin_path = request.plugin_path};
      std::fprintf(output(), "%s\n", quantize_model(quantize).line().c_str());
      return 0;
    }
    ExportRequest request = given->request;
    request.quant = given->quant;
    request.checkpoint = one_model(given->path);
    std::fprintf(output(), "%s\n", export_checkpoint(request).line().c_str());
    return 0;
  };
}

}  // namespace chassis

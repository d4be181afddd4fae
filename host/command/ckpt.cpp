// `chassis ckpt`: looks at checkpoints from outside, hands them to others, and tidies up.
#include <cstdio>

#include "host/base/output.hpp"
#include "host/base/printable.hpp"
#include "host/base/units.hpp"
#include "host/checkpoint/inspect.hpp"
#include "host/command/ckpt_import.hpp"
#include "host/command/command.hpp"
#include "host/save/weights.hpp"

namespace chassis {
namespace {

constexpr uint64_t kBucketBytes = 16 << 20;

// A run directory, its checkpoints folder, or any folder with checkpoints; it holds one.
std::string checkpoint_root(const std::string& path) {
  const std::string root = folder_of_checkpoints(path);
  if (list_checkpoints(root).empty()) throw no_checkpoint(path);
  return root;
}

// A checkpoint, or the newest of a run.
std::string one_checkpoint(const std::string& path) {
  return is_checkpoint(path) ? path : newest_checkpoint(checkpoint_root(path))->path;
}

int print(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) std::fprintf(output(), "%s\n", printable_message(line).c_str());
  return 0;
}

int list(const std::string& path) { return print(checkpoint_table(list_checkpoints(checkpoint_root(path)))); }

int tell(const std::string& path, const VerifyResult& result) {
  print(result.defects);
  std::fprintf(output(), "%s %s: %llu tensors, %s in %llu files\n", result.ok() ? "ok" : "DAMAGED",
               printable(path, 4096).c_str(), static_cast<unsigned long long>(result.num_tensors),
               bytes_text(result.num_bytes).c_str(), static_cast<unsigned long long>(result.num_files));
  return result.ok() ? 0 : static_cast<int>(ExitCode::kStorage);
}

// Beside a run, which deletes what checkpoint.keep_last does not keep.
int verify_unless_gone(const std::string& path) {
  const auto is_gone = [&] { return link_kind(path) == PathKind::kAbsent; };
  VerifyResult result;
  try {
    result = verify_checkpoint(path, BucketPair(kBucketBytes));
  } catch (const Error&) {
    if (!is_gone()) throw;
  }
  if (result.num_files > 0 && (result.ok() || !is_gone())) return tell(path, result);
  std::fprintf(output(), "gone %s: deleted while it was verified\n", printable(path, 4096).c_str());
  return 0;
}

int verify(const std::string& path) {
  if (is_checkpoint(path)) return tell(path, verify_checkpoint(path, BucketPair(kBucketBytes)));
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

// 0 if they are the same, 1 if not, as diff does.
int diff(const std::string& a, const std::string& b) {
  const std::string path_a = one_checkpoint(a), path_b = one_checkpoint(b);
  const std::vector<std::string> lines = diff_checkpoints(path_a, path_b);
  print({"- " + title_of_checkpoint(path_a), "+ " + title_of_checkpoint(path_b)});
  print(lines);
  if (lines.empty()) std::fprintf(output(), "the same tensors\n");
  else std::fprintf(output(), "tensors that differ: %zu\n", lines.size());
  return lines.empty() ? 0 : 1;
}

// The lock of the directory keeps it away from a run that is going on. Those that stay are read before others are
// deleted.
int prune(const std::string& path, int64_t keep_last, int64_t keep_every) {
  const std::string root = checkpoint_root(path);
  const BucketPair buckets(kBucketBytes);
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
  };
  auto given = std::make_shared<Arguments>();
  const auto verb = [&](const char* name, const char* doc, const char* path_doc) {
    CLI::App* sub = app.add_subcommand(name, doc);
    sub->add_option("path", given->path, path_doc)->required();
    return sub;
  };
  constexpr const char* kRunOrOne = "a checkpoint, or a run directory for its newest";

  CLI::App* ls = verb("ls", "checkpoints of a run, with sizes and validity", "a run directory");
  CLI::App* info = verb("info", "what is in a checkpoint", kRunOrOne);
  info->add_flag("--tensors", given->tensors, "every tensor, with shape and checksum");
  CLI::App* check = verb("verify", "read every byte and compare all checksums", "a run directory or a checkpoint");
  CLI::App* compare =
      verb("diff", "tensors of two checkpoints by name, shape and checksum; exit code 1 if they differ", kRunOrOne);
  compare->add_option("other", given->other, kRunOrOne)->required();
  CLI::App* hand_over = verb("export", "write a checkpoint as a model directory for others", kRunOrOne);
  hand_over
      ->add_option("directory", given->request.directory, "created; replaced only if it is a model directory of ours")
      ->required();
  hand_over->add_option("--dtype", given->request.dtype, "auto: what the model's config says")
      ->check(CLI::IsMember({"auto", "fp32", "bf16", "fp16"}));
  hand_over->add_option("--format", given->request.format, "a format plugin; default: as [export] plugin is");
  hand_over->add_option("--base", given->request.base,
                        "a model directory whose tokenizer files are taken along; default: those in the checkpoint");
  add_plugin_path(*hand_over, given->request.plugin_path);
  CLI::App* tidy =
      verb("prune",
           "delete older checkpoints of a run once those that stay are verified; never the latest, nothing that this "
           "program did not write",
           "a run directory");
  tidy->add_option("--keep-last", given->keep_last, "so many stay")
      ->required()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  tidy->add_option("--keep-every", given->keep_every, "those of every so many steps stay too")
      ->check(CLI::NonNegativeNumber);

  const auto import = add_ckpt_import(app);

  return [=]() -> int {
    if (const auto exit_code = import()) return *exit_code;
    if (ls->parsed()) return list(given->path);
    if (info->parsed()) return print(describe_checkpoint(one_checkpoint(given->path), given->tensors));
    if (check->parsed()) return verify(given->path);
    if (compare->parsed()) return diff(given->path, given->other);
    if (tidy->parsed()) return prune(given->path, given->keep_last, given->keep_every);
    ExportRequest request = given->request;
    request.checkpoint = one_checkpoint(given->path);
    std::fprintf(output(), "%s\n", export_checkpoint(request).line().c_str());
    return 0;
  };
}

}  // namespace chassis

#include "host/session/run_data.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "host/base/file.hpp"
#include "host/data/document_reader.hpp"
#include "host/data/tokenizer_files.hpp"
#include "host/session/fields.hpp"
#include "host/session/progress.hpp"

namespace chassis {
namespace {

namespace fs = std::filesystem;

PrepareCallback progress_of(ProgressBar& bar, const std::function<void()>& poll) {
  return [&bar, &poll](const PrepareProgress& p) {
    if (poll) poll();
    bar.update(p.num_bytes_done, p.num_bytes, p.path);
  };
}

DataSetConfig data_set(const DataNeeds& needs, const std::string& key) {
  const Config& config = needs.config;
  DataSetConfig set;
  set.path = config.get_string(key + ".path");
  set.format = data_format_from_text(config.get_string(key + ".format"));
  set.documents = document_split_from_text(config.get_string(key + ".documents"));
  if (config.has(key + ".weight")) set.weight = config.get_double(key + ".weight");
  set.key = key;
  set.where = config.position(key + ".path");
  if (set.format == DataFormat::kText && !needs.tokenizer) {
    const bool model_has_one = config.has("model.path") && !tokenizer_files(config.get_string("model.path")).empty();
    throw Error(ExitCode::kConfig, set.where, key + " is text, but there is no tokenizer")
        .hint(model_has_one
                  ? "tokenise it with the tokenizer of " + config.get_string("model.path") +
                        ", and give format = \"tokens\""
                  : "set tokenizer.plugin (`chassis plugins list` shows the tokenizers), or give format = \"tokens\"");
  }
  return set;
}

DataConfig data_config(const DataNeeds& needs) {
  const Config& config = needs.config;
  DataConfig data;
  data.packing = packing_from_text(config.get_string("data.packing"));
  data.overflow = overflow_from_text(config.get_string("data.overflow"));
  data.shuffle = config.get_bool("data.shuffle");
  data.seed = static_cast<uint64_t>(config.get_int("run.seed"));
  data.seq_len = config.get_int("train.seq_len");
  data.vocab_size = vocab_size(needs.program);
  data.fields = field_names(needs.program);
  data.pad_id = needs.tokenizer && needs.tokenizer->pad_id() >= 0 ? needs.tokenizer->pad_id() : 0;
  data.cache_dir = config.get_string("data.cache_dir");
  data.prefetch = config.get_bool("data.prefetch");
  data.first_on_machine = needs.first_on_machine;
  return data;
}

}  // namespace

std::unique_ptr<TrainData> open_train_data(const DataNeeds& needs, const std::function<void()>& poll) {
  const Config& config = needs.config;
  DataConfig data = data_config(needs);
  for (size_t i = 0; i < config.count("data.train"); ++i)
    data.train.push_back(data_set(needs, "data.train." + std::to_string(i)));
  if (data.train.empty())
    throw Error(ExitCode::kConfig, config.position("data"), "there is no training data")
        .hint("add [[data.train]] with path = \"…\"");
  ProgressBar bar("preparing data");
  return std::make_unique<TrainData>(data, needs.tokenizer, progress_of(bar, poll), poll);
}

std::vector<std::unique_ptr<EvalData>> open_eval_data(const DataNeeds& needs, const std::function<void()>& poll) {
  std::vector<std::unique_ptr<EvalData>> sets;
  const Config& config = needs.config;
  const DataConfig data = data_config(needs);
  ProgressBar bar("preparing data");
  for (size_t i = 0; i < config.count("data.eval"); ++i)
    sets.push_back(std::make_unique<EvalData>(data_set(needs, "data.eval." + std::to_string(i)), data, needs.tokenizer,
                                              progress_of(bar, poll), poll));
  return sets;
}

void find_data(const DataNeeds& needs) {
  const Config& config = needs.config;
  for (const std::string kind : {"train", "eval"})
    for (size_t i = 0; i < config.count("data." + kind); ++i) {
      const DataSetConfig set = data_set(needs, "data." + kind + "." + std::to_string(i));
      for (const std::string& file : data_files(set)) {
        try {
          File::open_read(file);
        } catch (const Error& error) {
          throw data_set_error(set, error.message()).hint(error.hint_text());
        }
      }
    }
}

void check_folders(const Config& config) {
  for (const char* key : {"run.output_dir", "data.cache_dir"}) {
    std::error_code error;
    fs::path at = fs::absolute(config.get_string(key), error).lexically_normal();
    const auto refuse = [&](const std::string& what) {
      const std::string text = std::string(key) + " = \"" + config.get_string(key) + "\": " + what;
      return Error(ExitCode::kStorage, config.position(key), text).hint("name a folder that you may write to");
    };
    PathKind kind = PathKind::kAbsent;
    try {
      while ((kind = path_kind(at.string())) == PathKind::kAbsent && at.has_relative_path()) at = at.parent_path();
    } catch (const Error& cause) {
      throw refuse(cause.message());
    }
    if (kind != PathKind::kDirectory) throw refuse(at.string() + " is not a folder");
    if (::faccessat(AT_FDCWD, at.c_str(), W_OK | X_OK, AT_EACCESS) != 0)
      throw refuse("cannot write into " + at.string() + ": " + std::generic_category().message(errno));
  }
}

std::string eval_name(const Config& config, size_t index) {
  const std::string key = "data.eval." + std::to_string(index);
  if (config.has(key + ".name")) return config.get_string(key + ".name");
  if (config.count("data.eval") == 1) return "eval";
  return fs::path(config.get_string(key + ".path")).stem().string();
}

}  // namespace chassis

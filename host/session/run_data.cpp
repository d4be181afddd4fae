// Converts the settings of [data] into the options of data sets, and checks files and folders.
#include "host/session/run_data.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <numeric>
#include <system_error>

#include "host/base/file.hpp"
#include "host/base/log.hpp"
#include "host/base/progress.hpp"
#include "host/compile/row_pieces.hpp"
#include "host/config/eval_sets.hpp"
#include "host/config/task_table.hpp"
#include "host/data/chat_renderer.hpp"
#include "host/data/data_files.hpp"
#include "host/data/row_names.hpp"
#include "host/data/row_sample.hpp"
#include "host/data/tokenizer_files.hpp"
#include "host/service/memory.hpp"
#include "host/session/fields.hpp"
#include "host/session/target.hpp"
#include "host/text/run_chat.hpp"

namespace chassis {
namespace {

namespace fs = std::filesystem;

PrepareCallback progress_of(ProgressBar& bar, const std::function<void()>& poll) {
  return [&bar, &poll](const PrepareProgress& p) {
    if (poll) poll();
    bar.update(p.num_bytes_done, p.num_bytes, p.path, p.num_rows);
  };
}

// A table such as columns = { messages = "dialog" }.
std::map<std::string, std::string> renamed_names(DataFormat format, std::string_view option,
                                                 const Setting<TomlValue>& table) {
  std::map<std::string, std::string> renamed;
  const auto at = [](const SourcePosition& where, const std::string& key, const Error& cause) {
    return Error(ExitCode::kConfig, where, key + ": " + cause.message()).hint(cause.hint_text());
  };
  if (!table.is_set()) return renamed;
  for (const TomlValue& value : table->children) {
    const SourcePosition where = table.where_of(value.name);
    if (value.type != ValueType::kString) {
      throw Error(ExitCode::kConfig, where,
                  table.key_of(value.name) + " must be a string, not " + type_text(value.type));
    }
    try {
      require_names(format, option, {{value.name, value.string}});
    } catch (const Error& error) {
      throw at(where, table.key_of(value.name), error);
    }
    renamed[value.name] = value.string;
  }
  try {
    require_names(format, option, renamed);
  } catch (const Error& error) {
    throw at(table.where(), table.key(), error);
  }
  return renamed;
}

DataSetConfig data_set(const DataNeeds& needs, const Settings::DataSet& settings) {
  DataSetConfig set;
  set.path = settings.path;
  set.format = settings.format;
  set.documents = settings.documents;
  set.split_pairs = settings.split_pairs;
  set.reads_margins = !needs.sequences || needs.sequences->margins;
  set.columns = renamed_names(set.format, "columns", settings.columns);
  set.tags = renamed_names(set.format, "tags", settings.tags);
  set.classes = needs.settings.data.classes;
  set.key = settings.key();
  set.where = settings.path.where();
  set.row_files = needs.row_files;
  if (set.format != DataFormat::kTokens && !needs.tokenizer) {
    const Setting<std::string>& model = needs.settings.model.path;
    const bool model_has_one = model.is_set() && !tokenizer_files(model).empty();
    throw config_error(settings.path, set.key + " is text, but there is no tokenizer")
        .hint(model_has_one
                  ? "tokenise it with the tokenizer of " + *model + ", and set format = \"tokens\""
                  : "set tokenizer.plugin (`chassis plugins list` shows the tokenizers), or set format = \"tokens\"");
  }
  return set;
}

// Throws, before data is read, if the template does not fit the tokenizer.
void require_template(const DataNeeds& needs, const ChatConfig& chat) {
  if (needs.tokenizer == nullptr) return;
  bool has_chats = false;
  const auto look = [&](const Settings::DataSet& set) {
    const DataFormat format = set.format;
    has_chats |= format == DataFormat::kMessages || format == DataFormat::kShareGpt || format == DataFormat::kAlpaca ||
                 format == DataFormat::kPreference || format == DataFormat::kLabelled ||
                 format == DataFormat::kRollouts;
  };
  for (const Settings::TrainSet& set : needs.settings.data.train) look(set);
  for (const Settings::EvalSet& set : needs.settings.data.eval) look(set);
  if (!has_chats) return;
  const Setting<std::string>& setting = needs.settings.data.template_name;
  try {
    const ChatRenderer renderer(*needs.tokenizer, chat);
    std::vector<int32_t> ids;  // encode() refuses ids that the model's vocabulary does not have
    if (!renderer.generation_prompt().empty()) needs.tokenizer->encode(renderer.generation_prompt(), ids);
  } catch (const Error& error) {
    throw error_at(setting, error);
  }
}

}  // namespace

int64_t multiple_of_axes(const ProgramLayout* layout) {
  int64_t ways = 1;
  if (layout != nullptr)
    for (const LayoutAxis& axis : layout->axes) ways *= axis.size * (axis.is_zigzag ? kRowPieces : 1);
  constexpr int64_t kPositions = 16;
  return std::lcm(kPositions, ways);
}

int64_t length_multiple(const DataNeeds& needs) {
  const Settings::Data& settings = needs.settings.data;
  const Packing packing = settings.packing.is_set() ? *settings.packing : default_packing(needs.settings.train.task);
  const bool may_vary =
      packing == Packing::kNone && !settings.pad_to_seq_len && op_that_may_read_padding(needs.program).empty();
  return may_vary ? multiple_of_axes(needs.layout) : 0;
}

DataConfig data_config(const DataNeeds& needs) {
  const Settings::Data& settings = needs.settings.data;
  DataConfig data;
  data.supervised = spec_of(needs.settings.train.task).has_answers;
  data.packing = settings.packing.is_set() ? *settings.packing : default_packing(needs.settings.train.task);
  data.overflow = settings.overflow.is_set() ? *settings.overflow : default_overflow(needs.settings.train.task);
  data.shuffle = settings.shuffle;
  data.seed = static_cast<uint64_t>(*needs.settings.run.seed);
  data.seq_len = needs.settings.train.seq_len;
  data.vocab_size = vocab_size(needs.program);
  data.fields = field_names(needs.program);
  data.dims = largest_sizes(needs.program, 0, 0);  // batches give B and T
  const int32_t pad_id = needs.tokenizer ? needs.tokenizer->pad_id() : -1;
  data.pad_id = pad_id >= 0 && pad_id < data.vocab_size ? pad_id : 0;
  data.length_multiple = length_multiple(needs);
  data.cache_dir = settings.cache_dir;
  data.prefetch = settings.prefetch;
  data.max_drop_ratio = settings.max_drop_ratio;
  data.sequences = needs.sequences;
  data.skips_refused = settings.on_refused == OnRefused::kSkip;
  data.num_threads = std::min<int64_t>(needs.settings.run.threads, max_rank_threads());
  data.first_on_machine = needs.first_on_machine;
  if (data.supervised) {
    data.chat = chat_config(needs.settings, needs.tokenizer);
    require_template(needs, data.chat);
  }
  for (const Settings::TrainSet& set : settings.train) {
    data.train.push_back(data_set(needs, set));
    if (set.weight.is_set()) data.train.back().weight = *set.weight;
    data.train.back().part_begin = settings.eval_fraction;
  }
  return data;
}

std::vector<DataSetConfig> eval_set_configs(const DataNeeds& needs) {
  const Settings::Data& settings = needs.settings.data;
  std::vector<DataSetConfig> sets;
  for (const Settings::EvalSet& set : settings.eval) sets.push_back(data_set(needs, set));
  if (settings.eval_fraction > 0.0) {
    for (const Settings::TrainSet& set : settings.train) {
      sets.push_back(data_set(needs, set));
      sets.back().part_end = settings.eval_fraction;
    }
  }
  return sets;
}

std::unique_ptr<TrainData> open_train_data(const DataNeeds& needs, const std::function<void()>& poll) {
  return open_train_data(needs, data_config(needs), poll);
}

std::unique_ptr<TrainData> open_train_data(const DataNeeds& needs, const DataConfig& data,
                                           const std::function<void()>& poll) {
  if (data.train.empty())
    throw config_error(needs.settings.data, "there is no training data").hint("add [[data.train]] with path = \"…\"");
  if (data.length_multiple != 0) set_memory_sizes_vary(true);
  ProgressBar bar("preparing data");
  return std::make_unique<TrainData>(data, needs.tokenizer, progress_of(bar, poll), poll);
}

std::vector<std::unique_ptr<EvalData>> open_eval_data(const DataNeeds& needs, const std::function<void()>& poll) {
  std::vector<std::unique_ptr<EvalData>> sets;
  const DataConfig data = data_config(needs);
  if (data.length_multiple != 0) set_memory_sizes_vary(true);
  ProgressBar bar("preparing data");
  for (const DataSetConfig& set : eval_set_configs(needs)) {
    sets.push_back(std::make_unique<EvalData>(set, data, needs.tokenizer, progress_of(bar, poll), poll));
  }
  return sets;
}

std::vector<std::string> data_source_files(const DataNeeds& needs) {
  std::vector<std::string> files;
  const auto add = [&](const Settings::DataSet& set) {
    for (std::string& file : data_files(data_set(needs, set))) files.push_back(std::move(file));
  };
  for (const Settings::TrainSet& set : needs.settings.data.train) add(set);
  for (const Settings::EvalSet& set : needs.settings.data.eval) add(set);
  return files;
}

std::string op_that_may_read_padding(const Program& program) {
  for (const BlockType& block : program.blocks)
    if (const Op* op = block.op_over_positions()) return op->id.text();
  return "";
}

void find_data(const DataNeeds& needs) {
  const auto find = [&](const Settings::DataSet& settings) {
    const DataSetConfig set = data_set(needs, settings);
    for (const std::string& file : data_files(set)) {
      try {
        File::open_read(file);
      } catch (const Error& error) {
        throw data_set_error(set, error.message()).hint(error.hint_text());
      }
    }
  };
  for (const Settings::TrainSet& set : needs.settings.data.train) find(set);
  for (const Settings::EvalSet& set : needs.settings.data.eval) find(set);
}

void try_first_rows(const DataNeeds& needs) {
  const DataConfig data = data_config(needs);
  const auto try_set = [&](const Settings::DataSet& settings) {
    const DataSetConfig set = data_set(needs, settings);
    const bool is_text = set.format == DataFormat::kText;
    const RowSample sample = sample_rows(set, data, needs.tokenizer, {.rows = 1, .is_encoded = !is_text});
    for (const auto& [what, times] : sample.changes)
      counted_warning(fmt::format("first row {}: {}", set.path, what),
                      fmt::format("{}: in the first row, {}", set.path, what), times);
  };
  for (const Settings::TrainSet& set : needs.settings.data.train) try_set(set);
  for (const Settings::EvalSet& set : needs.settings.data.eval) try_set(set);
}

void check_folders(const Settings& settings) {
  for (const Setting<std::string>* folder : {&settings.run.output_dir, &settings.data.cache_dir}) {
    std::error_code error;
    fs::path at = fs::absolute(**folder, error).lexically_normal();
    const auto refuse = [&](const std::string& what) {
      const std::string text = folder->key() + " = \"" + **folder + "\": " + what;
      return Error(ExitCode::kStorage, folder->where(), text).hint("name a folder that you may write to");
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

std::string eval_name(const Settings::Data& data, size_t index) { return eval_set_names(data).at(index); }

}  // namespace chassis

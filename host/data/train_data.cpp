// A step is a function of the cursor, so saving, resuming and prefetching need nothing else.
#include "host/data/train_data.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "host/base/error.hpp"
#include "host/base/hash.hpp"
#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/base/printable.hpp"
#include "host/base/thread.hpp"
#include "host/data/data_files.hpp"

namespace chassis {
namespace {

constexpr int kCursorVersion = 1;
constexpr size_t kMaxListedFiles = 100;

// The weights, or the sizes of the sets if there are none.
std::vector<double> shares_of(const std::vector<RowSource>& sets) {
  std::vector<double> shares;
  for (const RowSource& set : sets) {
    const DataSetConfig& config = set.config();
    if (config.weight.has_value() != sets.front().config().weight.has_value()) {
      throw data_set_error(
          config, fmt::format("has {} weight, unlike {}", config.weight ? "a" : "no", sets.front().config().key))
          .hint("give a weight to every set, or to none: they are then mixed by size");
    }
    if (config.weight && !(*config.weight > 0 && std::isfinite(*config.weight))) {
      throw data_set_error(config, fmt::format("weight = {} is not a positive number", *config.weight));
    }
    shares.push_back(config.weight.value_or(set.num_rows()));
  }
  return shares;
}

// nullopt if the value is NaN or exceeds 64 bits.
std::optional<int64_t> to_int64(double whole) {
  if (!(whole >= -0x1p63 && whole < 0x1p63)) return std::nullopt;
  return static_cast<int64_t>(whole);
}

}  // namespace

void count_long_documents(const DataSetConfig& config, int64_t seq_len, uint64_t num_truncated, uint64_t num_dropped) {
  if (num_truncated > 0) {
    counted_warning("data.truncated " + config.path,
                    fmt::format("{}: documents are cut to seq_len {}", config.path, seq_len), num_truncated);
  }
  if (num_dropped > 0) {
    counted_warning("data.dropped " + config.path,
                    fmt::format("{}: documents longer than seq_len {} are dropped", config.path, seq_len), num_dropped);
  }
}

TrainData::TrainData(const DataConfig& config, const Tokenizer* tokenizer, const PrepareCallback& progress,
                     const std::function<void()>& poll)
    : config_(config),
      lengths_(config.seq_len, config.length_multiple),
      tokenizer_fingerprint_(tokenizer ? tokenizer->fingerprint() : "") {
  if (config_.train.empty()) {
    throw config_error("there is no training data").hint("add a [[data.train]] table with a path");
  }
  if (config_.seq_len <= 0) {
    throw config_error(fmt::format("seq_len is {}; it must be at least 1", config_.seq_len));
  }
  for (const DataSetConfig& set : config_.train) {
    RowOptions options;
    options.packing = config_.packing;
    options.overflow = config_.overflow;
    options.seq_len = config_.seq_len;
    options.shuffle = config_.shuffle;
    options.seed = config_.seed;
    options.stream = sets_.size();
    options.max_drop_ratio = config_.max_drop_ratio;
    const PrepareOptions prepare{config_.cache_dir, config_.vocab_size, progress, poll, config_.first_on_machine,
                                 &config_};
    sets_.emplace_back(prepare_data_set(set, tokenizer, prepare), options, set, poll);
    num_rows_per_epoch_ += sets_.back().num_rows();
    num_long_left_.push_back(sets_.back().num_long_documents());
  }
  mixture_.emplace(shares_of(sets_), config_.seed);
  cursor_.sets.resize(sets_.size());
}

TrainData::~TrainData() { drop_prefetched(); }

void TrainData::set_length_multiple(int64_t multiple) {
  if (multiple == config_.length_multiple) return;
  drop_prefetched();
  config_.length_multiple = multiple;
  lengths_ = RowLengths(config_.seq_len, multiple);
}

void TrainData::drop_prefetched() {
  if (prefetched_.valid()) prefetched_.wait();
  prefetched_ = {};
}

void TrainData::set_reference(size_t set, std::shared_ptr<const ReferenceStore> reference) {
  drop_prefetched();
  sets_.at(set).set_reference(std::move(reference));
}

TrainData::Built TrainData::build(const StepShape& shape, DataCursor cursor) const {
  Built built;
  built.counts.resize(sets_.size());
  std::vector<uint64_t> rows_taken;
  for (const SetCursor& set : cursor.sets) rows_taken.push_back(set.num_rows);
  for (int64_t m = 0; m < shape.num_micro_batches; ++m) {
    for (int64_t rank = 0; rank < shape.num_ranks; ++rank) {
      // Rows of other ranks are only counted.
      const bool is_mine = rank == shape.rank;
      Batch batch;
      if (is_mine) batch = {shape.micro_batch_size, config_.seq_len, config_.pad_id, config_.fields, config_.dims};
      uint64_t longest = 0;
      for (int64_t row = 0; row < shape.micro_batch_size; ++row) {
        const size_t set = mixture_->next(rows_taken);
        ++rows_taken[set];
        const RowSource& rows = sets_[set];
        SetCursor& at = cursor.sets[set];
        const RowCounts counts = is_mine ? rows.fill(at, BatchRow(batch, row)) : rows.skip(at);
        longest = std::max(longest, counts.num_tokens);
        batch.num_tokens += counts.num_tokens;
        batch.num_trained_tokens += counts.num_trained_tokens;
        built.counts[set].num_truncated_documents += counts.num_truncated_documents;
        built.counts[set].num_dropped_documents += counts.num_dropped_documents;
      }
      built.step.num_tokens += batch.num_tokens;
      built.step.num_trained_tokens += batch.num_trained_tokens;
      const int64_t length = lengths_.holding(static_cast<int64_t>(longest));
      built.step.num_positions += static_cast<uint64_t>(shape.micro_batch_size * length);
      if (is_mine) batch.shorten(length);
      if (is_mine) built.step.micro_batches.push_back(std::move(batch));
    }
  }
  built.after = std::move(cursor);
  return built;
}

StepData TrainData::next_step(const StepShape& shape) {
  CHASSIS_CHECK(shape.micro_batch_size > 0 && shape.num_micro_batches > 0 && shape.num_ranks > 0 && shape.rank >= 0 &&
                    shape.rank < shape.num_ranks,
                "the shape of the step");
  Built built;
  if (prefetched_.valid() && prefetched_shape_ == shape) {
    built = prefetched_.get();
  } else {
    drop_prefetched();
    built = build(shape, cursor_);
  }
  const bool has_scores = config_.sequences && config_.sequences->scores;  // then no token needs to be trained
  if (built.step.num_trained_tokens == 0 && !has_scores) {
    throw config_error(fmt::format("all labels are masked in this step: none of {} tokens in {} rows is trained",
                                   built.step.num_tokens, shape.num_rows()))
        .hint("check the labels of the data, or raise train.global_batch_size");
  }
  cursor_ = built.after;
  stats_.num_rows += static_cast<uint64_t>(shape.num_rows());
  stats_.num_tokens += built.step.num_tokens;
  stats_.num_trained_tokens += built.step.num_trained_tokens;
  stats_.num_padding += built.step.num_positions - built.step.num_tokens;
  stats_.num_cut += static_cast<uint64_t>(shape.num_rows() * config_.seq_len) - built.step.num_positions;
  for (size_t i = 0; i < sets_.size(); ++i) {
    const RowCounts& counts = built.counts[i];
    stats_.num_truncated_documents += counts.num_truncated_documents;
    stats_.num_dropped_documents += counts.num_dropped_documents;
    // Counts each document once, not in every pass.
    uint64_t& left = num_long_left_[i];
    const uint64_t num_truncated = std::min(counts.num_truncated_documents, left);
    left -= num_truncated;
    const uint64_t num_dropped = std::min(counts.num_dropped_documents, left);
    left -= num_dropped;
    count_long_documents(sets_[i].config(), config_.seq_len, num_truncated, num_dropped);
  }
  if (config_.prefetch) {
    prefetched_shape_ = shape;
    prefetched_ = run_async(std::launch::async, "data prefetch",
                            [this, shape, cursor = cursor_] { return build(shape, cursor); });
  }
  return std::move(built.step);
}

Json TrainData::order() const {
  Json order;
  order["packing"] = to_text(config_.packing);
  order["shuffle"] = config_.shuffle;
  if (config_.shuffle || sets_.size() > 1) order["seed"] = config_.seed;
  if (sets_.size() > 1 && config_.train.front().weight) order["weights"] = mixture_->shares();
  if (config_.packing == Packing::kBestFit) {  // these decide which documents share a row
    order["seq_len"] = config_.seq_len;
    order["overflow"] = to_text(config_.overflow);
    order["window"] = kPackingWindow;
  }
  return order;
}

Json TrainData::save() const {
  Json saved;
  saved["version"] = kCursorVersion;
  saved["data_hash"] = data_hash();
  saved["content"] = content();
  saved["order"] = order();
  saved["sets"] = to_json(cursor_);
  return saved;
}

void TrainData::restore(const Json& saved, const std::string& where) {
  if (const int64_t version = json_int(saved, "version", where); version != kCursorVersion) {
    throw config_error(fmt::format("{}: version {}, but this program reads {}", where, version, kCursorVersion));
  }
  if (const std::string hash = json_string(saved, "data_hash", where); hash != data_hash()) {
    const std::string files = content_differences(saved.value("content", Json()), content());
    throw config_error(
        fmt::format("{}: the run was trained on other data or with another tokenizer (hash {}, now {}){}", where,
                    hash.substr(0, 12), data_hash().substr(0, 12),
                    !files.empty()              ? files
                    : saved.contains("content") ? "; the files are the same, so it is the tokenizer, or how rows "
                                                  "become tokens"
                                                : ""))
        .hint("start a new run, or restore the data and the tokenizer");
  }
  const Json now = order();
  const Json& then = json_at(saved, "order", where);
  for (const char* key : {"packing", "shuffle", "seed", "weights", "seq_len", "overflow", "window"}) {
    const Json before = then.value(key, Json()), after = now.value(key, Json());
    if (before == after) continue;
    throw config_error(
        fmt::format("{}: the run was started with data {} = {}, now it is {}", where, key, before.dump(), after.dump()))
        .hint("the order of the data cannot change in the middle of a run");
  }
  DataCursor cursor = data_cursor_from_json(json_at(saved, "sets", where), where);
  if (cursor.sets.size() != sets_.size()) {
    throw config_error(
        fmt::format("{}: {} data sets were saved, but there are {}", where, cursor.sets.size(), sets_.size()));
  }
  for (size_t i = 0; i < sets_.size(); ++i) sets_[i].require_inside(cursor.sets[i]);
  drop_prefetched();
  cursor_ = std::move(cursor);
}

int64_t TrainData::num_steps(double epochs, int64_t global_batch_size) const {
  CHASSIS_CHECK(epochs > 0 && global_batch_size > 0, "epochs and batch size are positive");
  // Slightly reduced, so that a product that should be whole is not rounded up.
  const double steps = std::ceil(epochs * num_rows_per_epoch_ / static_cast<double>(global_batch_size) * (1 - 1e-12));
  const std::optional<int64_t> whole = to_int64(steps);
  if (!whole)
    throw config_error(fmt::format("{:g} epochs of {:.0f} rows are {:g} steps of {} rows; a run has at most {}", epochs,
                                   num_rows_per_epoch_, steps, global_batch_size, INT64_MAX));
  return std::max<int64_t>(1, *whole);
}

uint64_t TrainData::num_rows_taken() const {
  uint64_t num_rows = 0;
  for (const SetCursor& set : cursor_.sets) num_rows += set.num_rows;
  return num_rows;
}

double TrainData::epoch() const { return static_cast<double>(num_rows_taken()) / num_rows_per_epoch_; }

double TrainData::utilisation() const {
  double sum = 0;
  for (size_t i = 0; i < sets_.size(); ++i) sum += mixture_->shares()[i] * sets_[i].utilisation();
  return sum;
}

std::vector<size_t> TrainData::sets_not_reached(uint64_t num_rows) const {
  // Tries only as many rows as take a fraction of a second. A set whose share of `num_rows` is at least one row is
  // reached later.
  const uint64_t most_tried = (uint64_t{8} << 20) / sets_.size();
  std::vector<uint64_t> rows_taken;
  for (const SetCursor& set : cursor_.sets) rows_taken.push_back(set.num_rows);
  auto num_left = static_cast<size_t>(std::ranges::count(rows_taken, uint64_t{0}));
  for (uint64_t row = 0; num_left > 0 && row < std::min(num_rows, most_tried); ++row)
    if (rows_taken[mixture_->next(rows_taken)]++ == 0) --num_left;
  std::vector<size_t> sets;
  for (size_t i = 0; i < rows_taken.size(); ++i) {
    const bool comes_later = num_rows > most_tried && share(i) * static_cast<double>(num_rows) >= 1;
    if (rows_taken[i] == 0 && !comes_later) sets.push_back(i);
  }
  return sets;
}

std::vector<double> TrainData::passes() const {
  std::vector<double> passes;
  for (size_t i = 0; i < sets_.size(); ++i) passes.push_back(sets_[i].num_passes(cursor_.sets[i]));
  return passes;
}

Json TrainData::identity() const {
  Json identity;
  identity["tokenizer"] = tokenizer_fingerprint_;
  identity["sets"] = Json::array();
  for (const RowSource& set : sets_) identity["sets"].push_back(set.store().facts().content_hash);
  return identity;
}

std::string TrainData::data_hash() const { return sha256_hex(identity().dump()); }

Json TrainData::content() const {
  std::vector<std::pair<std::string, std::string>> entries;
  std::unordered_map<std::string, size_t> places;  // a lookup in the JSON would compare all keys
  const auto add = [&](std::string name, const std::string& hash) {
    const auto [place, is_new] = places.try_emplace(name, entries.size());
    if (is_new) entries.emplace_back(std::move(name), "");
    entries[place->second].second = hash;
  };
  for (const RowSource& set : sets_) {
    const std::vector<std::string>& files = set.store().source_files();
    const std::vector<std::string>& hashes = set.store().facts().content_of_files;
    if (files.size() != hashes.size() || files.size() > kMaxListedFiles) {
      std::string all;
      for (const std::string& hash : hashes) all += hash;
      add(printable(set.config().path), fmt::format("{:016x}", hash64(all, 0)));
      continue;
    }
    for (size_t i = 0; i < files.size(); ++i) add(printable(files[i]), hashes[i]);
  }
  Json content = Json::object();
  auto& members = content.get_ref<Json::object_t&>();
  for (auto& [name, hash] : entries) members.emplace_back(std::move(name), Json(std::move(hash)));
  return content;
}

std::string content_differences(const Json& before, const Json& now) {
  constexpr int kMaxShown = 5;
  std::string text;
  int num_differences = 0;
  if (!before.is_object() || !now.is_object()) return "";
  const auto index_of = [](const Json& object) {
    std::unordered_map<std::string_view, const Json*> index;
    for (const auto& [file, hash] : object.items()) index.emplace(file, &hash);
    return index;
  };
  const auto of_before = index_of(before), of_now = index_of(now);
  const auto add = [&](std::string line) {
    if (++num_differences <= kMaxShown) text += "\n  " + std::move(line);
  };
  for (const auto& [file, hash] : before.items()) {
    if (const auto found = of_now.find(file); found == of_now.end())
      add(file + " is no longer read");
    else if (*found->second != hash)
      add(fmt::format("{} had content {}, has {}", file, hash.dump(), found->second->dump()));
  }
  for (const auto& [file, hash] : now.items())
    if (!of_before.contains(file)) add(file + " is new");
  if (num_differences > kMaxShown) text += fmt::format("\n  and {} more", num_differences - kMaxShown);
  return text;
}

}  // namespace chassis

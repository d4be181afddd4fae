// Runs the model on the row so far, chooses a token, appends it, and so on.
#include "host/generate/generate.hpp"

#include <algorithm>
#include <span>

#include "host/base/batch_fields.hpp"
#include "host/base/error.hpp"
#include "host/base/log.hpp"
#include "host/service/rng.hpp"
#include "host/session/fields.hpp"

namespace chassis {
namespace {

// The fields of the row from `begin` on.
Fields fields_of(const Program& program, const std::vector<int32_t>& ids, size_t begin, Device device) {
  const RowPiece piece{.ids = std::span(ids).subspan(begin), .first_position = static_cast<int32_t>(begin)};
  const NamedSizes sizes = largest_sizes(program, 1, static_cast<int64_t>(piece.ids.size()));
  Fields fields;
  for (const auto& [name, taken] : program.fields) {
    const BatchFieldSpec* spec = find_batch_field(name);
    if (spec == nullptr || !spec->in_generation) continue;
    HostField field(*spec, sizes);
    field.write(piece, 0, 0);
    fields[name] = to_tensor(field, device);
  }
  return fields;
}

std::vector<float> last_logits(const Tensor& logits) {
  const int64_t vocab = logits.size(2);
  std::vector<float> values(static_cast<size_t>(vocab));
  const int64_t sizes[] = {vocab};
  Tensor::borrow(values.data(), sizes, Dtype::f32)
      .copy_from(logits.flat().narrow(0, logits.num_elements() - vocab, vocab));
  return values;
}

// True if an op needs the whole row for each token.
bool warn_if_refused(Executor& executor) {
  const std::string op = executor.refusal_of_cache();
  if (op.empty()) return false;
  counted_warning("generation without a key-value cache",
                  "generation computes the whole row again for each token: op " + op +
                      " mixes the positions, or does not declare which dims it mixes");
  return true;
}

// The shortest row in which an op computes all positions otherwise: keys of a shorter row do not fit. 0: none.
int64_t first_long_position(Executor& executor) {
  int64_t first = 0;
  for (const auto& unit : executor.resolved(Purpose::kLogits).units)
    for (const Op& op : unit->block.ops)
      if (const int64_t from = op.changes_at_length(); from > 0) first = first == 0 ? from : std::min(first, from);
  return first;
}

}  // namespace

void CachedRow::forget() {
  ids_.clear();
  num_computed_ = 0;
  cache_.truncate(0);
}

size_t CachedRow::begin_with(const std::vector<int32_t>& row, int64_t capacity) {
  const auto differs = std::mismatch(ids_.begin(), ids_.end(), row.begin(), row.end()).first;
  const size_t same = std::min(static_cast<size_t>(differs - ids_.begin()), row.size() - 1);
  ids_.resize(same);
  cache_.truncate(static_cast<int64_t>(same));
  cache_.reserve(capacity);
  return same;
}

Generated generate(Executor& executor, const std::vector<int32_t>& prompt, const GenerateOptions& options,
                   Device device, const std::function<bool(int32_t)>& on_token, CachedRow* cached) {
  if (prompt.empty())
    throw config_error("the prompt is empty").hint("give at least one token, for example --prompt \"The\"");
  CachedRow own;
  if (cached == nullptr) cached = &own;
  std::vector<int32_t> row = prompt;
  size_t seen = 0;
  const bool use_cache = options.use_cache && !warn_if_refused(executor);
  const auto first_long = static_cast<size_t>(use_cache ? first_long_position(executor) : 0);
  const auto fits = [&] { return (cached->num_computed() > first_long) == (row.size() > first_long); };
  if (first_long > 0 && !fits()) cached->forget();
  if (use_cache) seen = cached->begin_with(prompt, static_cast<int64_t>(prompt.size()) + options.max_new_tokens);
  Generated text;
  for (int64_t i = 0; i < options.max_new_tokens; ++i) {
    if (first_long > 0 && cached->num_computed() > 0 && !fits()) {
      cached->forget();
      seen = 0;
    }
    const Tensor logits =
        executor.logits(fields_of(executor.program(), row, seen, device), use_cache ? &cached->cache() : nullptr, true);
    if (use_cache) {
      cached->append(row);
      seen = row.size();
    }
    float draw = 0.0f;
    random_uniform(options.seed, options.stream, row.size(), {&draw, 1});
    std::vector<float> row_logits = last_logits(logits);
    text.num_masked += mask_padded_ids(row_logits, options.vocab_size);
    const int32_t id = choose_token(std::move(row_logits), options.sampling, row, draw);
    if (std::find(options.stop_ids.begin(), options.stop_ids.end(), id) != options.stop_ids.end()) {
      text.finish = Finish::kStopId;
      break;
    }
    row.push_back(id);
    text.ids.push_back(id);
    if (on_token && !on_token(id)) {
      text.finish = Finish::kStoppedByCaller;
      break;
    }
  }
  return text;
}

}  // namespace chassis
